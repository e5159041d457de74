"""Who is malicious: a number or a share of the clients, fixed by the seed, in nested sets."""

import itertools
import math

import numpy as np
import pytest
import torch

from idiolect.attacks import chosen, how_many
from idiolect.core import streams
from idiolect.core.knobs import SettingError

KEYS = streams.name_keys([f"client {i}" for i in range(100)])
ALL = torch.arange(100)


@pytest.mark.parametrize(
    "malicious,clients,count",
    [
        (0, 10, 0),
        (0.0, 10, 0),
        (0.1, 100, 10),
        (0.02, 100, 2),
        (0.8, 100, 80),
        (0.33, 10, 3),
        (1, 2, 1),
        (9, 10, 9),
    ],
)
def test_below_one_a_share_from_one_on_a_number(malicious, clients, count):
    assert how_many(malicious, clients) == count


@pytest.mark.parametrize(
    "malicious,words",
    [
        (
            -0.1,
            "malicious must be a share of the clients below 1, or a whole number of them, got -0.1",
        ),
        (-3, "or a whole number of them, got -3"),
        (1.5, "or a whole number of them, got 1.5"),
        (math.nan, "or a whole number of them, got nan"),
        (math.inf, "or a whole number of them, got inf"),
        (True, "or a whole number of them, got True"),
        ("3", "or a whole number of them, got '3'"),
        (11, "malicious must leave an honest client, at most 9 of 10, got 11"),
        (10, "malicious must leave an honest client, at most 9 of 10, got 10"),
        (0.99, "at most 9 of 10, got 0.99"),
        (0.04, "malicious must be at least one of 10 clients, got a share of 0.04"),
    ],
)
def test_other_numbers_are_refused_in_words(malicious, words):
    with pytest.raises(SettingError) as error:
        how_many(malicious, 10)
    assert words in str(error.value)


def test_a_larger_set_holds_every_smaller_one():
    sets = [set(chosen(0, KEYS, ALL, n).tolist()) for n in range(101)]
    assert all(len(s) == n for n, s in enumerate(sets))
    assert all(a < b for a, b in itertools.pairwise(sets))


def test_the_set_is_sorted_and_fixed_by_the_seed():
    a = chosen(3, KEYS, ALL, 20)
    assert a.dtype == torch.int64 and torch.equal(a, a.sort().values)
    assert torch.equal(a, chosen(3, KEYS, ALL, 20)) and not torch.equal(a, chosen(4, KEYS, ALL, 20))
    assert torch.equal(a, chosen(3, KEYS, ALL.flip(0), 20))


@pytest.mark.parametrize("seed", range(5))
def test_the_set_holds_the_clients_with_the_smallest_random_numbers(seed):
    eligible = ALL[::3]
    draw = streams.bits(streams.keys(seed, "malicious", 0, KEYS[eligible.numpy()]), 0, 1)[:, 0]
    smallest = torch.from_numpy(np.argsort(draw, kind="stable")[:11])
    assert torch.equal(chosen(seed, KEYS, eligible, 11), eligible[smallest].sort().values)


def test_only_eligible_clients_are_chosen_and_the_absence_of_others_moves_nobody():
    a = chosen(0, KEYS, ALL, 20)
    gone = a[:5]
    rest = ALL[~torch.isin(ALL, gone)]
    b = chosen(0, KEYS, rest, 20)
    assert not torch.isin(b, gone).any() and torch.isin(a[5:], b).all()


def test_every_client_is_equally_likely():
    hits = np.zeros(100)
    for seed in range(2000):
        hits[chosen(seed, KEYS, ALL, 20).numpy()] += 1
    assert abs(hits / 2000 - 0.2).max() < 5 * (0.2 * 0.8 / 2000) ** 0.5


def test_more_than_can_take_part_are_refused():
    with pytest.raises(SettingError, match=r"malicious must be at most 3, the clients .*, got 4"):
        chosen(0, KEYS, torch.tensor([1, 2, 3]), 4)
