"""Random numbers keyed by (seed, purpose, round, client): no state, no collisions, fixed bits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from idiolect.core import streams

NAMES = streams.name_keys([f"client {i}" for i in range(2000)])


def test_the_generator_is_splitmix64():
    """The published first outputs for seed 1234567 (Vigna's reference code).

    The state advances by the golden gamma, then is mixed.
    """
    assert streams.bits(np.array([1234567], dtype=np.uint64), 0, 3)[0].tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


GOLDEN = {
    "bits": [17952118132178048851, 12891017004028282642],
    "uniform": [0.9731862739811927, 0.698823432065752],
    "normal": [-0.8502385822358985, -2.552406133175075, -0.2719722834758337],
    "names": [13020603013274838756, 6274184493298112695, 5301736039029610835],
}


def test_the_numbers_are_those_of_every_earlier_version():
    """A changed generator would change every published figure: change these on purpose only."""
    key = streams.keys(7, "golden", 3, streams.name_keys(["a"]))
    assert streams.bits(key, 0, 2)[0].tolist() == GOLDEN["bits"]
    assert streams.uniform(key, 2)[0].tolist() == GOLDEN["uniform"]
    assert streams.normal(key, 3)[0].tolist() == pytest.approx(GOLDEN["normal"], rel=1e-12)
    assert streams.name_keys(["", "client 17", "ß"]).tolist() == GOLDEN["names"]


def test_no_two_streams_meet():
    """Seeds, purposes, rounds and clients all lead to different keys."""
    found = [
        streams.keys(seed, purpose, round, NAMES[:100])
        for seed in (0, 1, 2, 3, 2**32)
        for purpose in (
            "batch",
            "batch noise",
            "personal",
            "personal noise",
            "select",
            "init",
            "held out",
            "projection",
        )
        for round in (0, 1, 2, 10, 199)
    ]
    words = np.concatenate(found)
    assert len(np.unique(words)) == len(words) == 5 * 8 * 5 * 100


def test_streams_do_not_overlap_in_their_first_numbers():
    words = streams.bits(streams.keys(0, "batch", 0, NAMES), 0, 200)
    assert len(np.unique(words)) == words.size


@given(st.integers(0, 2**64 - 1), st.integers(0, 1000), st.integers(0, 500), st.integers(1, 50))
def test_a_later_part_of_a_stream_is_a_slice_of_it(key, round, start, count):
    k = streams.keys(key, "batch", round)
    whole = streams.bits(k, 0, start + count)
    assert np.array_equal(streams.bits(k, start, count), whole[:, start:])


def test_a_client_draws_the_same_in_any_company():
    together = streams.normal(streams.keys(5, "x", 1, NAMES), 9)
    shuffled = np.random.default_rng(0).permutation(len(NAMES))[:50]
    assert np.array_equal(
        streams.normal(streams.keys(5, "x", 1, NAMES[shuffled]), 9), together[shuffled]
    )
    assert np.array_equal(streams.normal(streams.keys(5, "x", 1, NAMES[7:8]), 9)[0], together[7])


def test_a_clients_key_is_its_name_not_its_number():
    assert streams.name_keys(["b"])[0] == streams.name_keys(["a", "b"])[1]


def test_uniform_numbers_are_uniform():
    x = streams.uniform(streams.keys(0, "uniform", 0, NAMES), 500).ravel()
    assert x.min() >= 0 and x.max() < 1
    assert stats.kstest(x, "uniform").pvalue > 1e-3
    assert np.corrcoef(x[:-1], x[1:])[0, 1] == pytest.approx(0, abs=0.005)


def test_normal_numbers_have_the_moments_of_the_normal_law():
    x = streams.normal(streams.keys(0, "normal", 0, NAMES), 501).ravel()
    assert np.isfinite(x).all()
    assert x.mean() == pytest.approx(0, abs=0.005) and x.std() == pytest.approx(1, abs=0.005)
    assert stats.skew(x) == pytest.approx(0, abs=0.01) and stats.kurtosis(x) == pytest.approx(
        0, abs=0.02
    )
    assert stats.kstest(x, "norm").pvalue > 1e-3


def test_clients_are_not_correlated():
    x = streams.normal(streams.keys(0, "normal", 0, NAMES), 400)
    off = np.corrcoef(x[:300])[~np.eye(300, dtype=bool)]
    assert abs(off).max() < 6 / 400**0.5 and off.std() == pytest.approx(400**-0.5, rel=0.05)


def test_rounds_are_not_correlated():
    a, b = (streams.normal(streams.keys(0, "normal", r, NAMES), 100).ravel() for r in (0, 1))
    assert np.corrcoef(a, b)[0, 1] == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 100, 2**31])
def test_whole_numbers_below_n_are_uniform(n):
    words = streams.bits(streams.keys(0, "below", 0, NAMES), 0, 100)
    drawn = streams.below(words, np.full((len(NAMES), 1), n))
    assert drawn.min() >= 0 and drawn.max() < n
    if n <= 100:
        assert stats.chisquare(np.bincount(drawn.ravel(), minlength=n)).pvalue > 1e-3 or n == 1


def test_normal_numbers_continue_where_they_were():
    key = streams.keys(1, "row")
    assert np.array_equal(streams.normal(key, 7, start=4)[0], streams.normal(key, 11)[0, 4:])
