"""The cohort gradient against plain autograd on one model at a time (a loop over clients)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idiolect import models
from idiolect.task.batches import Batch
from idiolect.task.task import Task

from .timing import fastest

CASES = (  # name, clients, batch, shape of a sample, model, goal
    ("100 logistic 60-10", 100, 64, (60,), "linear", 10.0),
    ("10 MLP 784-100-10", 10, 64, (784,), "mlp", 1.4),
    ("20 LeNet 3x32x32", 20, 64, (3, 32, 32), "lenet", 1.0),
)


def one_by_one(modules: list[nn.Module], inputs: Tensor, targets: Tensor) -> Callable[[], None]:
    def work() -> None:
        for module, x, y in zip(modules, inputs, targets, strict=True):
            module.zero_grad()
            F.cross_entropy(module(x), y).backward()

    return work


def figures() -> Iterator[dict]:
    for name, clients, size, shape, model, goal in CASES:
        task = Task(lambda shape=shape, model=model: models.make(model, shape, 10))
        inputs = torch.rand(clients, size, *shape)
        targets = torch.randint(10, (clients, size))
        x = task.draw(torch.arange(clients).numpy().astype("uint64") << 20)
        batch = Batch(
            inputs,
            targets,
            torch.full((clients, size), 1 / size),
            torch.zeros(clients, dtype=torch.int64),
        )
        loop = one_by_one([task.module_of(row).train() for row in x], inputs, targets)
        slow, fast = fastest(loop, lambda task=task, x=x, batch=batch: task.grad(x, batch))
        label = f"cohort gradient ({task.kernel}) against plain autograd, {name}, batch {size}"
        yield {"name": label, "value": slow / fast, "unit": "x", "goal": goal, "better": "higher"}
