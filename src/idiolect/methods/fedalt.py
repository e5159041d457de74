"""FedAlt and FedSim: partial personalisation by alternating or simultaneous steps (Pillutla et al. 2022).

Choose them when it is known which part of the model should differ (a head, an input layer, adapters). Costs per round: the shared part
each way for each sampled client. Keep: the private part (stateful), or start it anew each round (stateless).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Rule
from ..task.batches import Batches
from ..task.task import Task
from .fedavg import average
from .partial import Partial, step


@dataclass(frozen=True)
class Pillutla(Partial):
    """What FedAlt and FedSim share."""

    rates = ("lr", "private_lr")

    lr: float = knob(0.1, "step size of the shared part", above=0)
    private_lr: float = knob(0.1, "step size of the private part", above=0)
    steps: int = knob(5, "steps on the shared part a round", low=0)
    stateful: bool = knob(
        True, "training starts from the private part kept; else from the initial one each round"
    )
    weighting: str = knob("samples", "the server's mean", choices=("samples", "equal", "unbiased"))
    who: str = knob(
        "sampled",
        "who trains: the sampled clients, or everyone (a last stage for the private part)",
        choices=("sampled", "everyone"),
    )

    @property
    def trains(self) -> str:  # type: ignore[override]
        return self.who

    def _start(self, task: Task, private: State) -> Tensor:
        return (
            private["w"]
            if self.stateful
            else self.split(task).parts(task.x0)[1].expand_as(private["w"])
        )

    def aggregate(self, task: Task, server: State, up: State, weights: Tensor, rule: Rule) -> State:
        return {"theta": average(server["theta"], up["theta"], weights, rule, self.weighting)}


@dataclass(frozen=True)
class FedAlt(Pillutla):
    """Private part first, then the shared part. When it is known which layers should differ, and clients come back."""

    private_steps: int = knob(5, "steps on the private part a round", low=0)

    def update(
        self, task: Task, down: State, private: State, batches: Batches
    ) -> tuple[State, State]:
        split, theta, w = (
            self.split(task),
            down["theta"].expand(batches.rows, -1),
            self._start(task, private),
        )
        for _ in range(self.private_steps):
            _, w = step(task, split, theta, w, batches, self.private_lr, "w")
        for _ in range(self.steps):
            theta, _ = step(task, split, theta, w, batches, self.lr, "theta")
        return {"theta": theta}, {"w": w.contiguous()}


@dataclass(frozen=True)
class FedSim(Pillutla):
    """Private and shared part in the same steps. As FedAlt, with half the gradients."""

    def update(
        self, task: Task, down: State, private: State, batches: Batches
    ) -> tuple[State, State]:
        split, theta, w = (
            self.split(task),
            down["theta"].expand(batches.rows, -1),
            self._start(task, private),
        )
        for _ in range(self.steps):
            g_theta, g_w = split.parts(task.grad(split.join(theta, w), batches.draw()))
            theta, w = (
                torch.add(theta, g_theta, alpha=-self.lr),
                torch.add(w, g_w, alpha=-self.private_lr),
            )
        return {"theta": theta}, {"w": w.contiguous()}
