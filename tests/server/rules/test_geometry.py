"""Distances between rows are exact where one matrix product alone is not."""

import numpy as np
import torch

from idiolect.server.rules.geometry import squared_distances


def exact(x):
    return ((x[:, None] - x[None]) ** 2).sum(-1)


def test_distances_survive_cancellation():
    """Two rows a thousandth apart and a million away: the product alone says 0 or noise."""
    g = np.random.default_rng(0)
    x = g.normal(size=(9, 40))
    x[7:] = 1e6 + g.normal(size=40)
    x[8] += 1e-3 * g.normal(size=40)
    found = squared_distances(torch.tensor(x))
    np.testing.assert_allclose(found.numpy(), exact(x), rtol=1e-11)
    assert torch.equal(found, found.T)
    assert (found.diag() == 0).all()


def test_distances_of_models_far_from_zero_are_exact():
    x = 1e5 + 1e-4 * np.random.default_rng(0).normal(size=(6, 70_000))
    found = squared_distances(torch.tensor(x))
    np.testing.assert_allclose(found.numpy(), exact(x), rtol=1e-10)
