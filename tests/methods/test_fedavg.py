"""Local, FedAvg and FedProx are their algorithms."""

import numpy as np
import pytest

import idiolect as il
from methods.common import (
    Case,
    N,
    assert_equals,
    every_batching,
    every_model,
    fedavg_reference,
)
from reference import setting
from reference.fedprox import fedprox, fedprox_soft
from reference.local import local
from reference.setting import MODELS, ROUNDS, SAMPLE, run
from reference.softmax import Restrained


# -- Local -----------------------------------------------------------------------------------------
@every_model
@every_batching
def test_local_is_sgd_at_each_client_alone(federation, model, batching):
    draws = setting.draws(federation, batching)
    result = run(il.Local(lr=0.3, steps=3), federation, model, batching=batching)
    assert_equals(
        result,
        local(
            MODELS[model][1],
            draws.data,
            setting.start(model),
            draws.batches,
            [0.3] * ROUNDS,
            [3] * N,
        ),
        federation,
        model,
    )


def test_local_passes_over_each_clients_own_data(federation):
    draws = setting.draws(federation, "epochs")
    result = run(il.Local(lr=0.3, epochs=2), federation, batching="epochs")
    expected = local(
        MODELS["logistic"][1],
        draws.data,
        setting.start(),
        draws.batches,
        [0.3] * ROUNDS,
        draws.passes(2),
    )
    assert len(set(expected["gradients"])) > 2
    assert_equals(result, expected, federation)


# -- FedAvg ----------------------------------------------------------------------------------------
@every_model
@every_batching
@pytest.mark.parametrize("weighting", ["samples", "equal", "unbiased"])
def test_fedavg_is_its_algorithm(federation, model, batching, weighting):
    result = run(
        il.FedAvg(lr=0.3, steps=4, weighting=weighting), federation, model, batching=batching
    )
    assert_equals(
        result,
        fedavg_reference(federation, batching, model, weighting=weighting),
        federation,
        model,
    )


@every_batching
@pytest.mark.parametrize("weighting", ["samples", "equal", "unbiased"])
def test_fedavg_counted_in_passes_takes_as_many_steps_as_each_client_has_batches(
    federation, batching, weighting
):
    steps = setting.draws(federation, batching).passes(2)
    result = run(il.FedAvg(lr=0.3, epochs=2, weighting=weighting), federation, batching=batching)
    assert_equals(
        result, fedavg_reference(federation, batching, steps=steps, weighting=weighting), federation
    )


def test_fedavg_with_weight_decay_or_clipped_gradients_is_its_algorithm(federation):
    by_hand = MODELS["logistic"][1]
    for settings, restrained in (
        ({"weight_decay": 0.2}, {"decay": 0.2}),
        ({"clip": 0.4}, {"clip": 0.4}),
    ):
        result = run(il.FedAvg(lr=0.3, steps=4), federation, **settings)
        assert_equals(
            result,
            fedavg_reference(federation, by_hand=Restrained(by_hand, **restrained)),
            federation,
        )


# -- FedProx ---------------------------------------------------------------------------------------
def fedprox_reference(federation, batching, model="logistic", steps=None, weighting="samples"):
    draws = setting.draws(federation, batching)
    cohorts = draws.cohorts(ROUNDS, SAMPLE)
    rates = [0.3] * ROUNDS
    by_hand = MODELS[model][1]
    start = setting.start(model)
    return fedprox(
        by_hand,
        draws.data,
        start,
        cohorts,
        draws.batches,
        rates,
        steps or [4] * N,
        weighting,
        mu=0.7,
    )


@every_model
@every_batching
def test_fedprox_is_its_algorithm(federation, model, batching):
    result = run(il.FedProx(lr=0.3, steps=4, mu=0.7), federation, model, batching=batching)
    assert_equals(result, fedprox_reference(federation, batching, model), federation, model)


@pytest.mark.parametrize("weighting", ["samples", "equal", "unbiased"])
def test_fedprox_counted_in_passes_is_its_algorithm(federation, weighting):
    result = run(
        il.FedProx(lr=0.3, epochs=2, mu=0.7, weighting=weighting), federation, batching="epochs"
    )
    steps = setting.draws(federation, "epochs").passes(2)
    assert_equals(
        result,
        fedprox_reference(federation, "epochs", steps=steps, weighting=weighting),
        federation,
    )


def soft_reference(federation, batching="replace", model="logistic", weighting="unbiased", eta=1.0):
    case = Case(federation, model, batching)
    expected = fedprox_soft(
        *case.first,
        last_batches=case.last_batches,
        rates=[0.3] * ROUNDS,
        last_rate=0.3,
        steps=4,
        last_steps=3,
        weighting=weighting,
        lam=0.7,
        eta=eta,
    )
    return expected | {"deployment": np.full(N, 3)}


@every_model
@every_batching
def test_soft_fedprox_is_algorithm_3_with_both_stages(federation, model, batching):
    result = run(
        il.FedProxSoft(lr=0.3, steps=4, lam=0.7, final_steps=3),
        federation,
        model,
        batching=batching,
    )
    assert_equals(result, soft_reference(federation, batching, model), federation, model)


@pytest.mark.parametrize(
    ("weighting", "eta"), [("unbiased", 0.7), ("samples", 0.7), ("equal", 1.3)]
)
def test_soft_fedprox_takes_the_aggregation_step_it_is_told(federation, weighting, eta):
    method = il.FedProxSoft(
        lr=0.3, steps=4, lam=0.7, final_steps=3, server_rate=eta, weighting=weighting
    )
    assert_equals(
        run(method, federation),
        soft_reference(federation, weighting=weighting, eta=eta),
        federation,
    )
