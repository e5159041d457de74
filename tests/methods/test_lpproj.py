"""lp-proj is Algorithm 1 of its paper, with the departures of its public code."""

from dataclasses import replace

import numpy as np
import pytest

import idiolect as il
from methods.common import (
    N,
    an_lpproj,
    assert_equals,
    every_batching,
    every_model,
    fedavg_reference,
    lpproj_reference,
)
from reference import setting
from reference.setting import ROUNDS, outcome, run


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@pytest.mark.parametrize("R", [1, 3])
@pytest.mark.parametrize("fresh", [False, True])
def test_lpproj_is_algorithm_1(federation, p, R, fresh):
    result = run(an_lpproj(p=p, alternations=R, fresh=fresh, server_rate=0.7), federation)
    assert_equals(result, lpproj_reference(federation, p=p, R=R, fresh=fresh, beta=0.7), federation)


@every_model
@every_batching
@pytest.mark.parametrize("p", [1, 2])
def test_lpproj_is_algorithm_1_for_every_model_and_batching(federation, model, batching, p):
    result = run(an_lpproj(p=p, alternations=2), federation, model, batching=batching)
    assert_equals(
        result, lpproj_reference(federation, batching, model, p=p, R=2), federation, model
    )


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
@every_model
def test_lpproj_stops_each_client_where_its_squared_gradient_is_small(federation, p, model):
    expected = lpproj_reference(federation, model=model, p=p, R=3, nu=0.1, steps=8, lam=0.1)
    assert (
        expected["gradients"].max() < ROUNDS * 3 * 8 and len(set(expected["gradients"])) > 4
    )  # all stop early, not all alike
    result = run(an_lpproj(p=p, alternations=3, nu=0.1, steps=8, lam=0.1), federation, model)
    assert_equals(result, expected, federation, model)


@pytest.mark.parametrize("p", [1, 1.5, 2, 3])
def test_lpproj_with_the_public_codes_w_step_follows_the_norms_gradient(federation, p):
    result = run(an_lpproj(p=p, alternations=3, w_step="code", fresh=True), federation)
    assert_equals(
        result, lpproj_reference(federation, p=p, R=3, w_step="code", fresh=True), federation
    )


@pytest.mark.parametrize("p", [1, 2])
def test_lpproj_has_a_step_an_accuracy_and_a_batch_of_each_round(federation, p):
    """Theorems 14 and 15: η_t, ν_t and D_t over rounds, each its own; the other rate stays."""
    sizes = [4, 6, 8]  # D_t

    def batches(t, k):
        return replace(setting.draws(federation), batch=sizes[t]).batches(t, k)

    expected = lpproj_reference(
        federation,
        p=p,
        R=2,
        steps=30,
        rates=[0.3 / (1 + 0.5 * t) for t in range(ROUNDS)],
        nu=[0.2 / (1 + t) ** 2 for t in range(ROUNDS)],
        batches=batches,
    )
    method = an_lpproj(p=p, alternations=2, steps=30, nu=0.2)
    schedule = "lr=inverse:0.5 + nu=inverse:1:2 + batch=grow:0.5"
    result = run(method, federation, batch=4, schedule=schedule)
    assert_equals(result, expected, federation)


def test_lpproj_can_weigh_clients_by_their_samples(federation):
    result = run(an_lpproj(p=2, weighting="samples", server_rate=0.7), federation)
    assert_equals(
        result, lpproj_reference(federation, p=2, weighting="samples", beta=0.7), federation
    )


@pytest.mark.parametrize("model", ["logistic", "network"])
def test_the_shared_point_of_lpproj_can_start_at_the_projection_of_the_common_start(
    federation, model
):
    result = run(an_lpproj(p=2, w_start="x0"), federation, model)
    expected = lpproj_reference(federation, model=model, p=2, w_start="x0")
    assert_equals(result, expected, federation, model)


def test_lpproj_starts_each_personal_model_at_its_own_point_if_asked(federation):
    x = outcome(run(an_lpproj(init="own"), federation, rounds=0))["personal"]
    assert len(np.unique(x, axis=0)) == N
    np.testing.assert_array_equal(
        x, outcome(run(il.Local(init="own"), federation, rounds=0))["personal"]
    )


@pytest.mark.parametrize("kernel", ["stacked", "vmap", "rows"])
def test_every_kernel_gives_the_algorithm_where_clients_take_different_numbers_of_steps(
    federation, kernel
):
    steps = setting.draws(federation, "epochs").passes(2)
    result = run(
        il.FedAvg(lr=0.3, epochs=2), federation, "network", batching="epochs", kernel=kernel
    )
    assert_equals(
        result,
        fedavg_reference(federation, "epochs", "network", steps=steps),
        federation,
        "network",
    )
    result = run(an_lpproj(p=2, nu=0.1, lam=0.1), federation, "network", kernel=kernel)
    assert_equals(
        result,
        lpproj_reference(federation, model="network", p=2, nu=0.1, lam=0.1),
        federation,
        "network",
    )
