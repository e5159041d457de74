"""Figure 1, Theorem 32 and Remark 17 of the lp-proj paper, at small sizes of the same code."""

import json
import math

import numpy as np
import pytest
import torch

from helpers import state_of
from idiolect.data.sets.regression import LinearRegression
from idiolect_papers.closed_forms import linear_regression as linear
from idiolect_papers.closed_forms import linear_solutions as solutions
from idiolect_papers.closed_forms.problems import matrix_of
from idiolect_papers.lp_proj import figure1, regression, remark17, theorem32
from reference import linear_solutions as by_data

SETTING = LinearRegression(clients=10, samples=16, features=8, b=1.5, noise=0.5)
SMALL = figure1.AttackedSize(
    setting=SETTING, dim=3, malicious=2, tau=20.0, multiples=(1, 64), seeds=3, plays=3
)
LAM = 0.4


def known(federation):
    parts = [federation.part(k, "train") for k in range(federation.clients)]
    xi, y = torch.stack([x for x, _ in parts]), torch.stack([y for _, y in parts])
    return by_data.curvature(xi), by_data.local(xi, y)


def method_and_subspace(name):
    if name == "lp-proj":
        return regression.lpproj(SETTING, LAM, 3), matrix_of("orthogonal", 3, 8)
    make = {"pfedme": regression.pfedme, "ditto": regression.ditto}[name]
    return make(SETTING, LAM), torch.eye(8).double()


# -- a round is the paper's round ------------------------------------------------------------------
@pytest.mark.parametrize("name", ["pfedme", "ditto", "lp-proj"])
def test_without_attack_two_rounds_end_with_the_exact_solutions(name):
    method, P = method_and_subspace(name)
    federation = SETTING.load()
    H, found = known(federation)
    w, x = solutions.lpproj(H, found, LAM, P)
    result = regression.play(method, federation, 0, 2)
    assert torch.allclose(state_of(result)["w"], w, rtol=0, atol=1e-12)
    assert torch.allclose(regression.models_of(result, 10), x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("attack", figure1.ATTACKS)
@pytest.mark.parametrize("name", ["pfedme", "ditto", "lp-proj"])
def test_under_attack_models_are_tied_to_the_mean_of_honest_solutions_and_forged_ones(attack, name):
    method, P = method_and_subspace(name)
    federation = SETTING.load()
    H, found = known(federation)
    given = SMALL.run_settings(attack)
    first = regression.play(method, federation, 0, 4, **given)
    liar = regression.malicious_of(first)
    assert int(liar.sum()) == SMALL.malicious
    answer = state_of(first)["w"]
    after = regression.play(method, federation, 0, 5, **given)
    x = solutions.tied(H, found, LAM, P, answer.unsqueeze(0))
    assert torch.allclose(regression.models_of(after, 10), x, rtol=0, atol=1e-10)
    forged = answer * 10 - (found @ P.T)[~liar].sum(0)  # the sum of what the malicious ones sent
    if attack == "same-value":
        assert torch.allclose(forged, forged.mean(), rtol=0, atol=1e-9)
    assert float(forged.norm()) > 1


def test_a_play_of_the_round_depends_on_no_earlier_one():
    """The messages of a round are drawn anew, and a benign one is the local solution again."""
    federation = SETTING.load()
    given = SMALL.run_settings("gaussian") | {"eval_every": 1}
    runs = [
        regression.tested(
            regression.play(regression.pfedme(SETTING, LAM), federation, 0, T, **given)
        )
        for T in (3, 6)
    ]
    np.testing.assert_allclose(runs[1][:2], runs[0], rtol=1e-12)
    assert len(runs[1]) == 5 and len(set(runs[1].round(6))) == 5


# -- Figure 1 --------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def figure(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figure") / "theory"
    folder.mkdir()
    figure1.write(folder, SMALL, workers=1)
    return json.loads((folder / "lp-proj-figure1.json").read_text())


def test_figure_1_has_every_attack_formula_and_run(figure):
    assert set(figure["figures"]) == set(figure1.ATTACKS)
    for found in figure["figures"].values():
        assert found["best_lam"] == pytest.approx(linear.best_lam(SETTING, found["spread"]))
        for name in (figure1.PFEDME, figure1.LPPROJ):
            runs = np.array(found["runs"][name])
            assert runs.shape == (len(found["lams"]), SMALL.seeds) and np.isfinite(runs).all()
            said = np.array(found["formulas"][name])
            assert 0.2 < np.median(runs / said) < 3  # few plays, heavy tails
    same = next(c for c in figure["claims"] if "Proposition 16 (i)" in c["paper"])
    assert same["verdict"] == "agrees"


def test_runs_and_formula_agree_in_the_mean_where_the_attack_has_light_tails(tmp_path):
    """Gaussian messages: a chi-square variable with many degrees of freedom."""
    size = figure1.AttackedSize(
        setting=SETTING, dim=3, malicious=2, tau=20.0, multiples=(64,), seeds=8, plays=12
    )
    outcome = figure1.measure(size, tmp_path, workers=1, attacks=("gaussian",))["gaussian"]
    for name in (figure1.PFEDME, figure1.LPPROJ):
        ratio = outcome.runs[name].mean() / outcome.formulas(name).mean()
        assert ratio == pytest.approx(1, abs=0.35), name


def test_sigma_1_is_as_given_in_expectation():
    size = figure1.AttackedSize(setting=SETTING, malicious=2)
    w = torch.cat([size.draw_setting(seed).draw()[1].unsqueeze(0) for seed in range(400)])
    benign = w[:, 2:]
    around = (benign.sum(1, keepdim=True) / 10 - benign).square().mean()
    assert float(around) == pytest.approx(size.around, rel=0.05)


# -- Theorem 32 ------------------------------------------------------------------------------------
def test_theorem_32_holds_exactly_for_runs_without_noise(tmp_path):
    folder = tmp_path / "theory"
    folder.mkdir()
    size = theorem32.Theorem32Size(
        setting=SETTING, dim=3, lams=(0.1, 1.0), seeds=2, draws=2, dims=(2, 4, 8)
    )
    theorem32.write(folder, size, workers=1)
    stored = json.loads((folder / "lp-proj-theorem32.json").read_text())
    for one in stored["figures"]["by_seed"]:
        assert one["Local"]["clean"] < 1e-20
        cells = [one["FedAvg"], *one["pFedMe"], *one["lp-proj-2"]]
        for cell in cells:
            assert cell["clean"] == pytest.approx(cell["formula"], rel=1e-9)
    for found in stored["figures"]["by_dim"].values():
        for one in found:
            for cell in one.values():
                assert cell["clean"] == pytest.approx(cell["formula"], rel=1e-9)


def test_the_variance_of_expected_losses_is_estimated_without_bias():
    rng = np.random.default_rng(0)
    mean = torch.from_numpy(rng.standard_normal(12))
    true = float(mean.var(correction=0))
    drawn = torch.from_numpy(rng.standard_normal((4000, 3, 12))) * 2 + mean
    estimates = torch.tensor([theorem32.of_expected(loss) for loss in drawn])
    error = float(estimates.std()) / math.sqrt(len(estimates))
    assert abs(float(estimates.mean()) - true) < 4 * error
    assert theorem32.of_realised(drawn[0]) > true


def test_correlated_coefficients_have_the_covariance_that_the_formula_is_given():
    size = theorem32.Theorem32Size(setting=SETTING)
    w = torch.cat([theorem32.drawn(size, seed, 0.9)[1] for seed in range(200)])
    np.testing.assert_allclose(torch.cov(w.T), theorem32.covariance(size, 0.9), atol=0.02)
    assert linear.expected_variance(SETTING, 1.0, theorem32.covariance(size, 0.9)) > 0


# -- Remark 17 -------------------------------------------------------------------------------------
def test_the_slope_in_lambda_is_proportional_to_the_shared_dimensions(tmp_path):
    folder = tmp_path / "theory"
    folder.mkdir()
    figure = figure1.AttackedSize(setting=SETTING, malicious=2, tau=20.0, seeds=2, plays=3)
    size = remark17.Remark17Size(figure, dims=(2, 8), slope_at=(0.1,))
    remark17.write(folder, size, workers=1)
    stored = json.loads((folder / "lp-proj-remark17.json").read_text())
    slope = np.array(stored["figures"]["slope"][0])
    assert np.median(slope[1] / slope[0]) == pytest.approx(4, rel=0.25)  # the same c in every place
    spread = stored["figures"]["spread"]
    steps = np.diff(
        [linear.lpproj_loss(SETTING, stored["figures"]["best"], m, spread) for m in (3, 4)]
    )
    assert size.per_dimension == pytest.approx(steps[0])
