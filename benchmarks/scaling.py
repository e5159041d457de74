"""What a client costs when there are a hundred times as many, and what a second thread brings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from idiolect import FedAvg

from .ours import Ours
from .timing import fastest, least
from .workloads import WORKLOADS, Workload

FEW = 100
MANY = 10_000
SMALL = Workload("logistic 60-10", FedAvg(steps=5), "linear", (60,), 40, 10, batch=40)
LARGER = replace(SMALL, label="MLP 60-512-10", model="mlp", hidden="512")
FLAT = (0.85, 1.15)


def cost_of_a_client() -> Iterator[dict]:
    """A tenth of the clients trains in a round, all are evaluated.

    With a hundred logistic clients the fixed cost of a round is most of it, so that a client among
    many is far cheaper: only growth would be a fault. With the larger model the clients' own work
    is most of it at both sizes, and the cost should be flat.
    """
    for work in (SMALL, LARGER):
        few, many = (Ours(replace(work, clients=n, heard=n // 10)).round for n in (FEW, MANY))
        small, large = fastest(few, many, tries=5, warm=1)
        figure = {"value": (large / MANY) / (small / FEW), "unit": "x"}
        name = f"cost of a client among {MANY:,} against one among {FEW}, FedAvg, {work.label}"
        yield {"name": name, **figure, "goal": FLAT[1], "better": "lower"}
        if work is LARGER:
            yield {"name": name, **figure, "goal": FLAT[0], "better": "higher"}


def two_threads() -> Iterator[dict]:
    """Wall clock, one and two threads in turn."""
    round = Ours(WORKLOADS["lenet"]).round

    def with_threads(count: int) -> Callable[[], None]:
        def work() -> None:
            torch.set_num_threads(count)
            round()

        return work

    before = torch.get_num_threads()
    one, two = least(with_threads(1), with_threads(2), tries=7)
    torch.set_num_threads(before)
    name = f"two threads against one, wall clock, {WORKLOADS['lenet'].label}"
    yield {"name": name, "value": one.wall / two.wall, "unit": "x", "goal": 1.6, "better": "higher"}


def figures() -> Iterator[dict]:
    yield from cost_of_a_client()
    yield from two_threads()
