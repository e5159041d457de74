"""The loop that idiolect is timed against does the same work.

The same numbers, from as many gradients.
"""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.loop import Loop
from benchmarks.ours import Ours
from benchmarks.workloads import WORKLOADS


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("key", WORKLOADS)
def test_the_loop_and_idiolect_reach_the_same_numbers(key, indexed):
    """One batch holds all data of a client and everyone is heard: nothing is left to chance."""
    work = WORKLOADS[key]
    method = (
        replace(work.method, personal_steps=1)
        if hasattr(work.method, "personal_steps")
        else work.method
    )
    work = replace(work, method=method, clients=4, heard=4, train=24, test=10, batch=24)
    ours = Ours(work)
    loop = Loop(work, indexed)
    if key == "lpproj":
        loop.P = method._projection(ours.session.contract.task).rows
    first = loop.evaluate()
    for _ in range(3):
        expected = loop.round()
        torch.testing.assert_close(ours.round(), expected, rtol=1e-3, atol=1e-4)
        assert ours.gradients == loop.gradients
    assert expected[1] < first[1]


@pytest.mark.parametrize("key", WORKLOADS)
def test_a_round_of_the_benchmark_takes_as_many_gradients(key):
    """With small batches, at the benchmark's own number of samples; fewer clients and features."""
    work = WORKLOADS[key]
    shape = (3, 16, 16) if key == "lenet" else (8,)
    work = replace(work, clients=4, heard=2, shape=shape)
    ours = Ours(work)
    loop = Loop(work, indexed=True)
    ours.round()
    loop.round()
    assert ours.gradients == loop.gradients
