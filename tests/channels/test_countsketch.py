"""The count sketch: linear, unbiased, within its bound, and large coordinates are found."""

import numpy as np
import pytest
import torch

from idiolect.channels.sketch import CountSketch, heaviest, shared
from idiolect.core import streams


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow(s: CountSketch, x: np.ndarray) -> np.ndarray:
    """Charikar et al.'s ADD, coordinate by coordinate."""
    table = np.zeros((s.rows, s.columns))
    for i in range(s.rows):
        for j in range(s.n):
            table[i, s.place[i, j]] += int(s.sign[i, j]) * x[j]
    return table.ravel()


@pytest.mark.parametrize("rows", [1, 2, 5, 6])
def test_table_and_estimate_are_those_of_the_paper(rows):
    s, x = CountSketch(200, rows, 17), normal(3, 200)
    table = s.sketch(x)
    for k in range(3):
        assert np.allclose(table[k], slow(s, x[k].numpy()), atol=1e-12)
        seen = np.stack(
            [
                s.sign[i].numpy() * table[k].view(rows, 17)[i, s.place[i].long()].numpy()
                for i in range(rows)
            ]
        )
        assert np.allclose(s.estimate(table[k]), np.median(seen, axis=0), atol=1e-12)


def test_the_sketch_of_a_sum_is_the_sum_of_the_sketches():
    s, x = CountSketch(500, 5, 30), normal(4, 500)
    assert torch.allclose(s.sketch(x).sum(0), s.sketch(x.sum(0, keepdim=True))[0], atol=1e-12)
    assert torch.allclose(s.sketch(-2.5 * x), -2.5 * s.sketch(x), atol=1e-12)


def test_no_rows_give_no_tables():
    assert CountSketch(10, 3, 4).sketch(torch.zeros(0, 10)).shape == (0, 12)


def test_hashes_are_the_words_of_a_stream_and_the_same_for_ever():
    s = CountSketch(10_000, 2, 7, seed=3)
    word = int(streams.bits(streams.keys(3, "count sketch", 1), 0, 6)[0, 5])
    assert (
        int(s.place[1, 5]) == ((word >> 32) * 7) >> 32 and int(s.sign[1, 5]) == 2 * (word & 1) - 1
    )
    assert CountSketch(10, 1, 100).place[0].tolist() == [38, 73, 3, 9, 4, 4, 97, 16, 51, 59]
    counts = torch.bincount(s.place[0].long(), minlength=7)
    assert counts.shape == (7,) and ((counts - 10_000 / 7).abs() < 5 * (10_000 / 7) ** 0.5).all()
    assert abs(int(s.sign[0].long().sum())) < 500
    assert (s.place[0] == s.place[1]).double().mean() < 0.2
    assert shared(10, 1, 3, 0, "cpu") is shared(10, 1, 3, 0, "cpu")


def test_estimates_are_unbiased_over_the_seeds_with_the_stated_variance():
    x, seeds, columns = normal(60), 2000, 12
    one = torch.stack(
        [
            (s := CountSketch(60, 1, columns, seed)).estimate(s.sketch(x[None])[0])
            for seed in range(seeds)
        ]
    )
    spread = (x.square().sum() - x.square()) / columns  # exactly, for independent hashes and signs
    assert ((one.mean(0) - x).abs() < 4.5 * (spread / seeds).sqrt()).all()
    assert ((one - x).square().mean(0) / spread - 1).abs().max() < 0.25
    five = torch.stack(
        [
            (s := CountSketch(60, 5, columns, seed)).estimate(s.sketch(x[None])[0])
            for seed in range(500)
        ]
    )
    # The errors are symmetric, so their median is unbiased too.
    assert ((five.mean(0) - x).abs() < 4.5 * (spread / 500).sqrt()).all()
    assert ((five - x).square().mean(0) < spread).all()


@pytest.mark.parametrize("n, columns", [(1000, 40), (20_000, 800)])
def test_the_error_is_within_the_bound_with_the_stated_probability(n, columns):
    misses = []
    for seed in range(10):
        s, x = CountSketch(n, 5, columns, seed), normal(n, seed=seed)
        misses.append(
            ((s.estimate(s.sketch(x[None])[0]) - x).abs() > 3 * x.norm() / columns**0.5)
            .double()
            .mean()
        )
    assert np.mean(misses) <= 0.012


@pytest.mark.parametrize("rows", [4, 5])
def test_large_coordinates_among_small_ones_are_found(rows):
    x = 0.01 * normal(5000)
    at = torch.randperm(5000, generator=torch.Generator().manual_seed(1))[:20].sort().values
    x[at] = torch.sign(normal(20, seed=2)) * (1 + normal(20, seed=3).abs())
    s = CountSketch(5000, rows, 400)
    table = s.sketch(x[None])[0]
    assert torch.equal(s.heavy(table, 20), at)
    assert ((s.estimate(table) - x)[at].abs() < 3 * x.norm() / 20).all()


def test_of_equal_coordinates_the_first_are_taken():
    assert heaviest(torch.tensor([0.0, 1.0, -1.0, 1.0]), 2).tolist() == [1, 2]
    assert heaviest(torch.zeros(5), 3).tolist() == [0, 1, 2]
    assert len(heaviest(torch.tensor([float("nan"), 1.0, float("inf")]), 2)) == 2
