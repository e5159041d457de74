"""Noise that clients share out in a secure sum."""

import math

import numpy as np
import pytest
import torch

import idiolect as il
from idiolect.privacy.noise import Noise
from idiolect.privacy.plan import FEWEST_STEPS, SharedNoise
from idiolect.privacy.sums.grid import Grid

FEDERATION = il.data.load("digits", clients=10)


def run(**settings):
    own = {"rounds": 2, "privacy": "distributed(noise=1)", "secure_sums": "secagg(clip=0.5)"}
    model = lambda: il.models.make("linear", (1, 8, 8), 10)  # noqa: E731
    return il.run("fedavg", model, FEDERATION, **(own | settings))


def test_the_shares_of_the_fewest_survivors_have_the_noise_that_is_claimed():
    grid = Grid.fit(clip=0.5, clients=100, numbers=20_000, noise=1.5, least=8)
    shares = SharedNoise(1.5, 8, Noise("secret")).steps(8, grid, lambda: np.zeros(8, np.uint64))
    total = shares.sum(0).double() * grid.step
    assert float(total.std()) == pytest.approx(1.5 * 0.5, rel=0.03)
    assert shares.dtype == torch.int64


@pytest.mark.parametrize("clients", [2, 5])
def test_a_sum_of_rounded_shares_is_a_rounded_sum_of_gaussians_and_uniform_numbers(clients):
    """By its moments, of the exact law: those of the Gaussian and of n uniform numbers."""
    sigma, reach = float(FEWEST_STEPS), 200
    k = np.arange(-reach, reach + 1)

    edges = np.array([math.erf((i - 0.5) / sigma / 2**0.5) for i in range(-reach, reach + 2)])
    share = np.diff(edges) / 2
    total = share
    for _ in range(clients - 1):
        total = np.convolve(total, share, mode="same")
    # the variance of both: n (sigma^2 + 1/12)
    assert float((total * k**2).sum()) == pytest.approx(clients * (sigma**2 + 1 / 12), rel=1e-9)
    assert total.sum() == pytest.approx(1, abs=1e-12)
    fourth = float((total * k**4).sum())
    v, u = clients * sigma**2, clients / 12
    # fourth moments of N(0, v) plus n uniform numbers: 3 (v + u)^2 - n / 120
    assert fourth == pytest.approx(3 * (v + u) ** 2 - clients / 120, rel=1e-8)


def test_it_needs_secure_sums_and_they_need_it():
    with pytest.raises(il.SettingError, match="secure_sums must be given"):
        run(secure_sums=None)
    with pytest.raises(il.SettingError, match="privacy must be 'distributed' with secure_sums"):
        run(privacy="central(noise=1)")
    with pytest.raises(il.SettingError, match="how many share the noise must be known"):
        run(selection="poisson", sample=5)


def test_a_grid_that_is_too_coarse_for_the_noise_is_refused():
    coarse = Grid(1.0, 3, 16, 4, 100)
    with pytest.raises(il.SettingError, match="at least 4 steps"):
        SharedNoise(1.0, 10, Noise("secret")).steps(1, coarse, lambda: np.zeros(1, np.uint64))


def test_those_who_are_heard_more_often_have_spent_more():
    result = run(sample=4, rounds=4)
    rows = result.clients_table()
    heard = {row["client"]: row["bytes_up"] for row in rows}
    spent = {row["client"]: row["epsilon"] for row in rows}
    order = sorted(heard, key=heard.get)
    assert spent[order[0]] <= spent[order[-1]]
    assert result.summary()["privacy"]["sampling"] == "known"


def test_with_little_noise_it_is_the_plain_mean_of_clipped_messages():
    quiet = run(privacy="distributed(noise=0.001)", noise_source="seed").summary()
    plain = run(privacy=None).summary()
    assert quiet["loss"]["mean"] == pytest.approx(plain["loss"]["mean"], rel=1e-3)
