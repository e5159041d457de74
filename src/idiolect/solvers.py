"""The local loops, once. Methods say what is minimised; these say how.

Rows of large models fill the memory, so a step allocates no more of them than it must: the first
step leaves the rows it is given alone (they may be the store's own) and makes new ones, later steps
work in place, and a gradient is freed before the next one is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .task.batches import Batch
from .task.client_optimizer import Steps
from .task.context import Here
from .task.task import Task
from .task.term import Term

Pull = Callable[[Tensor], Tensor]  # x[K, d] -> [K, d]: the gradient of a regulariser
Extra = Callable[[Batch], Term]  # what a method adds to the loss of a mini-batch
STEP_RULES = ("constant", "inverse")  # of a step within a round
Gradient = Callable[[Tensor, Batch], Tensor]  # its result is the caller's to write into


def turns(here: Here, steps: int, epochs: int = 0) -> Iterator[Tensor | None]:
    """The turns of a local loop: each gives the rows still at work (bool[K]), None for all of them.

    There are `steps` turns, or as many as `epochs` > 0 passes over each client's own data take: a
    row with fewer mini-batches than others then stays where it is, and all of them draw from new
    streams afterwards.
    """
    todo = here.steps(steps, epochs)
    most = int(todo.max())
    least = int(todo.min())
    for j in range(most):
        yield None if j < least else todo > j
    if epochs:
        here.restart()


def sgd(
    task: Task,
    x: Tensor,
    here: Here,
    lr: float,
    steps: int,
    epochs: int = 0,
    pull: Pull | None = None,
    model: str = "w",
    step_rule: str = "constant",
    ball: float = 0.0,
    extra: Extra | None = None,
) -> Tensor:
    """x <- x - lr (grad f(x; fresh batch) + pull(x)), `steps` times.

    With `epochs` > 0, that many passes over each client's own data instead. `model` is one of
    `Method.models`, where a client trains several. Where the run has another optimiser for its
    clients, that one steps, with the same gradient. `step_rule` "inverse": step k = 0, 1, ... has
    size lr / (k + 1). `ball` > 0: each step ends in ||x|| <= ball. Both are for plain steps.
    `extra` gives the term that a method adds to the loss of a mini-batch.
    """
    optimiser = here.optimise.begin(model, x, lr) if here.optimise else None
    for j, active in enumerate(turns(here, steps, epochs)):
        batch = here.draw(model)
        if active is not None:
            batch = batch.only(active.to(x.device))
        g = task.grad(x, batch) if extra is None else task.grad(x, batch, extra(batch))
        if pull is not None:
            g.add_(pull(x))
        if optimiser is not None:
            x = optimiser(g, batch.active)
            continue
        if batch.active is not None:
            g.mul_(batch.active.unsqueeze(-1))
        rate = lr / (j + 1) if step_rule == "inverse" else lr
        x = torch.add(x, g, alpha=-rate, out=x if j else None)
        if ball:
            _into_ball(x, ball, batch.active)
        del g
    return x


def moved(x: Tensor, g: Tensor, lr: float, by: Steps | None, active: Tensor | None) -> Tensor:
    """x - lr g, or a step along g of an optimiser that was begun on x; rows not `active` stay.

    For a loop of a method's own, over `turns`.
    """
    if by is not None:
        return by(g, active)
    if active is not None:
        g = g * active.to(g.device).unsqueeze(-1)
    return torch.add(x, g, alpha=-lr)


def _into_ball(x: Tensor, ball: float, active: Tensor | None) -> None:
    """x[K, d] <- the nearest point of ||x|| <= ball, in place; rows not `active` stay."""
    share = (ball / x.norm(dim=-1, keepdim=True)).clamp(max=1)  # exactly 1 inside
    if active is not None:
        share = torch.where(active.unsqueeze(-1), share, 1.0)
    x.mul_(share)


INNER = ("inner_problems", "inner_solved")  # what `minimise` counts for each client


@dataclass(frozen=True)
class Accuracy:
    """When an inner problem is solved: its squared gradient norm is at most the larger of two."""

    absolute: float  # ν
    relative: float = 0.0  # a part of the squared norm of the first gradient

    def of(self, first: Tensor) -> Tensor | float:  # [K] -> [K], or a number for all rows
        """ν for problems that began with these squared gradient norms."""
        return (self.relative * first).clamp_(min=self.absolute) if self.relative else self.absolute


def minimise(
    gradient: Gradient,
    x: Tensor,
    here: Here,
    lr: float,
    steps: int,
    accuracy: Accuracy,
    fresh: bool,
) -> Tensor:
    """An inner problem of lp-proj or pFedMe.

    `descend` on one mini-batch (the papers), or `steps` SGD steps on fresh ones (their code).
    Counts the problems, and those that were found to be solved.
    """
    here.count(INNER[0], 1)
    if not fresh:
        x, solved = descend(gradient, x, here.draw(), lr, steps, accuracy)
        if solved is not None:
            here.count(INNER[1], solved)
        return x
    for j in range(steps):
        x = torch.add(x, gradient(x, here.draw()), alpha=-lr, out=x if j else None)
    return x


def descend(
    gradient: Gradient, x: Tensor, batch: Batch, lr: float, steps: int, accuracy: Accuracy
) -> tuple[Tensor, Tensor | None]:
    """Gradient descent on one fixed batch until ||g||^2 <= ν, row by row, or `steps` steps.

    A row that has arrived stays there, so its result does not depend on the rest of the cohort.
    Also which rows were found to have arrived, bool[K]; None for none of them. What the last step
    has reached is not looked at: that would take one more gradient.
    """
    nu: Tensor | float = accuracy.absolute
    for j in range(steps):
        g = gradient(x, batch)
        size = torch.linalg.vecdot(g, g)
        if not j:
            nu = accuracy.of(size)
        # a NaN is not solved: it must reach the message and be rejected there
        going = ~(size <= nu)
        if batch.active is not None or not bool(going.all()):
            batch = batch.only(going)
        if batch.active is None:
            x = torch.add(x, g, alpha=-lr, out=x if j else None)
        elif bool(batch.active.any()):
            stepped = torch.add(x, g, alpha=-lr, out=g)
            x = torch.where(batch.active.unsqueeze(-1), stepped, x, out=x if j else None)
        else:
            break
        del g
    return x, None if batch.active is None else ~batch.active
