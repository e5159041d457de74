"""A step of lp-proj with each kind of P against the same step without projection.

MLP 784-100-10 (d = 79,510), 10 clients, dim 50.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from idiolect import models, projections
from idiolect.projections import Projection, Spec
from idiolect.task.batches import Batch
from idiolect.task.task import Task

from .timing import fastest

CLIENTS = 10
BATCH = 64
DIM = 50
GOAL = 1.15
KINDS = {"contiguous": GOAL, "sparse": GOAL, "block": GOAL, "layers": GOAL, "gaussian": None}


def figures() -> Iterator[dict]:
    task = Task(lambda: models.make("mlp", (784,), 10))
    x = task.x0.repeat(CLIENTS, 1)
    w = torch.zeros(CLIENTS, DIM)
    inputs = torch.rand(CLIENTS, BATCH, 784)
    targets = torch.randint(10, (CLIENTS, BATCH))
    batch = Batch(
        inputs,
        targets,
        torch.full((CLIENTS, BATCH), 1 / BATCH),
        torch.zeros(CLIENTS, dtype=torch.int64),
    )

    def step(P: Projection | None) -> Callable[[], Tensor]:
        def work() -> Tensor:
            g = task.grad(x, batch)
            if P is not None:
                g = P.add_up(g, -0.1 * (w - P.down(x)).sign())
            return torch.add(x, g, alpha=-0.1)

        return work

    made = [
        projections.make_projection(Spec(kind, DIM), task.layout.starts, 0, task.dtype, task.device)
        for kind in KINDS
    ]
    plain, *took = fastest(step(None), *map(step, made))
    for (kind, goal), seconds in zip(KINDS.items(), took, strict=True):
        name = f"lp-proj step with P {kind!r} against the step without, d = {task.d}, dim {DIM}"
        yield {"name": name, "value": seconds / plain, "unit": "x", "goal": goal, "better": "lower"}
