"""Generated data have the moments their papers give them."""

import numpy as np
import pytest
import torch

from idiolect import data
from idiolect.core.knobs import SettingError
from idiolect.data.sets.regression import LinearRegression, LogisticRegression
from idiolect.data.sets.synthetic import Synthetic


@pytest.mark.parametrize("name", ["synthetic", "linear", "logistic", "digits"])
def test_the_seed_decides_the_data(name):
    def prints(seed):
        return data.load(name, clients=5, seed=seed).fingerprint()

    assert prints(1) == prints(1) != prints(2)


def test_315_samples_split_into_202_50_63():
    f = data.load("synthetic")
    assert (
        f.clients == 100
        and f.classes == 10
        and f.inputs.shape == (31_500, 60)
        and f.inputs.dtype == torch.float32
    )
    assert [f.sizes(s).unique().tolist() for s in ("train", "valid", "test")] == [[202], [50], [63]]


def test_the_local_majority_class_is_right_four_times_in_five_on_synthetic_0_0():
    f = data.load("synthetic")
    assert 0.78 < float(f.majority_hits("test").sum() / f.sizes("test").sum()) < 0.85


def test_synthetic_inputs_have_variance_j_to_the_minus_1_2():
    x, _ = Synthetic(samples=40_000).client(0)
    assert np.allclose(x.var(0) * np.arange(1, 61) ** 1.2, 1, atol=0.05)


def test_beta_moves_the_inputs_and_alpha_does_not():
    def spread(**options):  # of the mean input over clients: (1/60 + beta^2)^(1/2)
        return np.std([Synthetic(samples=1, **options).client(k)[0].mean() for k in range(400)])

    assert spread(alpha=3.0) == pytest.approx((1 / 60 + 0.0014) ** 0.5, rel=0.2)
    assert spread(beta=2.0) == pytest.approx(2.0, rel=0.15)
    assert spread(beta=4.0, spread="variance") == pytest.approx(2.0, rel=0.15)


def test_alpha_changes_no_label():
    """It adds the same to the score of every class."""
    alike, unlike = (data.load("synthetic", alpha=a, clients=10, samples=50) for a in (0.0, 3.0))
    assert torch.equal(alike.targets, unlike.targets) and torch.equal(alike.inputs, unlike.inputs)


def test_spread_std_and_variance_agree_at_0_and_1():
    a, b = (
        data.load("synthetic", alpha=1, beta=1, clients=3, spread=s) for s in ("std", "variance")
    )
    assert a.fingerprint() == b.fingerprint()


def test_a_synthetic_client_does_not_depend_on_the_number_of_clients():
    few, many = (Synthetic(clients=n, test=0, valid=0).load() for n in (2, 4))
    assert torch.equal(few.part(1, "train")[0], many.part(1, "train")[0])


def test_power_sizes_differ_and_keep_the_minimum():
    f = data.load("synthetic", sizes="power", clients=30, minimum=50, valid=0, test=0)
    sizes = f.sizes("train")
    assert sizes.min() >= 50 and len(sizes.unique()) > 15


def test_linear_features_are_exactly_orthogonal():
    f, _ = LinearRegression(clients=3, samples=40, features=8, b=1.7).draw()
    assert f.inputs.dtype == f.targets.dtype == torch.float64 and f.classes == 0
    for k in range(3):
        x, _ = f.part(k, "train")
        assert torch.allclose(x.T @ x, 1.7 * 40 * torch.eye(8, dtype=torch.float64), atol=1e-11)
        assert torch.equal(x, f.part(k, "test")[0])  # fixed design, new noise
        assert not torch.equal(f.part(k, "train")[1], f.part(k, "test")[1])


def test_linear_parameters_and_noise_have_the_variances_asked_for():
    f, w = LinearRegression(
        clients=200, samples=30, features=20, mean=2.0, heterogeneity=0.25, noise=0.5
    ).draw()
    assert float(w.mean()) == pytest.approx(2.0, abs=0.05) and float(w.var()) == pytest.approx(
        0.25, rel=0.1
    )
    noise = torch.cat([y - x @ w[k] for k in range(200) for x, y in [f.part(k, "valid")]])
    assert float(noise.std()) == pytest.approx(0.5, rel=0.05)


def test_linear_without_noise_is_solved_by_the_true_parameters():
    f, w = LinearRegression(clients=2, samples=10, features=4, noise=0).draw()
    x, y = f.part(1, "test")
    assert torch.allclose(x @ w[1], y, atol=1e-12)


def test_fewer_samples_than_features_cannot_be_orthogonal():
    with pytest.raises(SettingError, match=r"samples must be at least features, 4, .* got 3"):
        data.load("linear", samples=3, features=4)


def test_logistic_heterogeneity_is_at_most_the_radius_around_the_exact_average():
    f, w = LogisticRegression(clients=30, radius=0.7, norm=1.5).draw()
    away = (w - w.mean(0)).norm(dim=1)
    assert float(away.max()) == pytest.approx(0.7) and float(w.mean(0).norm()) == pytest.approx(1.5)
    assert (
        float(f.inputs.abs().max()) <= 1
        and f.targets.dtype == torch.int64
        and set(f.targets.tolist()) == {0, 1}
    )


def test_logistic_radius_0_or_one_client_means_one_common_model():
    for options in ({"radius": 0.0, "clients": 4}, {"clients": 1}):
        _, w = LogisticRegression(**options).draw()
        assert torch.equal(w, w[:1].expand_as(w)) and float(w[0].norm()) == pytest.approx(2.0)


def test_logistic_labels_follow_the_logistic_law():
    f, w = LogisticRegression(
        clients=1, samples=60_000, features=3, norm=3.0, bound=2.0, valid=0, test=0
    ).draw()
    score = torch.sigmoid(f.inputs @ w[0])
    for low in (0.0, 0.25, 0.5, 0.75):
        inside = (score >= low) & (score < low + 0.25)
        assert float(f.targets[inside].double().mean()) == pytest.approx(
            float(score[inside].mean()), abs=0.02
        )


@pytest.mark.parametrize("partition", ["classes", "dirichlet", "quantity", "iid"])
def test_digits_take_any_partition(partition):
    f = data.load("digits", clients=10, partition=partition)
    assert f.clients == 10 and f.classes == 10 and f.inputs.shape[1:] == (1, 8, 8)
    assert f.inputs.min() == 0 and f.inputs.max() == 1 and f.sizes("test").min() > 0


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("syntetic", {}, "did you mean 'synthetic'"),
        ("synthetic", {"alhpa": 1}, "did you mean 'alpha'"),
        ("synthetic", {"alpha": -1}, "alpha must be a number >= 0, got -1.0"),
        ("synthetic", {"clients": 0}, "clients must be a whole number >= 1, got 0"),
        ("synthetic", {"test": 1.0}, "test must be a number >= 0 and < 1, got 1.0"),
        ("digits", {"partition": "random"}, "one of 'classes', 'dirichlet', 'quantity', 'iid'"),
    ],
)
def test_unknown_names_and_wrong_values_are_refused_with_help(name, options, message):
    with pytest.raises(SettingError, match=message):
        data.load(name, **options)


@pytest.mark.parametrize("name", data.DATASETS)
def test_every_data_set_says_what_it_is_and_what_its_settings_mean(name):
    from idiolect.core.knobs import describe

    cls = data.DATASETS[name]
    assert cls.__doc__ and len(cls.__doc__.splitlines()[0]) > 20 and callable(cls().load)
    assert all(row["help"] for row in describe(cls)) and "seed" in {
        row["name"] for row in describe(cls)
    }
