"""FedDANE against its reference, and what it reduces to."""

import numpy as np
import pytest

import idiolect as il
from idiolect.testing import check_method
from methods.common import Case, assert_equals, every_batching, every_model, every_weighting
from reference import setting
from reference.feddane import feddane
from reference.setting import ROUNDS, outcome, run


@every_model
@every_batching
@every_weighting
def test_it_is_the_algorithm(federation, model, batching, weighting):
    case = Case(federation, model, batching)
    expected = feddane(
        *case.about,
        [(cohort, cohort) for cohort in case.cohorts],
        lambda t, i: case.batches(t, i, "batch gradient"),
        case.batches,
        *(0.2, 4, weighting, 0.3, 1.0, 2),
    )
    method = il.FedDane(lr=0.2, steps=4, mu=0.3, anchor_batches=2, weighting=weighting)
    result = run(method, federation, model, batching=batching)
    assert_equals(result, expected, federation, model)


@every_model
def test_without_the_correction_it_is_fedprox_bit_by_bit(federation, model):
    prox = outcome(run(il.FedProx(mu=0.3), federation, model, rounds=5))
    dane = outcome(run(il.FedDane(mu=0.3, correction=0.0), federation, model, rounds=5))
    np.testing.assert_array_equal(dane["server w"], prox["server w"])
    np.testing.assert_array_equal(dane["personal"], prox["personal"])


def test_of_one_client_it_is_fedprox(federation):
    """The mean of one gradient is that gradient: there is nothing to correct."""
    settings = {"batching": "full", "sample": 1}
    prox = outcome(run(il.FedProx(mu=0.3), federation, **settings))
    dane = outcome(run(il.FedDane(mu=0.3), federation, **settings))
    np.testing.assert_allclose(dane["server w"], prox["server w"], rtol=0, atol=1e-12)


def test_one_step_on_all_data_with_everyone_heard_is_gradient_descent(federation):
    """Each client's first step goes along the mean gradient, whatever its own data."""
    case = Case(federation, batching="full")
    w = setting.start()
    n = np.array(case.draws.sizes)
    for _ in range(ROUNDS):
        gradients = [case.model.gradient(w, X, y) for X, y in case.data]
        w = w - 0.2 * np.average(gradients, axis=0, weights=n)
    method = il.FedDane(lr=0.2, steps=1, anchor_batches=1)
    result = run(method, federation, batching="full", sample=0)
    np.testing.assert_allclose(outcome(result)["server w"], w, rtol=0, atol=1e-12)


@pytest.mark.parametrize("epochs", [0, 1])
def test_conformance(epochs):
    check_method(il.FedDane(epochs=epochs))
