"""Whole rounds, evaluation included, against the bare products or convolutions they contain."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from .ours import Ours
from .timing import fastest
from .workloads import CLASSES, WORKLOADS, Workload


def steps(work: Workload) -> list[int]:
    """The batch sizes of one pass over a client's data."""
    return [min(work.batch, work.train - at) for at in range(0, work.train, work.batch)]


def mlp(work: Workload) -> Callable[[], None]:
    """The products of each layer for all clients: forward, and backward to weights and inputs.

    Not to the inputs of the first layer.
    """
    x = torch.rand(work.heard, work.batch, 784)
    tests = torch.rand(work.clients * work.test, 784)
    first = torch.rand(work.heard, 100, 784)
    last = torch.rand(work.heard, CLASSES, 100)

    def work_of_a_round() -> None:
        for size in steps(work):
            h = torch.bmm(first, x[:, :size].transpose(1, 2))
            out = torch.bmm(last, h)
            torch.bmm(out, h.transpose(1, 2))
            torch.bmm(torch.bmm(last.transpose(1, 2), out), x[:, :size])
        torch.mm(torch.mm(tests, first[0].T), last[0].T)

    return work_of_a_round


def lenet(work: Workload) -> Callable[[], None]:
    """Convolutions and linear layers without pooling, activation and loss.

    What comes between them is made beforehand, at its size.
    """
    shapes = [(6, 3, 5, 5), (16, 6, 5, 5), (120, 400), (84, 120), (CLASSES, 84)]
    weights = [torch.rand(s) for s in shapes]
    values = [(3, 32, 32), (6, 14, 14), (400,), (120,), (84,)]  # what each layer takes

    def forward(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(x, w) if w.dim() == 4 else x @ w.T

    def prepared(size: int) -> list[tuple[Tensor, Tensor, Tensor]]:
        inputs = [torch.rand(size, *v) for v in values]
        return [
            (x, w, torch.rand_like(forward(x, w))) for x, w in zip(inputs, weights, strict=True)
        ]

    batches = {size: prepared(size) for size in set(steps(work))}
    tests = prepared(500)

    def work_of_a_round() -> None:
        for size in steps(work) * work.heard:
            for i, (x, w, delta) in enumerate(batches[size]):
                forward(x, w)
                if w.dim() == 4:
                    need = (i > 0, True, False)
                    torch.ops.aten.convolution_backward(
                        delta, x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, need
                    )
                else:
                    torch.mm(delta.T, x)
                    torch.mm(delta, w)
        for _ in range(work.clients * work.test // 500):
            for x, w, _delta in tests:
                forward(x, w)

    return work_of_a_round


def logistic(work: Workload) -> Callable[[], None]:
    """One product forward and one backward per step, of all clients at once; one in evaluation."""
    x = torch.rand(work.clients, work.batch, 60)
    tests = torch.rand(work.clients, work.test, 60)
    w = torch.rand(work.clients, CLASSES, 60)

    def work_of_a_round() -> None:
        for _ in range(work.method.steps):
            torch.bmm(torch.bmm(w, x.transpose(1, 2)), x)
        torch.bmm(w, tests.transpose(1, 2))

    return work_of_a_round


FLOORS = {
    "mlp": (mlp, 1.5),
    "lenet": (lenet, 2.0),
    "lpproj": (logistic, 2.5),
}  # workload: (floor, goal)


def figures() -> Iterator[dict]:
    for key, (floor, goal) in FLOORS.items():
        work = WORKLOADS[key]
        bare, took = fastest(floor(work), Ours(work).round, tries=7)
        what = "convolutions and products" if key == "lenet" else "products"
        name = f"a round with evaluation against its bare {what}, {work.label}"
        yield {"name": name, "value": took / bare, "unit": "x", "goal": goal, "better": "lower"}
