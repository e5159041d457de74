"""What methods with a private part have in common: only θ (shared) travels, w (private) stays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Traits
from ..solvers import Extra, sgd, turns
from ..task.client_optimizer import Steps
from ..task.context import Here
from ..task.layout import Split
from ..task.task import Task
from .options import WEIGHTINGS, Averaging, epochs_knob, steps_knob


@dataclass(frozen=True)
class SplitMethod(Averaging):
    """Base: what is sent, stored and averaged, given the `split` into shared and private part."""

    traits = Traits(sends="shared part", shared_name="theta", row_messages=True, unlike_models=True)

    weighting = "equal"  # a subclass may make it a field

    def split(self, task: Task) -> Split:
        raise NotImplementedError(f"{type(self).__name__} does not define split")

    def alone(self) -> str:
        """What the method is where every parameter is private."""
        return "this is Local"

    def together(self) -> str:
        """What the method is where every parameter is shared."""
        return "nothing is personal"

    def check(self, task: Task) -> None:
        self.split(task)

    def message(self, task: Task) -> dict[str, int]:
        return {"theta": len(self.split(task).theta)}

    def common_shapes(self, task: Task) -> list[tuple[int, ...]]:
        theta = self.split(task).theta
        layout = task.layout
        starts = torch.tensor(layout.starts, device=theta.device)
        counts = torch.searchsorted(theta, starts).diff().tolist()  # of each parameter's numbers
        return [
            tuple(shape) if count == shape.numel() else (count,)
            for shape, count in zip(layout.shapes, counts, strict=True)
            if count
        ]

    def server(self, task: Task) -> State:
        return {"theta": self.split(task).parts(task.x0)[0].clone()}

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"w": self.split(task).parts(task.x0)[1].repeat(len(clients), 1)}

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return self.split(task).join(down["theta"], private["w"])

    def shared(self, task: Task, down: State) -> Tensor | None:
        return None

    def handover(self, task: Task, down: State) -> Tensor:
        return self.split(task).join(down["theta"], self.split(task).parts(task.x0)[1])


@dataclass(frozen=True)
class JointSgd(SplitMethod):
    """Base of the methods whose clients train both parts at once, as one model."""

    traits = replace(
        SplitMethod.traits,
        data_through_gradients=True,
        optimizers=("w",),
        reductions={"steps": "no model is trained"},
    )

    lr: float = knob(0.1, "step size", above=0)
    steps: int = steps_knob(20, "SGD steps per round")
    epochs: int = epochs_knob()
    weighting: str = knob("samples", "the server's mean", choices=WEIGHTINGS)

    def together(self) -> str:
        return "this is FedAvg"

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        x = self.split(task).join(down["theta"], private["w"])
        x = sgd(task, x, here, self.lr, self.steps, self.epochs)
        theta, w = self.split(task).parts(x)
        return {"theta": theta}, {"w": w}


def part_knob(default: str, role: str = "the private part") -> Any:
    """The field `part`."""
    return knob(
        default,
        f"{role}: input, output, embedding, head, block:1, layer:2, norms, biases, "
        "adapter, all, none, or parameter names (head.*); several with commas",
    )


@dataclass(frozen=True)
class Partial(SplitMethod):
    """Base of the methods whose private part is a setting."""

    part: str = part_knob("output")

    def split(self, task: Task) -> Split:
        return task.split(self.part)


def train_part(
    task: Task,
    split: Split,
    theta: Tensor,
    w: Tensor,
    here: Here,
    lr: float,
    which: str,
    steps: int,
    epochs: int = 0,
    extra: Extra | None = None,
) -> Tensor:
    """SGD on θ ("theta") or on w ("w") alone: the part that was trained.

    `extra` gives the term that a method adds to the loss of a mini-batch.
    """
    start = theta if which == "theta" else w
    by = here.optimise.begin(which, start, lr) if here.optimise else None
    for active in turns(here, steps, epochs):
        theta, w = step(task, split, theta, w, here, lr, which, by, active, extra)
    return theta if which == "theta" else w


def step(
    task: Task,
    split: Split,
    theta: Tensor,
    w: Tensor,
    here: Here,
    lr: float,
    which: str,
    by: Steps | None = None,
    active: Tensor | None = None,
    extra: Extra | None = None,
) -> tuple[Tensor, Tensor]:
    """One step on θ ("theta") or on w ("w"): plain, or by an optimiser begun on that part.

    Where only some rows are `active` (bool[K]), the others stay where they are.
    """
    g_theta, g_w = gradients(task, split, theta, w, here, active, extra)
    if by is not None:
        return (by(g_theta, active), w) if which == "theta" else (theta, by(g_w, active))
    if which == "theta":
        return torch.add(theta, g_theta, alpha=-lr), w
    return theta, torch.add(w, g_w, alpha=-lr)


def gradients(
    task: Task,
    split: Split,
    theta: Tensor,
    w: Tensor,
    here: Here,
    active: Tensor | None = None,
    extra: Extra | None = None,
) -> tuple[Tensor, Tensor]:
    """(∇_θ f, ∇_w f) on a fresh mini-batch; 0 for rows that are not `active`."""
    batch = here.draw()
    term = None if extra is None else extra(batch)
    if active is None:
        return split.parts(task.grad(split.join(theta, w), batch, term))
    active = active.to(w.device)
    g = task.grad(split.join(theta, w), batch.only(active), term)
    return split.parts(g.mul_(active.unsqueeze(-1)))
