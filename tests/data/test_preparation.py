"""A preparation is plain data, does what scikit-learn does, and is refused where it is damaged."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from idiolect.core.knobs import SettingError
from idiolect.data.federation import Federation
from idiolect.data.prepare import Preparation, TableColumn
from idiolect.data.prepare.fit import MEDIAN_STEPS, TrainingRows

ROWS = 24
CELLS = {
    "number": st.one_of(st.none(), st.floats(-1e6, 1e6, width=32), st.just(0.0)),
    "whole": st.integers(-(2**40), 2**40),
    "text": st.sampled_from(["", "a", "b c", "Zürich", "a,b", '"', "=1", "nan?", "東京"]),
    "truth": st.one_of(st.none(), st.booleans()),
}


@st.composite
def frames(draw):
    names = draw(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=5, unique=True))
    names = [name for name in names if name not in ("site", "y", "part")] or ["x"]
    columns = {}
    for name in names:
        cell = CELLS[draw(st.sampled_from(sorted(CELLS)))]
        columns[name] = draw(st.lists(cell, min_size=ROWS, max_size=ROWS))
        if draw(st.booleans()):
            columns[name] = pd.Categorical(columns[name]) if len(set(columns[name])) > 1 else [1]
            columns[name] = columns[name] if len(columns[name]) == ROWS else [1] * ROWS
    frame = pd.DataFrame(columns)
    frame["site"] = draw(st.lists(st.sampled_from([1, 2, 13]), min_size=ROWS, max_size=ROWS))
    frame["part"] = ["train", "train", "test"] * (ROWS // 3)
    frame["y"] = np.arange(ROWS) % 2
    return frame


@settings(max_examples=60, deadline=None)
@given(frames(), st.sampled_from(["federated", "client", "none"]), st.sampled_from([0, 1, 2]))
def test_odd_frames_are_prepared_the_same_after_a_round_trip(frame, scale, number):
    missing = ("mean+flag", "median", "zero")[number]
    options = {"client": "site", "target": "y", "split": "part", "scale": scale}
    try:
        f = Federation.from_frame(frame, **options, missing=missing)
    except SettingError as error:  # of columns that carry nothing, or next to nothing in training
        assert "no feature columns left" in str(error) or "scaled, it is more than" in str(error)
        return
    made = f.preparation
    text = json.dumps(made.as_dict(), allow_nan=False)
    back = Preparation.from_dict(json.loads(text))
    assert back == made and json.dumps(back.as_dict()) == text
    expected = made.apply(frame, frame["site"])
    assert np.isfinite(expected).all() and expected.shape == (ROWS, len(made.feature_names))
    turned = frame[list(frame.columns)[::-1]].assign(extra="x")
    np.testing.assert_array_equal(back.apply(turned, frame["site"]), expected)
    order = np.lexsort((frame["site"], frame["part"] == "test"))
    np.testing.assert_array_equal(f.inputs.numpy(), expected[order])


def test_the_features_are_those_of_a_scikit_learn_pipeline():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(5, 3, 200), "b": rng.exponential(size=200)})
    frame = frame.mask(rng.random((200, 2)) < 0.1)
    frame["c"] = rng.choice(["x", "y", "z"], 200)
    frame = frame.assign(site=np.arange(200) % 4, y=np.arange(200) % 2)
    frame["part"] = np.where(rng.random(200) < 0.5, "train", "test")
    train = frame[frame.part == "train"]
    for missing in ("mean", "median"):
        f = Federation.from_frame(frame, client="site", target="y", split="part", missing=missing)
        scaler = StandardScaler().fit(train[["a", "b"]])
        imputer = SimpleImputer(strategy=missing).fit(train[["a", "b"]])
        numbers = scaler.transform(
            pd.DataFrame(imputer.transform(frame[["a", "b"]]), columns=["a", "b"])
        )
        encoder = OneHotEncoder(sparse_output=False, handle_unknown="ignore").fit(train[["c"]])
        expected = np.hstack([numbers, encoder.transform(frame[["c"]])])
        np.testing.assert_allclose(f.preparation.apply(frame), expected, rtol=1e-5, atol=1e-6)


def test_the_federated_median_can_be_found_by_counts_alone():
    """Bisection over the bits of a number: each step a threshold down, a count per client up."""
    rng = np.random.default_rng(1)
    values = np.concatenate([rng.normal(size=7), -rng.exponential(size=8) * 1e5, [0.0, 2.5, 2.5]])
    clients = np.array_split(rng.permutation(values), 3)
    steps = 0

    def ordered(x):
        bits = x.view(np.int64).astype(object)
        return np.where(x.view(np.int64) < 0, -bits - 2**63, bits)

    def smallest(rank):
        nonlocal steps
        low, high = -(2**63), 2**63 - 1
        while low < high:
            steps += 1
            middle = (low + high) // 2
            below = sum(int((ordered(x) <= middle).sum()) for x in clients)
            low, high = (low, middle) if below > rank else (middle + 1, high)
        bits = low if low >= 0 else -low - 2**63
        return float(np.int64(bits).view(np.float64))

    n = len(values)
    found = (smallest((n - 1) // 2) + smallest(n // 2)) / 2
    rows = TrainingRows(np.zeros(n, dtype=np.int64), 1, own=False)
    assert found == rows.median(values)[0] and steps <= MEDIAN_STEPS


def test_medians_of_clients_are_those_of_pandas():
    rng = np.random.default_rng(2)
    client = rng.integers(0, 6, 100)
    client[client == 4] = 5  # client 4 has no row
    values = np.where(rng.random(100) < 0.2, np.nan, rng.normal(size=100))
    expected = pd.Series(values).groupby(client).median().reindex(range(6)).fillna(0)
    got = TrainingRows(client, 6, own=True).median(values)
    np.testing.assert_allclose(got, expected, rtol=1e-12)


GOOD = Preparation(
    (
        TableColumn("age", "number", fill=(50.0, 60.0), centre=(50.0, 60.0), spread=(1.0, 2.0)),
        TableColumn("ward", "category", categories=("a", "b"), flag=True),
    ),
    "client",
    "mean+flag",
    (1, "north"),
    (10, 20),
    7,
    {"id": "an identifier"},
)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.pop("scale"), "the key 'scale' is missing"),
        (lambda d: d.update(extra=1), "the key 'extra' is not expected"),
        (lambda d: d.update(scale="other"), "unknown"),
        (lambda d: d.update(clients=[1, "1"]), "an id is there twice"),
        (lambda d: d.update(clients=[1]), "bytes_up"),
        (lambda d: d.update(bytes_up=[1, -1]), "bytes_up"),
        (lambda d: d.update(bytes_down=1.5), "bytes_down must be a whole number, got a number"),
        (lambda d: d.update(columns=[]), "columns: one or more"),
        (lambda d: d["columns"].append(d["columns"][0]), "a name of its own"),
        (lambda d: d["columns"][0].update(kind="colour"), "a number, category or date"),
        (lambda d: d["columns"][0].update(centre=[1.0]), "centre is 2 finite numbers"),
        (lambda d: d["columns"][0].update(fill=[1.0, float("nan")]), "fill is 2 finite"),
        (lambda d: d["columns"][0].update(spread=[1.0, 0.0]), "spread is > 0"),
        (lambda d: d["columns"][0].update(spread=["1", 1]), "spread"),
        (lambda d: d["columns"][1].update(categories=["a", "a"]), "all different"),
        (lambda d: d["columns"][1].update(categories=["a", 1]), "all different"),
        (lambda d: d["columns"][1].update(categories=[]), "all different"),
        (lambda d: d["columns"][1].update(categories=[["a"]]), "categories"),
        (lambda d: d["columns"][1].update(fill=[0.0]), "no statistics"),
        (lambda d: d["columns"][0].pop("flag"), "the key 'flag' in columns"),
    ],
)
def test_a_damaged_preparation_is_refused_by_name(change, says):
    saved = json.loads(json.dumps(GOOD.as_dict()))
    assert Preparation.from_dict(saved) == GOOD
    change(saved)
    with pytest.raises(SettingError, match="preparation: ") as caught:
        Preparation.from_dict(saved)
    assert says in str(caught.value)


@pytest.mark.parametrize("saved", [None, [], "text", 3])
def test_what_is_no_object_is_no_preparation(saved):
    with pytest.raises(SettingError, match="preparation: "):
        Preparation.from_dict(saved)


def test_bytes_are_those_of_the_clients_that_were_there():
    assert GOOD.bytes_of(["north", "new", 1]) == [20, 0, 10]
    assert replace(GOOD, bytes_up=(1, 2)).bytes_of([1]) == [1]
