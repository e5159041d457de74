"""The local loops, once. Methods say what is minimised; these say how.

A row of a large model is what memory is made of, so a step makes none that it can do without: the first one leaves the rows it is given
alone (they may be the store's own) and makes new ones, the later ones work in place, and a gradient is gone before the next is made.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .task.batches import Batch, Batches
from .task.task import Task

Pull = Callable[[Tensor], Tensor]  # x[K, d] -> [K, d]: the gradient of a regulariser


def sgd(
    task: Task,
    x: Tensor,
    batches: Batches,
    lr: float,
    steps: int,
    epochs: int = 0,
    pull: Pull | None = None,
) -> Tensor:
    """x <- x - lr (grad f(x; fresh batch) + pull(x)), `steps` times, or `epochs` passes over each client's own data."""
    todo = batches.steps(steps, epochs)
    most, least = int(todo.max()), int(todo.min())
    for j in range(most):
        batch = batches.draw()
        if j >= least:  # some rows are through: they stay where they are
            batch = batch.only((todo > j).to(x.device))
        g = task.grad(x, batch)
        if pull is not None:
            g.add_(pull(x))
        if batch.active is not None:
            g.mul_(batch.active.unsqueeze(-1))
        x = torch.add(x, g, alpha=-lr, out=x if j else None)
        del g
    return x


Gradient = Callable[[Tensor, Batch], Tensor]  # its result is the caller's to write into


def minimise(
    gradient: Gradient,
    x: Tensor,
    batches: Batches,
    lr: float,
    steps: int,
    accuracy: float,
    fresh: bool,
) -> Tensor:
    """An inner problem of lp-proj or pFedMe: `descend` on one mini-batch (the papers), or `steps` SGD steps on fresh ones (their code)."""
    if not fresh:
        return descend(gradient, x, batches.draw(), lr, steps, accuracy)
    for j in range(steps):
        x = torch.add(x, gradient(x, batches.draw()), alpha=-lr, out=x if j else None)
    return x


def descend(
    gradient: Gradient, x: Tensor, batch: Batch, lr: float, steps: int, accuracy: float
) -> Tensor:
    """Gradient descent on one fixed batch until ||g||^2 <= accuracy, row by row, or `steps` steps.

    A row that is there stays there, so its result does not depend on the other rows of the cohort.
    """
    for j in range(steps):
        g = gradient(x, batch)
        going = ~(
            torch.linalg.vecdot(g, g) <= accuracy
        )  # a NaN is not solved: it must reach the message and be rejected
        if batch.active is not None or not bool(going.all()):
            batch = batch.only(going)
        if batch.active is None:
            x = torch.add(x, g, alpha=-lr, out=x if j else None)
        elif bool(batch.active.any()):
            x = torch.where(
                batch.active.unsqueeze(-1),
                torch.add(x, g, alpha=-lr, out=g),
                x,
                out=x if j else None,
            )
        else:
            break
        del g
    return x
