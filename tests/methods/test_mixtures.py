"""Methods whose clients mix, or choose between, models: APFL, FedALA, IFCA."""

import numpy as np
import pytest
import torch
from torch import nn

import idiolect as il
from idiolect.core import streams
from methods.common import (
    PARTS,
    Case,
    N,
    assert_equals,
    every_batching,
    every_model,
    every_weighting,
)
from reference import setting
from reference.apfl import apfl
from reference.fedala import fedala
from reference.ifca import ifca
from reference.setting import ROUNDS, SAMPLE, outcome, run, start, task

HEAD = PARTS["network", "output"]


# -- APFL ------------------------------------------------------------------------------------------
@every_model
@every_batching
@pytest.mark.parametrize("alpha_lr", [0.0, 0.4])
def test_apfl_is_algorithm_1_with_and_without_its_adaptive_weight(
    federation, model, batching, alpha_lr
):
    fields = {"lr": 0.2, "steps": 4, "alpha": 0.3, "alpha_lr": alpha_lr}
    expected = apfl(*Case(federation, model, batching).first, **fields)
    result = run(il.Apfl(**fields), federation, model, batching=batching)
    assert_equals(result, expected, federation, model)


@every_weighting
def test_apfl_weighs_the_shared_models_as_it_is_told(federation, weighting):
    fields = {"lr": 0.2, "steps": 4, "alpha": 0.3, "alpha_lr": 0.4, "weighting": weighting}
    assert_equals(
        run(il.Apfl(**fields), federation), apfl(*Case(federation).first, **fields), federation
    )


def test_the_weight_of_apfl_stays_between_the_two_models(federation):
    alpha = outcome(run(il.Apfl(alpha_lr=1e3), federation))["private alpha"]
    heard = np.unique(np.concatenate(setting.draws(federation).cohorts(ROUNDS, SAMPLE)))
    assert set(alpha[heard].flatten()) <= {0.0, 1.0} | {0.5} and alpha[heard].std() > 0


def test_apfl_with_alpha_1_is_local_beside_fedavg(federation):
    """The sampled clients', as in the paper."""
    amounts = {"lr": 0.2, "steps": 4}
    mixed = outcome(run(il.Apfl(**amounts, alpha=1, alpha_lr=0), federation, sample=N))
    alone = outcome(run(il.Local(**amounts), federation, sample=N))
    shared = outcome(run(il.FedAvg(**amounts, weighting="equal"), federation, sample=N))
    np.testing.assert_allclose(mixed["personal"], alone["personal"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(mixed["server w"], shared["server w"], rtol=0, atol=1e-12)


def test_apfl_with_alpha_0_is_fedavg(federation):
    amounts = {"lr": 0.2, "steps": 4}
    mixed = outcome(run(il.Apfl(**amounts, alpha=0, alpha_lr=0), federation))
    shared = outcome(run(il.FedAvg(**amounts, weighting="equal"), federation))
    np.testing.assert_allclose(mixed["personal"], shared["personal"], rtol=0, atol=1e-12)


# -- FedALA ----------------------------------------------------------------------------------------
@every_batching
@every_weighting
def test_fedala_learns_the_weights_of_the_top_layers(federation, batching, weighting):
    case = Case(federation, "network", batching)
    fields = {"lr": 0.3, "steps": 4, "weight_lr": 2.0, "weight_steps": 2, "first_steps": 3}
    expected = fedala(
        *case.about,
        HEAD,
        *(case.cohorts, case.batches, case.last_batches),
        **fields,
        weighting=weighting,
        later=lambda t, i: case.batches(t, i, "batch 1"),
    )
    assert np.ptp(np.concatenate(expected["private weights"])) > 0.1  # something is learned
    method = il.FedAla(**fields, weighting=weighting)
    result = run(method, federation, "network", batching=batching)
    assert_equals(result, expected, federation, "network")


def test_fedala_that_learns_no_weight_is_fedavg(federation):
    """Where W is learned, other mini-batches are drawn, so all data are in each."""
    amounts = {"lr": 0.2, "steps": 4}
    ala, shared = (
        outcome(run(m, federation, "network", batching="full"))
        for m in (il.FedAla(**amounts, weight_lr=0), il.FedAvg(**amounts))
    )
    for name in ("server w", "personal"):
        np.testing.assert_array_equal(ala[name], shared[name])


# -- IFCA ------------------------------------------------------------------------------------------
def starts(model, clusters):
    """The models of all groups before round 0: the common start, and new draws."""
    keys = streams.keys(setting.SEED, "cluster", 0, np.arange(1, clusters, dtype=np.uint64))
    made = task(model).under(seed=setting.SEED, dtype=torch.float64)
    return [start(model), *(made.draw(keys).numpy() if clusters > 1 else [])]


@every_model
@every_batching
@pytest.mark.parametrize("clusters", [1, 3])
def test_ifca_is_algorithm_1_with_model_averaging(federation, model, batching, clusters):
    case = Case(federation, model, batching)
    expected = ifca(
        *(case.model, case.data, starts(model, clusters), case.cohorts, case.batches),
        case.last_batches,
        lr=0.3,
        steps=4,
    )
    method = il.Ifca(clusters=clusters, lr=0.3, steps=4)
    result = run(method, federation, model, batching=batching)
    assert_equals(result, expected, federation, model)
    values = result.summary()["values"]
    d = len(start(model))
    assert values["up"] == ROUNDS * SAMPLE * (d + clusters)


@pytest.mark.parametrize("weighting", ["samples", "equal"])
def test_ifca_compares_the_models_on_several_mini_batches(federation, weighting):
    case = Case(federation, "network")
    fields = {"lr": 0.3, "steps": 4, "choice_batches": 3, "weighting": weighting}
    models = starts("network", 2)
    expected = ifca(
        *(case.model, case.data, models, case.cohorts, case.batches, case.last_batches), **fields
    )
    result = run(il.Ifca(clusters=2, **fields), federation, "network")
    assert_equals(result, expected, federation, "network")


@every_model
def test_ifca_with_one_cluster_is_fedavg(federation, model):
    amounts = {"lr": 0.3, "steps": 4}
    one, shared = (
        outcome(run(m, federation, model))
        for m in (il.Ifca(clusters=1, **amounts), il.FedAvg(**amounts))
    )
    np.testing.assert_allclose(one["server models"], shared["server w"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(one["personal"], shared["personal"], rtol=0, atol=1e-12)


def test_ifca_finds_the_groups_of_clients_whose_labels_are_exchanged():
    """Two rules, opposite labels: one model fits half of the clients, two fit all."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 4))
    flipped = np.arange(400) // 40 % 2
    y = ((x[:, 0] > 0) ^ flipped).astype(int)
    data = il.Federation.from_arrays(x, y, np.arange(400) // 40)

    def model():
        return nn.Linear(4, 2)

    one, two = (il.run(il.Ifca(clusters=k), model, data, rounds=30).summary() for k in (1, 2))
    assert one["accuracy"]["mean"] < 0.7 < 0.9 < two["accuracy"]["mean"]
