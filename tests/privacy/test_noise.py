"""Noise: its distribution, its grid, and where it comes from."""

import numpy as np
import pytest
import torch
from scipy import stats

from idiolect.core import streams
from idiolect.privacy.noise import Noise, grid_of, released


@pytest.mark.parametrize("source", ["secret", "seed"])
def test_numbers_are_standard_normal_and_independent(source):
    x = Noise(source).normal(2, 100_001, "x", 0, streams.name_keys(["a", "b"]))
    for row in x:
        assert stats.kstest(row.numpy(), "norm").pvalue > 1e-4
        assert abs(float(row.std()) - 1) < 0.01
    assert abs(np.corrcoef(x.numpy())[0, 1]) < 0.02
    halves = x[0, :100_000].reshape(2, -1).numpy()  # pairs of Box and Muller
    assert abs(np.corrcoef(halves)[0, 1]) < 0.02
    assert abs(np.corrcoef(np.abs(halves))[0, 1]) < 0.02


def test_secret_noise_never_repeats():
    noise = Noise("secret")
    assert not torch.equal(noise.normal(1, 8, "mean w", 3), noise.normal(1, 8, "mean w", 3))
    assert noise.word("poisson sampling", 3) != noise.word("poisson sampling", 3)


def test_noise_of_the_seed_repeats_and_differs_by_round_part_and_client():
    noise = Noise("seed", 5)
    x = noise.normal(1, 8, "mean w", 3)
    assert torch.equal(x, noise.normal(1, 8, "mean w", 3))
    for other in (
        Noise("seed", 6).normal(1, 8, "mean w", 3),
        noise.normal(1, 8, "mean w", 4),
        noise.normal(1, 8, "mean c", 3),
    ):
        assert not bool((x == other).any())
    clients = noise.normal(3, 8, "message w", 0, streams.name_keys(["a", "b", "c"]))
    assert len({float(v) for v in clients.flatten()}) == 24


def test_a_client_has_the_same_noise_whoever_is_beside_it():
    noise = Noise("seed", 5)
    together = noise.normal(2, 8, "message w", 0, streams.name_keys(["a", "b"]))
    alone = noise.normal(1, 8, "message w", 0, streams.name_keys(["b"]))
    assert torch.equal(together[1:], alone)


@pytest.mark.parametrize("sigma", [1e-6, 0.3, 1.0, 700.0])
def test_what_is_released_lies_on_the_grid_whatever_the_secret_is(sigma):
    secret = torch.randn(10_000, dtype=torch.float64) * sigma
    out = released(secret.clone(), Noise("secret").normal(1, 10_000), sigma)
    steps = out / grid_of(sigma)
    assert torch.equal(steps, steps.round())
    assert float((out - secret).std()) == pytest.approx(sigma, rel=0.05)
    assert 2.0**-21 < grid_of(sigma) / sigma <= 2.0**-20


def test_no_random_bit_can_make_a_number_that_is_not_finite():
    for byte in (b"\x00", b"\xff"):
        noise = Noise("secret", entropy=lambda n, byte=byte: byte * n)
        assert bool(noise.normal(1, 4).isfinite().all())
