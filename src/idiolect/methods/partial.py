"""What methods with a private part have in common: only θ (shared) travels, w (private) stays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Traits
from ..task.client_optimizer import Steps
from ..task.context import Here
from ..task.layout import Split
from ..task.task import Task
from .options import Averaging


@dataclass(frozen=True)
class SplitMethod(Averaging):
    """Base: what is sent, stored and averaged, given the `split` into shared and private part."""

    traits = Traits(sends="shared part", shared_name="theta", row_messages=True)

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
class Partial(SplitMethod):
    """Base of the methods whose private part is a setting."""

    part: str = knob(
        "output",
        "the private part: input, output, embedding, head, block:1, layer:2, norms, biases, "
        "adapter, all, none, or parameter names (head.*); several with commas",
    )

    def split(self, task: Task) -> Split:
        return task.split(self.part)


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
) -> tuple[Tensor, Tensor]:
    """One step on θ ("theta") or on w ("w"): plain, or by an optimiser begun on that part.

    Where only some rows are `active` (bool[K]), the others stay where they are.
    """
    g_theta, g_w = gradients(task, split, theta, w, here, active)
    if by is not None:
        return (by(g_theta, active), w) if which == "theta" else (theta, by(g_w, active))
    if which == "theta":
        return torch.add(theta, g_theta, alpha=-lr), w
    return theta, torch.add(w, g_w, alpha=-lr)


def gradients(
    task: Task, split: Split, theta: Tensor, w: Tensor, here: Here, active: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(∇_θ f, ∇_w f) on a fresh mini-batch; 0 for rows that are not `active`."""
    batch = here.draw()
    if active is None:
        return split.parts(task.grad(split.join(theta, w), batch))
    active = active.to(w.device)
    g = task.grad(split.join(theta, w), batch.only(active))
    return split.parts(g.mul_(active.unsqueeze(-1)))
