"""Methods for one shared model: FedDyn, FedNova, SlowMo, FedSplit, Byz-VR-MARINA."""

import numpy as np
import pytest

import idiolect as il
from methods.common import (
    Case,
    N,
    assert_equals,
    coins,
    every_batching,
    every_model,
    every_weighting,
    fedavg_reference,
)
from reference import setting
from reference.byzvrmarina import byzvrmarina
from reference.feddyn import feddyn
from reference.fednova import fednova
from reference.fedsplit import fedsplit
from reference.setting import ROUNDS, SAMPLE, assert_same, outcome, run
from reference.slowmo import SlowMomentum


# -- FedDyn ----------------------------------------------------------------------------------------
@every_model
@every_batching
@pytest.mark.parametrize("epochs", [0, 2])
def test_feddyn_is_algorithm_1(federation, model, batching, epochs):
    case = Case(federation, model, batching)
    steps = case.draws.passes(epochs) if epochs else [4] * N
    expected = feddyn(*case.first, 0.2, steps, 0.3)
    method = il.FedDyn(lr=0.2, steps=4, epochs=epochs, alpha=0.3)
    assert_equals(run(method, federation, model, batching=batching), expected, federation, model)


def test_the_first_round_of_feddyn_is_fedprox_with_a_longer_server_step(federation):
    """No client has a gradient yet, and h holds the share of the clients that were heard."""
    dyn = outcome(run(il.FedDyn(lr=0.2, steps=4, alpha=0.3), federation, rounds=1))
    prox = il.FedProx(lr=0.2, steps=4, mu=0.3, weighting="equal")
    longer = outcome(run(prox, federation, rounds=1, server_lr=1 + SAMPLE / N))
    np.testing.assert_allclose(dyn["server w"], longer["server w"], rtol=0, atol=1e-12)


# -- FedNova ---------------------------------------------------------------------------------------
@every_model
@every_batching
@pytest.mark.parametrize("epochs", [0, 2])
def test_fednova_averages_changes_per_step(federation, model, batching, epochs):
    case = Case(federation, model, batching)
    steps = case.draws.passes(epochs) if epochs else [4] * N
    method = il.FedNova(lr=0.3, steps=4, epochs=epochs)
    result = run(method, federation, model, batching=batching)
    assert_equals(result, fednova(*case.first, 0.3, steps), federation, model)
    assert result.summary()["values"]["up"] == ROUNDS * SAMPLE * (len(case.start) + 1)


@every_model
def test_fednova_whose_clients_take_as_many_steps_is_fedavg(federation, model):
    nova, shared = (
        outcome(run(m, federation, model))
        for m in (il.FedNova(lr=0.3, steps=4, epochs=0), il.FedAvg(lr=0.3, steps=4))
    )
    np.testing.assert_allclose(nova["server w"], shared["server w"], rtol=0, atol=1e-12)


# -- SlowMo ----------------------------------------------------------------------------------------
@every_model
@every_batching
@every_weighting
def test_slowmo_is_algorithm_1(federation, model, batching, weighting):
    server = SlowMomentum([0.3] * ROUNDS, alpha=0.8, beta=0.6)
    expected = fedavg_reference(federation, batching, model, weighting=weighting, server=server) | {
        "server u": server.u
    }
    method = il.SlowMo(lr=0.3, steps=4, beta=0.6, server_rate=0.8, weighting=weighting)
    assert_equals(run(method, federation, model, batching=batching), expected, federation, model)


def test_slowmo_measures_its_momentum_in_the_learning_rate_of_the_round(federation):
    rates = [0.3 * 0.5**t for t in range(ROUNDS)]
    server = SlowMomentum(rates, alpha=1, beta=0.6)
    expected = fedavg_reference(federation, rates=rates, server=server) | {"server u": server.u}
    method = il.SlowMo(lr=0.3, steps=4, beta=0.6)
    assert_equals(run(method, federation, schedule="exp:0.5"), expected, federation)


def test_slowmo_at_a_constant_rate_is_fedavg_with_server_momentum(federation):
    slow = outcome(run(il.SlowMo(lr=0.3, steps=4, beta=0.6, server_rate=0.8), federation))
    momentum = {"server_lr": 0.8, "server_options": "momentum=0.6"}
    shared = outcome(run(il.FedAvg(lr=0.3, steps=4), federation, **momentum))
    np.testing.assert_allclose(slow["server w"], shared["server w"], rtol=0, atol=1e-12)


def test_slowmo_without_momentum_is_fedavg(federation):
    slow, shared = (
        outcome(run(m, federation))
        for m in (il.SlowMo(lr=0.3, steps=4, beta=0), il.FedAvg(lr=0.3, steps=4))
    )
    slow.pop("server u")
    assert_same(slow, shared, 1e-12)


# -- FedSplit --------------------------------------------------------------------------------------
@every_model
@every_batching
@pytest.mark.parametrize("epochs", [0, 2])
def test_fedsplit_is_algorithm_1(federation, model, batching, epochs):
    case = Case(federation, model, batching)
    steps = case.draws.passes(epochs) if epochs else [4] * N
    expected = fedsplit(*case.about, ROUNDS, case.batches, 0.1, steps, 0.7)
    method = il.FedSplit(lr=0.1, steps=4, epochs=epochs, s=0.7)
    assert_equals(run(method, federation, model, batching=batching), expected, federation, model)


def test_fedsplit_ends_at_the_optimum_where_fedavg_with_many_local_steps_does_not(federation):
    """The gradient of the mean loss of all clients, at the shared model."""
    case = Case(federation, batching="full")
    norms = []
    for method in (
        il.FedSplit(lr=0.2, steps=30, s=1),
        il.FedAvg(lr=0.2, steps=30, weighting="equal"),
    ):
        settings = {"batching": "full", "weight_decay": 0.1, "sample": 0, "rounds": 60}
        w = outcome(run(method, federation, **settings))["server w"]
        gradients = [case.model.gradient(w, X, y) + 0.1 * w for X, y in case.data]
        norms.append(np.linalg.norm(np.mean(gradients, axis=0)))
    assert norms[0] < 1e-3 < 1e-2 < norms[1]


# -- Byz-VR-MARINA ---------------------------------------------------------------------------------
@every_model
@every_batching
@pytest.mark.parametrize("p", [0.0, 0.5])
def test_byz_vr_marina_is_algorithm_1(federation, model, batching, p):
    case = Case(federation, model, batching)
    anchors = [t == 0 or coins("marina", t, 1)[0] < p for t in range(6)]
    assert p == 0 or 1 < sum(anchors) < 6
    for rule, combine in (
        ("mean", lambda sent: np.mean(sent, axis=0)),
        ("median", lambda sent: np.median(sent, axis=0)),
    ):
        expected = byzvrmarina(*case.about, anchors, case.batches, 0.3, 2, combine)
        result = run(
            il.ByzVrMarina(lr=0.3, p=p, anchor_batches=2),
            federation,
            model,
            batching=batching,
            rounds=6,
            rule=rule,
        )
        assert_equals(result, expected, federation, model)


def test_byz_vr_marina_on_all_data_is_gradient_descent_on_the_mean_loss(federation):
    case = Case(federation, batching="full")
    w = setting.start()
    for _ in range(4):
        w = w - 0.3 * np.mean([case.model.gradient(w, X, y) for X, y in case.data], axis=0)
    result = run(il.ByzVrMarina(lr=0.3), federation, batching="full", rounds=4)
    np.testing.assert_allclose(outcome(result)["server w"], w, rtol=0, atol=1e-12)
