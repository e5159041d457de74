"""What methods with a private part have in common: the model is split into θ (shared) and w (private); only θ travels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Method, Rule
from ..task.batches import Batches
from ..task.task import Split, Task
from .fedavg import average


@dataclass(frozen=True)
class SplitMethod(Method):
    """Base: says what is sent, kept and averaged once `split` says which part is whose."""

    sends: ClassVar[str] = "shared part"

    def split(self, task: Task) -> Split:
        raise NotImplementedError

    def check(self, task: Task) -> None:
        self.split(task)

    def message(self, task: Task) -> dict[str, int]:
        return {"theta": len(self.split(task).theta)}

    def server(self, task: Task) -> State:
        return {"theta": self.split(task).parts(task.x0)[0].clone()}

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"w": self.split(task).parts(task.x0)[1].repeat(len(clients), 1)}

    def aggregate(self, task: Task, server: State, up: State, weights: Tensor, rule: Rule) -> State:
        return {"theta": average(server["theta"], up["theta"], weights, rule, "equal")}

    def personal(self, task: Task, down: State, private: State, batches: Batches) -> Tensor:
        return self.split(task).join(down["theta"], private["w"])

    def shared(self, task: Task, down: State) -> Tensor | None:
        return None

    def handover(self, task: Task, down: State) -> Tensor:
        return self.split(task).join(down["theta"], self.split(task).parts(task.x0)[1])


@dataclass(frozen=True)
class Partial(SplitMethod):
    """Base of the methods that are told which part is private."""

    part: str = knob(
        "output", "the private part: input, output, adapter, all, none, or parameter names (head.*)"
    )

    def split(self, task: Task) -> Split:
        return task.split(self.part)


def step(
    task: Task, split: Split, theta: Tensor, w: Tensor, batches: Batches, lr: float, which: str
) -> tuple[Tensor, Tensor]:
    """One SGD step on θ ("theta"), on w ("w") or on both at once ("both")."""
    g_theta, g_w = split.parts(task.grad(split.join(theta, w), batches.draw()))
    theta = torch.add(theta, g_theta, alpha=-lr) if which != "w" else theta
    return theta, torch.add(w, g_w, alpha=-lr) if which != "theta" else w
