"""Methods whose loss looks at features: MOON, FedProto."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

import helpers
import idiolect as il
from methods.common import Case, N, assert_equals, every_batching, every_model, every_weighting
from reference import setting
from reference.fedproto import fedproto
from reference.moon import moon
from reference.setting import CLASSES, HIDDEN, ROUNDS, SAMPLE, assert_same, outcome, run


# -- MOON ------------------------------------------------------------------------------------------
@every_model
@every_batching
def test_moon_is_algorithm_1(federation, model, batching):
    method = il.Moon(lr=0.3, steps=4, mu=2.0, temperature=0.7)
    case = Case(federation, model, batching)
    expected = moon(*case.first, 0.3, [4] * N, mu=2.0, tau=0.7)
    assert_equals(run(method, federation, model, batching=batching), expected, federation, model)


@every_weighting
def test_moon_counted_in_passes_weighs_clients_as_fedavg_does(federation, weighting):
    case = Case(federation, "network", "epochs")
    expected = moon(*case.first, 0.3, case.draws.passes(2), mu=5.0, tau=0.5, weighting=weighting)
    method = il.Moon(lr=0.3, epochs=2, mu=5.0, weighting=weighting)
    result = run(method, federation, "network", batching="epochs")
    assert_equals(result, expected, federation, "network")


@every_model
def test_moon_with_mu_zero_is_fedavg(federation, model):
    contrast, average = (
        outcome(run(m, federation, model))
        for m in (il.Moon(mu=0, lr=0.3, steps=4), il.FedAvg(lr=0.3, steps=4))
    )
    contrast.pop("private last")
    assert_same(contrast, average)


def test_moon_on_a_model_of_one_layer_has_no_features_of_its_own_and_is_fedavg(federation):
    contrast, average = (
        outcome(run(m, federation, "logistic"))
        for m in (il.Moon(mu=5.0, lr=0.3, steps=4), il.FedAvg(lr=0.3, steps=4))
    )
    contrast.pop("private last")
    assert_same(contrast, average, 1e-12)


def test_moon_takes_the_features_of_the_layer_that_is_named(federation):
    """Layer 1 of the network is the ReLU, whose output the head is given."""
    named, head = (
        outcome(run(il.Moon(mu=2.0, steps=4, layer=layer), federation, "network"))
        for layer in ("1", "head")
    )
    assert_same(named, head)
    with pytest.raises(il.SettingError, match="layer"):
        run(il.Moon(layer="nowhere"), federation, "network")


# -- FedProto --------------------------------------------------------------------------------------
@every_model
@every_batching
@pytest.mark.parametrize("pull", ["classes", "samples"])
@pytest.mark.parametrize("weighting", ["samples", "equal"])
def test_fedproto_is_algorithm_1(federation, model, batching, pull, weighting):
    options = {"pull": pull, "weighting": weighting}
    method = il.FedProto(lr=0.3, steps=4, lam=2.0, **options)
    case = Case(federation, model, batching)
    expected = fedproto(*case.first, 0.3, [4] * N, lam=2.0, **options)
    assert_equals(run(method, federation, model, batching=batching), expected, federation, model)


def test_a_class_that_nobody_heard_has_pulls_at_nobody():
    """Of three classes, one has samples at the last two clients only."""
    federation = without_class(setting.make_federation(), 2, clients=range(5))
    cohort = setting.draws(federation).cohorts(1, SAMPLE)[0]
    method = il.FedProto(lr=0.3, steps=4, lam=2.0)
    result = run(method, federation, "network", rounds=1)
    known = outcome(result)["server known"]
    classes = {c for i in cohort for c in setting.draws(federation).data[i][1].tolist()}
    assert set(np.flatnonzero(known)) == classes
    case = Case(federation, "network")
    expected = fedproto(*case.first, 0.3, [4] * N, lam=2.0)
    assert_equals(run(method, federation, "network"), expected, federation, "network")


def without_class(federation, label, clients):
    """The same federation in which samples of a class at some clients are of class 0."""
    targets = federation.targets.clone()
    for split in ("train", "valid", "test"):
        bounds = federation.offsets[split].tolist()
        for k in clients:
            part = targets[bounds[k] : bounds[k + 1]]
            part[part == label] = 0
    return replace(federation, targets=targets)


@every_model
def test_fedproto_with_lambda_zero_has_the_models_of_local_for_those_heard(federation, model):
    """Everyone is heard."""
    alone, tied = (
        outcome(run(m, federation, model, sample=N))
        for m in (il.Local(lr=0.3, steps=4), il.FedProto(lam=0, lr=0.3, steps=4))
    )
    np.testing.assert_array_equal(tied["personal"], alone["personal"])


def test_fedproto_sends_a_vector_and_a_share_for_each_class(federation):
    result = run(il.FedProto(steps=2), federation, "network")
    assert result.summary()["values"]["up"] == ROUNDS * SAMPLE * CLASSES * (HIDDEN + 1)


def test_fedproto_needs_classes_and_a_linear_last_layer(federation):
    convolutions = nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 2), nn.Flatten())
    with pytest.raises(il.SettingError, match=r"must have a linear last layer .*, got Conv2d"):
        il.run(il.FedProto(), il.Task(convolutions), federation, rounds=1)
    with pytest.raises(il.SettingError, match=r"loss must be one of classes .* got 'mse'"):
        helpers.run(il.FedProto(), helpers.regression(), helpers.linear(outputs=1, loss="mse"))
    sums = il.Task(nn.Linear(6, 1), lambda outputs, targets: (outputs - targets).square())
    with pytest.raises(il.SettingError, match="needs one class for each sample"):
        helpers.run(il.FedProto(), helpers.regression(), sums)
