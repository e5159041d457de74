"""A preparation by counts and sums alone: as one table would be prepared, or a clear refusal."""

import json

import numpy as np
import pandas as pd
import pytest

from idiolect.core.knobs import SettingError
from idiolect.data.federation import Federation
from idiolect.data.prepare import Preparation
from idiolect.data.prepare.federated import combine, first_sums, means, second_sums

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "site": np.repeat(["a", "b", "c"], 40),
        "age": RNG.normal(60, 12, 120),
        "constant": 7.5,
        "ward": RNG.choice(["er", "icu"], 120),
        "flag": RNG.choice([True, False], 120),
        "ill": RNG.choice(["no", "yes"], 120),
    }
)
FEATURES = ["age", "constant", "ward", "flag"]


def agreed(frame: pd.DataFrame, missing: str = "refuse") -> Preparation:
    """As sites would agree on it, by JSON."""
    parts = [part for _, part in frame.groupby("site")]
    first = json.loads(json.dumps([first_sums(part, FEATURES) for part in parts]))
    told = json.loads(json.dumps(means(first)))
    second = json.loads(json.dumps([second_sums(part, told) for part in parts]))
    return Preparation.from_dict(combine(FEATURES, first, second, missing).as_dict())


@pytest.mark.parametrize("missing", ["refuse", "mean", "zero+flag"])
def test_sums_prepare_as_one_table_is_prepared(missing):
    frame = FRAME.copy()
    if missing != "refuse":
        frame.loc[5, "age"] = np.nan
        frame.loc[50, "ward"] = None
    whole = Federation.from_frame(
        frame, client="site", target="ill", features=FEATURES, missing=missing, valid=0, test=0
    ).preparation
    made = agreed(frame, missing)
    assert made.feature_names == whole.feature_names
    rows = frame[FEATURES]
    assert np.allclose(made.apply(rows), whole.apply(rows), atol=1e-6)


def test_a_place_without_one_of_the_categories_uses_those_of_all():
    frame = FRAME.copy()
    frame.loc[frame["site"] == "a", "ward"] = "er"
    assert agreed(frame).columns[2].categories == ("er", "icu")


NUMBER = {"kind": "number", "count": 3, "sum": 1.0, "missing": False}
CATEGORY = {"kind": "category", "categories": ["x"], "missing": False}


@pytest.mark.parametrize(
    "told",
    [
        None,
        {},
        {"age": 3},
        {"age": {**NUMBER, "count": -1}},
        {"age": {**NUMBER, "count": 1.5}},
        {"age": {**NUMBER, "sum": float("inf")}},
        {"age": {**NUMBER, "sum": float("nan")}},
        {"age": {**NUMBER, "more": 1}},
        {"age": {**NUMBER, "kind": "date"}},
        {"age": CATEGORY},
        {"age": {**CATEGORY, "categories": [[1]]}},
        {"age": {**CATEGORY, "categories": [str(k) for k in range(51)]}},
    ],
)
def test_what_a_place_tells_may_be_anything(told):
    with pytest.raises(SettingError):
        means([{"age": NUMBER}, told or {}])


@pytest.mark.parametrize(
    "squares", [None, {}, {"squares": -1.0}, {"squares": float("nan")}, {"squares": "1"}]
)
def test_squares_may_be_anything(squares):
    with pytest.raises(SettingError):
        combine(["age"], [{"age": NUMBER}], [{"age": squares}])


def test_categories_of_two_kinds_do_not_mix():
    numbers = {**CATEGORY, "categories": [1, 2]}
    with pytest.raises(SettingError, match="text at one place and numbers at another"):
        combine(["ward"], [{"ward": CATEGORY}, {"ward": numbers}], [{}, {}])
