"""Weights of samples: read, refused, and carried with their samples wherever these go."""

import numpy as np
import pandas as pd
import pytest
import torch

from idiolect import Federation, check
from idiolect.core.knobs import SettingError
from idiolect.data import load
from idiolect.data.federation import Census
from idiolect.data.shared import shared
from idiolect.study.advise.training import Holdout

N = 60


@pytest.fixture
def weighted():
    """Every sample's weight is its input plus one, so that either tells the other."""
    x = np.arange(N, dtype=float)
    return Federation.from_arrays(x[:, None], np.arange(N) % 2, np.arange(N) % 3, weight=x + 1)


def go_together(f):
    return torch.equal(f.weights, f.inputs[:, 0].double() + 1)


def table(**columns):
    rows = {"site": list("ab") * 10, "age": np.arange(20.0) ** 1.5, "ill": [0, 0, 1, 1] * 5}
    return pd.DataFrame(rows | columns)


def test_weights_follow_their_samples(weighted):
    assert weighted.weights.dtype == torch.float64 and go_together(weighted)
    assert go_together(weighted.of([2, 0])) and go_together(weighted.without("valid"))
    assert go_together(weighted.capped({"train": 4, "test": 2}, seed=3))
    assert go_together(weighted.to("cpu", torch.float32))
    assert weighted.to("cpu", torch.float32).weights.dtype == torch.float64


def test_weights_follow_their_samples_into_folds_and_halves(weighted):
    holdout = Holdout.of(weighted, "folds", seed=0)
    for seed in range(3):
        assert go_together(holdout.under(seed)[0])
    assert go_together(holdout.halves(0))
    rows = np.sort(holdout.weights)
    kept = weighted.without("test").weights.numpy()
    np.testing.assert_array_equal(rows, np.sort(kept))


def test_weights_follow_their_samples_to_other_processes(weighted):
    with shared({"a": weighted}) as files:
        assert go_together(files["a"].open())
    census = Census.of_data(weighted)
    for split in ("train", "valid", "test"):
        assert torch.equal(census.weight_totals(split), weighted.weight_totals(split))
        part = census.of([1, 0]).weight_totals(split)
        assert torch.equal(part, weighted.of([1, 0]).weight_totals(split))


def test_the_fingerprint_tells_weights_apart(weighted):
    x, y, clients = np.eye(4), [0, 1, 0, 1], list("aabb")
    prints = {
        Federation.from_arrays(x, y, clients, weight=w).fingerprint()
        for w in (None, [1, 1, 1, 1], [1, 2, 1, 1], [1, 1, 1, 2])
    }
    assert len(prints) == 4


def test_training_shares_have_mean_one_for_every_client(weighted):
    shares = weighted.training_shares[: int(weighted.offsets["train"][-1])]
    means = [part.mean() for part in shares.split(weighted.sizes("train").tolist())]
    torch.testing.assert_close(torch.stack(means), torch.ones(3, dtype=torch.float64))
    assert Federation.from_arrays(np.eye(2), [0, 1], list("ab")).training_shares is None


def test_unlike_weights_are_worth_fewer_samples():
    f = Federation.from_arrays(np.eye(4), [0, 1, 0, 1], list("aabb"), weight=[1, 9, 4, 4], test=0)
    assert f.effective_sizes("train").tolist() == [pytest.approx(100 / 82), 2.0]


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_a_weight_is_a_finite_number_above_zero(bad):
    message = rf"weight must be finite numbers > 0, got {bad} for sample 2 \(1 such"
    with pytest.raises(SettingError, match=message):
        Federation.from_arrays(np.eye(3), [0, 1, 0], list("aaa"), weight=[1, 1, bad])


def test_weights_are_one_number_per_sample():
    with pytest.raises(SettingError, match=r"one number per sample \(2\), got an array of shape"):
        Federation.from_arrays(np.eye(2), [0, 1], list("aa"), weight=[1, 2, 3])
    with pytest.raises(SettingError, match="weight must be numbers, got 'much'"):
        Federation.from_arrays(np.eye(2), [0, 1], list("aa"), weight=["much", "little"])


def test_the_weight_column_of_a_table_is_no_feature():
    f = Federation.from_frame(
        table(w=np.arange(20) + 0.5), client="site", target="ill", weight="w", scale="none"
    )
    assert f.preparation.feature_names == ("age",) and f.weight_name == "w"
    age = (f.weights.numpy() - 0.5) ** 1.5
    np.testing.assert_allclose(f.inputs[:, 0], age, rtol=1e-6)


def test_rows_that_are_left_out_take_their_weights_along():
    frame = table(w=np.arange(20) + 0.5)
    frame.loc[3, "age"] = np.nan
    f = Federation.from_frame(frame, client="site", target="ill", weight="w", missing="drop")
    assert sorted(f.weights.tolist()) == [k + 0.5 for k in range(20) if k != 3]


def test_a_weight_may_have_a_decimal_comma(tmp_path):
    table(w=[f"{k},5" for k in range(1, 21)]).to_csv(tmp_path / "t.csv", sep=";", index=False)
    columns = {"client": "site", "target": "ill", "weight": "w"}
    f = load("table", path=str(tmp_path / "t.csv"), decimal=",", **columns)
    assert sorted(f.weights.tolist())[:2] == [1.5, 2.5]


def test_a_column_of_weights_is_checked():
    options = {"client": "site", "target": "ill", "weight": "w"}
    with pytest.raises(SettingError, match="weight: column 'w' must hold numbers, got text"):
        Federation.from_frame(table(w=["x", "y"] * 10), **options)
    with pytest.raises(SettingError, match="got nan for sample 4"):
        Federation.from_frame(table(w=[1.0, 2, 3, 4, None] * 4), **options)
    with pytest.raises(SettingError, match="weight: 'site' is the column of the client too"):
        Federation.from_frame(table(), **options | {"weight": "site"})
    (finding,) = check(table(w=[0, 1] * 10), **options).findings[:1]
    assert finding.text.startswith("10 rows have no weight > 0 ('w')")


def test_a_check_names_a_column_that_is_called_a_survey_weight():
    report = check(table(fnlwgt=np.linspace(1, 9, 20)), client="site", target="ill")
    assert "--weight fnlwgt" in report.flags


def test_a_description_tells_of_weights(weighted):
    line = "'weight', 1 to 60 per sample; 60 samples say as much as 45.37 of one weight"
    assert line in str(weighted)
