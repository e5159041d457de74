"""Every method of the table keeps the promises that the engine and its users rely on."""

from dataclasses import dataclass

import pytest
import torch

from idiolect import FedAvg
from idiolect.methods import METHODS, make_method
from idiolect.testing import check_method

SMALL = {
    "lp-proj": {"dim": 6},
    "lp-proj-1": {"dim": 6},
    "lp-proj-2": {"dim": 6},
}  # the suite's model has 39 parameters


@pytest.mark.parametrize("name", METHODS)
def test_a_method_of_the_table_passes_the_suite(name):
    check_method(make_method(name, **SMALL.get(name, {})))


@pytest.mark.parametrize("fields", [{"part": "input"}, {"part": "output"}, {"part": "*.bias"}])
@pytest.mark.parametrize("name", ["ffgg", "local-ffgg", "fedalt", "fedsim"])
def test_a_partial_method_passes_with_other_splits(name, fields):
    check_method(make_method(name, **fields))


def test_a_method_that_depends_on_its_cohort_is_caught():
    @dataclass(frozen=True)
    class Centred(FedAvg):
        def update(self, task, down, private, batches):
            up, private = super().update(task, down, private, batches)
            return {"w": up["w"] - 0.1 * up["w"].mean(0)}, private

    with pytest.raises(AssertionError, match="one at a time"):
        check_method(Centred())


def test_a_method_that_sends_more_than_it_declares_is_caught():
    @dataclass(frozen=True)
    class Chatty(FedAvg):
        def update(self, task, down, private, batches):
            up, private = super().update(task, down, private, batches)
            return {**up, "extra": torch.zeros(batches.rows, 3, dtype=task.dtype)}, private

    with pytest.raises(AssertionError, match="declares"):
        check_method(Chatty())


def test_a_method_that_is_never_trained_is_caught():
    @dataclass(frozen=True)
    class Asleep(FedAvg):
        def aggregate(self, task, server, up, weights, rule):
            return server

    with pytest.raises(AssertionError, match="trained"):
        check_method(Asleep())
