"""What tests of methods share: a run against its reference, and what references take."""

from itertools import chain, islice

import numpy as np
import pytest

import idiolect as il
from idiolect.core import streams
from idiolect.methods import METHODS
from reference import setting
from reference.fedavg import fedavg
from reference.lpproj import lpproj
from reference.pfedme import pfedme
from reference.setting import (
    CLASSES,
    FEATURES,
    HIDDEN,
    MODELS,
    ROUNDS,
    SAMPLE,
    SEED,
    SIZES,
    assert_same,
    outcome,
)

N = len(SIZES)
LOGISTIC = MODELS["logistic"][1]
every_model = pytest.mark.parametrize("model", MODELS)
every_batching = pytest.mark.parametrize("batching", ["replace", "epochs", "full"])
every_weighting = pytest.mark.parametrize("weighting", ["samples", "equal", "unbiased"])

# coordinates of the flat models, counted by hand: weights of a layer, then its biases
BETWEEN = FEATURES * HIDDEN + HIDDEN
PARTS = {
    ("network", "input"): np.arange(BETWEEN),
    ("network", "output"): np.arange(BETWEEN, BETWEEN + HIDDEN * CLASSES + CLASSES),
    ("logistic", "weight"): np.arange(FEATURES * CLASSES),
    ("logistic", "bias"): np.arange(FEATURES * CLASSES, (FEATURES + 1) * CLASSES),
}
every_part = pytest.mark.parametrize(("model", "part"), PARTS)


# by class of method: the largest distance from a reference so far (benchmarks/methods_page.py)
DISTANCES: dict[str, float] = {}


def assert_equals(result, reference, federation, model="logistic", tolerance=1e-10):
    """A run leaves behind what the reference says, and clients spent as much before use."""
    reference = dict(reference)
    deployment = reference.pop("deployment", np.zeros(N, dtype=int))
    expected = reference | {
        "accuracy": setting.pooled_accuracy(MODELS[model][1], reference["personal"], federation)
    }
    note_distance(result, assert_same(outcome(result), expected, tolerance))
    np.testing.assert_array_equal(setting.deployment(result), deployment)


def assert_leaves(result, expected, tolerance=1e-10):
    """Of what a run leaves behind, the parts that the reference has are as it says."""
    left = outcome(result)
    distance = assert_same({name: left[name] for name in expected}, expected, tolerance)
    note_distance(result, distance)


def note_distance(result, distance):
    """A run was this far from its reference."""
    kind = METHODS.find(result.method)[0].__name__
    DISTANCES[kind] = max(DISTANCES.get(kind, 0.0), distance)


class Case:
    """What a reference takes first: model, data, start, cohorts, batches.

    And the mini-batches that clients draw before use.
    """

    def __init__(self, federation, model="logistic", batching="replace", sample=SAMPLE):
        self.draws = setting.draws(federation, batching)
        self.model = MODELS[model][1]
        self.data = self.draws.data
        self.start = setting.start(model)
        self.cohorts = self.draws.cohorts(ROUNDS, sample)
        self.batches = self.draws.batches
        self.first = (self.model, self.data, self.start, self.cohorts, self.batches)
        self.about = (self.model, self.data, self.start)

    def last_batches(self, i):
        return self.draws.batches(ROUNDS, i, "personal")

    def run_of(self, counts):
        """i -> the mini-batches of client i over the whole run, counts[t] of them in round t."""
        return lambda i: chain.from_iterable(
            islice(self.batches(t, i), k) for t, k in enumerate(counts)
        )


def coins(purpose, t, count):
    """The numbers in [0, 1) that all clients share in round t."""
    return streams.uniform(streams.keys(SEED, purpose, t), count)[0]


def trials(u, p):
    """Trials until the first success, read from one uniform number: k with p (1 - p)^(k - 1)."""
    k = 1
    so_far = p
    while u >= so_far:
        so_far += p * (1 - p) ** k
        k += 1
    return k


def fedavg_reference(federation, batching="replace", model="logistic", **changes):
    draws = setting.draws(federation, batching)
    fields = {
        "cohorts": draws.cohorts(ROUNDS, SAMPLE),
        "rates": [0.3] * ROUNDS,
        "steps": [4] * N,
        "weighting": "samples",
    } | changes
    by_hand = fields.pop("by_hand", MODELS[model][1])
    return fedavg(by_hand, draws.data, setting.start(model), batches=draws.batches, **fields)


def lpproj_reference(federation, batching="replace", model="logistic", **changes):
    draws = setting.draws(federation, batching)
    start = setting.start(model)
    fields = {
        "p": 1,
        "lam": 0.5,
        "R": 1,
        "steps": 6,
        "nu": 0.0,
        "beta": 1.0,
        "cohorts": draws.cohorts(ROUNDS, SAMPLE),
    }
    fields |= {"rates": [0.3] * ROUNDS, "personal_rates": [0.2] * ROUNDS} | changes
    fields = {"batches": draws.batches} | fields
    return lpproj(MODELS[model][1], draws.data, start, draws.projection(5, len(start)), **fields)


def an_lpproj(**fields):
    return il.LpProj(
        **({"dim": 5, "lam": 0.5, "lr": 0.3, "personal_lr": 0.2, "steps": 6, "nu": 0.0} | fields)
    )


def a_pfedme(**fields):
    return il.PFedMe(
        **({"lr": 0.3, "personal_lr": 0.2, "lam": 0.8, "steps": 4, "nu": 0.0} | fields)
    )


def pfedme_reference(case, **fields):
    fields = {
        "lr": 0.3,
        "personal_lr": 0.2,
        "lam": 0.8,
        "R": 1,
        "steps": 4,
        "nu": 0.0,
        "beta": 1.0,
    } | fields
    return pfedme(*case.first, **fields)
