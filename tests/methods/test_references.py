"""The references themselves: gradients are slopes, draws are what they claim to be."""

import numpy as np
import pytest

from methods.common import LOGISTIC, coins, every_model, trials
from reference import setting
from reference.perfedavg import hessian_product
from reference.regression import Linear
from reference.setting import BATCH, FEATURES, MODELS, SIZES


# -- losses and mini-batches -----------------------------------------------------------------------
@every_model
def test_the_gradient_written_by_hand_is_the_slope_of_the_loss(federation, model):
    by_hand = MODELS[model][1]
    X, y = setting.draws(federation).data[3]
    x = setting.start(model)
    slope = [
        (by_hand.loss(x + e, X, y) - by_hand.loss(x - e, X, y)) / 2e-6
        for e in 1e-6 * np.eye(len(x))
    ]
    np.testing.assert_allclose(by_hand.gradient(x, X, y), slope, atol=1e-8)


def test_a_pass_over_the_data_draws_every_sample_once(federation):
    draws = setting.draws(federation, "epochs")
    for i, n in enumerate(SIZES):
        batches = draws.batches(0, i)
        for _ in range(2):
            drawn = np.concatenate([next(batches) for _ in range(draws.passes(1)[i])])
            assert sorted(drawn) == list(range(n))


def test_mini_batches_with_replacement_are_full_and_reach_every_sample(federation):
    for i, n in enumerate(SIZES):
        batches = setting.draws(federation).batches(0, i)
        drawn = [next(batches) for _ in range(60)]
        assert {len(b) for b in drawn} == {BATCH} and set(np.concatenate(drawn)) == set(range(n))
        assert len({tuple(b) for b in drawn}) == 60


# -- second derivatives and coins ------------------------------------------------------------------
def test_the_hessian_written_by_hand_is_the_slope_of_the_gradient(federation):
    X, y = setting.draws(federation).data[3]
    x = setting.start()
    rng = np.random.default_rng(0)
    v = rng.normal(size=len(x))
    target = rng.normal(size=len(y))
    slope = (LOGISTIC.gradient(x + 1e-5 * v, X, y) - LOGISTIC.gradient(x - 1e-5 * v, X, y)) / 2e-5
    np.testing.assert_allclose(hessian_product(LOGISTIC, x, v, X, y), slope, atol=1e-8)
    model = Linear()
    x = x[: FEATURES + 1]
    v = v[: FEATURES + 1]
    slope = [
        (model.loss(x + e, X, target) - model.loss(x - e, X, target)) / 2e-5
        for e in 1e-5 * np.eye(len(x))
    ]
    np.testing.assert_allclose(model.gradient(x, X, target), slope, atol=1e-8)
    slope = (model.gradient(x + v, X, target) - model.gradient(x - v, X, target)) / 2
    np.testing.assert_allclose(model.hessian_product(x, v, X, target), slope, atol=1e-12)


def test_shared_coins_are_uniform_and_their_waiting_times_geometric():
    u = np.array([coins("l2gd", t, 2) for t in range(4000)])
    assert abs(u.mean() - 0.5) < 0.01 and abs(np.corrcoef(u.T)[0, 1]) < 0.05
    for p in (0.2, 0.7):
        k = np.array([trials(v, p) for v in u[:, 0]])
        assert k.mean() == pytest.approx(1 / p, rel=0.05) and np.mean(k == 1) == pytest.approx(
            p, abs=0.03
        )
