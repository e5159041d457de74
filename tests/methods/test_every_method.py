"""What every method keeps to, on the federation of the references; see also `check_method`."""

from dataclasses import fields

import numpy as np
import pytest
import torch

import helpers
import idiolect as il
from idiolect.methods import METHODS, make_method
from methods.common import N, an_lpproj
from reference import setting
from reference.setting import ROUNDS, SAMPLE, SEED, arrange, assert_same, outcome, run

# the methods whose reference is compared here
proved = ("local", "fedavg", "fedprox", "fedprox-soft", "lp-proj-1", "lp-proj-2")
every_method = pytest.mark.parametrize("name", METHODS)
# mini-batches drawn with replacement are those of `check_method`, for every method
other_batchings = pytest.mark.parametrize(
    ("name", "batching"), [(name, b) for name in proved for b in ("epochs", "full")]
)


def method_of(name):
    """A method by name, with few steps and a subspace that fits the small model."""
    small = {"steps": 4, "dim": 5, "lam": 0.5}
    return make_method(
        name,
        **{
            field.name: small[field.name]
            for field in fields(METHODS[name][0])
            if field.name in small
        },
    )


@other_batchings
def test_chunks_do_not_change_the_result(federation, name, batching):
    whole, ones, threes = (
        outcome(run(method_of(name), federation, "network", batching=batching, chunk=c))
        for c in (0, 1, 3)
    )
    assert_same(ones, whole, 1e-12)
    assert_same(threes, whole, 1e-12)


def only(outcome, clients):
    """An outcome with the rows of these clients, in this order."""
    rows = {
        part: value[clients]
        for part, value in outcome.items()
        if part in ("personal", "gradients") or part.startswith(("private", "rows"))
    }
    return outcome | rows


@every_method
def test_the_order_of_the_clients_does_not_change_the_result(federation, name):
    order = [4, 0, 6, 2, 5, 1, 3]
    given, other = (
        outcome(run(method_of(name), f, "network"))
        for f in (federation, arrange(federation, order))
    )
    assert_same(other, only(given, order), 1e-12)


@other_batchings
def test_a_client_without_data_changes_nothing(federation, name, batching):
    order = [0, 1, 2, "nobody", 3, 4, 5, 6, "no one"]
    both = (federation, arrange(federation, order))
    before, after = (outcome(run(method_of(name), f, "network", batching=batching)) for f in both)
    assert_same(
        only(after, [k for k, client in enumerate(order) if isinstance(client, int)]), before
    )


@pytest.mark.parametrize("name", ["local", "fedavg", "lp-proj-1"])
def test_another_seed_gives_another_result(federation, name):
    a, b = (
        outcome(run(method_of(name), federation, "network", seed=seed))["personal"]
        for seed in (0, 1)
    )
    assert np.abs(a - b).min(axis=1).max() > 0


@every_method
def test_personal_models_that_are_evaluated_are_the_trained_ones(name):
    federation = helpers.with_public(name, il.data.load("synthetic", clients=20, samples=100))
    task = il.Task(lambda: torch.nn.Linear(60, 10))
    untrained = il.run(il.Local(), task, federation, rounds=0).summary()["accuracy"]["mean"]
    result = il.run(
        make_method(name),
        task,
        federation,
        rounds=10,
        sample=0 if make_method(name).traits.hears_all else 5,
        eval_every=0,
    )
    trained = result.summary()["accuracy"]["mean"]
    assert trained > untrained + 0.1
    hits = sum(
        int((result.personal(k)(X).argmax(1) == y).sum())
        for k in range(20)
        for X, y in [federation.part(k, "test")]
    )
    assert trained == pytest.approx(hits / int(federation.sizes("test").sum()), abs=1e-12)


def test_clients_spend_the_gradients_that_their_method_names(federation):
    heard = np.bincount(
        np.concatenate(setting.draws(federation).cohorts(ROUNDS, SAMPLE)), minlength=N
    )
    everyone = np.full(N, ROUNDS)
    for method, spent in (
        (il.Local(steps=3), 3 * everyone),
        (il.FedAvg(steps=3), 3 * heard),
        (il.FedProx(steps=3), 3 * heard),
        (il.FedProxSoft(steps=3, final_steps=5), 3 * heard),
        (an_lpproj(steps=3, alternations=2), 6 * everyone),
    ):
        result = run(method, federation, seed=SEED)
        np.testing.assert_array_equal(outcome(result)["gradients"], spent)
        stage_two = 5 if isinstance(method, il.FedProxSoft) else 0
        assert result.summary()["gradients_per_client"] == pytest.approx(spent.mean() + stage_two)
