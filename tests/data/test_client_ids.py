"""Clients are addressed by the user's own ids."""

import time

import numpy as np
import pandas as pd
import pytest
import torch

import idiolect as il
from idiolect import Federation
from idiolect.core.knobs import SettingError

N = 12
X = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
Y = np.arange(N) % 2


def of(ids):
    return Federation.from_arrays(X, Y, ids)


def test_the_model_of_id_1_is_that_of_id_1_not_of_the_second_client():
    f = of([1, 2, 3] * 4)
    task = il.Task(lambda: torch.nn.Linear(3, 2))
    result = il.run(il.Local(), task, f, rounds=1)
    weights = [result.personal(i).weight for i in (1, 2, 3)]
    for k, weight in enumerate(weights):
        same = il.run(il.Local(), task, f.of([k]), rounds=1).personal(k + 1).weight
        assert torch.equal(weight, same)
    assert not torch.equal(weights[0], weights[1])
    with pytest.raises(SettingError, match="client: 0 is unknown"):
        result.personal(0)


@pytest.mark.parametrize(
    ("ids", "kept"),
    [
        ([1, 2, 3] * 4, (1, 2, 3)),
        ([1.0, 2.0] * 6, (1, 2)),
        (["1", "2"] * 6, ("1", "2")),
        ([1, "a", 2] * 4, (1, 2, "a")),
        (["", "a"] * 6, ("", "a")),
        (pd.Series(pd.Categorical(["b", "a"] * 6)), ("a", "b")),
        (iter(["b", "a"] * 6), ("a", "b")),
    ],
)
def test_ids_keep_their_type(ids, kept):
    found = of(ids).ids
    assert found == kept and [type(i) for i in found] == [type(i) for i in kept]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([None] + ["a"] * 11, "sample 0 has no client id"),
        ([float("nan")] + [1.0] * 11, "sample 0 has no client id"),
        (pd.Series([1, None] * 6, dtype="Int64"), "sample 1 has no client id"),
        ([True, False] * 6, "clients: an id must be a whole number or text, got False"),
        ([1.5, 2.0] * 6, r"clients: an id must be a whole number or text, got 1\.5"),
        ([1, "1"] * 6, "clients: ids must differ as text, got 1 and '1'"),
        (5, "clients must be one client id per sample, got 5"),
        ("site", "clients must be one client id per sample, got a str"),
        (None, "clients must be one client id per sample, got a NoneType"),
        ({"a": 1}, "clients must be one client id per sample, got a dict"),
        (str, "clients must be one client id per sample, got the class str"),
    ],
)
def test_other_ids_are_refused(ids, message):
    with pytest.raises(SettingError, match=message):
        of(ids)


def test_an_unknown_id_suggests_the_nearest():
    with pytest.raises(SettingError, match="did you mean 'hospital-3'"):
        of(["hospital-1", "hospital-3"] * 6).position("hospitl-3")
    with pytest.raises(SettingError, match="the nearest is 41401"):
        of([41401, 42731] * 6).position(41402)


def test_very_long_ids_are_accepted_and_errors_about_them_stay_short():
    ids = ["x" * 100_000, "y" * 100_000]
    f = of(ids * 6)
    assert f.position(ids[1]) == 1
    start = time.monotonic()
    with pytest.raises(SettingError, match="is unknown") as e:
        f.position("x" * 99_999)
    assert len(str(e.value)) < 600 and time.monotonic() - start < 1
