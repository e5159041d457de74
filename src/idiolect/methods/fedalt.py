"""FedAlt and FedSim: partial personalisation by alternating or simultaneous steps.

Pillutla et al. 2022. Choose them when it is known which part of the model should differ (a head, an
input layer, adapters). Costs per round: the shared part each way for each sampled client. Keep: the
private part (stateful), or restart it each round (stateless).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Traits
from ..solvers import turns
from ..task.context import Here
from ..task.task import Task
from .options import WEIGHTINGS, steps_knob
from .partial import Partial, gradients, train_part


@dataclass(frozen=True)
class PartialSteps(Partial):
    """What FedAlt and FedSim share."""

    traits = replace(
        Partial.traits,
        rates=("lr", "private_lr"),
        optimizers=("theta", "w"),  # one for each part, as in the public code
        presets={
            # Table 3 of the FFGG paper, EMNIST, where they are the baselines
            "paper": {"lr": 0.01, "private_lr": 0.01, "epochs": 1}
        },
    )

    lr: float = knob(0.3, "step size of the shared part", above=0)
    private_lr: float = knob(0.3, "step size of the private part", above=0)
    steps: int = steps_knob(20, "steps on the shared part per round")
    epochs: int = knob(
        0,
        "passes over the client's data per round for each part, in place of steps; 0 = use steps",
        low=0,
    )
    stateful: bool = knob(
        True, "training starts from the private part kept; else from the initial one each round"
    )
    weighting: str = knob("samples", "the server's mean", choices=WEIGHTINGS)
    who: str = knob(
        "sampled",
        "who trains: the sampled clients, or everyone (a last stage for the private part)",
        choices=("sampled", "everyone"),
        acts_with={"heard": "some clients"},
    )

    def refine(self, traits: Traits) -> Traits:
        return replace(traits, trains=self.who)

    def step_coordinates(self, task: Task) -> dict[str, Tensor | None]:
        split = self.split(task)
        return {"theta": split.theta, "w": split.w}

    def alone(self) -> str:
        if self.stateful:
            return super().alone()
        return "every client trains alone, restarted from the initial model in each round"

    def together(self) -> str:
        return "this is FedAvg"

    def _start(self, task: Task, private: State) -> Tensor:
        if self.stateful:
            return private["w"]
        return self.split(task).parts(task.x0)[1].expand_as(private["w"])


@dataclass(frozen=True)
class FedAlt(PartialSteps):
    """Private part first, then the shared part. When it is known which layers should differ."""

    traits = replace(PartialSteps.traits, data_through_gradients=True)

    steps: int = steps_knob(5, "steps on the shared part per round")
    private_steps: int = steps_knob(5, "steps on the private part per round")

    def together(self) -> str:
        unused = ", and its private steps change nothing" if self.private_steps else ""
        return super().together() + unused

    def private_passes(self) -> int:
        """Passes over the client's data for the private part; 0 = its steps."""
        return self.epochs

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        split = self.split(task)
        theta = down["theta"].expand(here.rows, -1)
        w = self._start(task, private)
        amount = (self.private_steps, self.private_passes())
        w = train_part(task, split, theta, w, here, self.private_lr, "w", *amount)
        theta = train_part(task, split, theta, w, here, self.lr, "theta", self.steps, self.epochs)
        return {"theta": theta}, {"w": w.contiguous()}


@dataclass(frozen=True)
class FedSim(PartialSteps):
    """Private and shared part in the same steps. As FedAlt, with half the gradients."""

    traits = replace(
        PartialSteps.traits,
        data_through_gradients=True,
        reductions={"steps": "no model is trained"},
    )

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        split = self.split(task)
        theta = down["theta"].expand(here.rows, -1)
        w = self._start(task, private)
        by_theta = here.optimise.begin("theta", theta, self.lr) if here.optimise else None
        by_w = here.optimise.begin("w", w, self.private_lr) if here.optimise else None
        for active in turns(here, self.steps, self.epochs):
            g_theta, g_w = gradients(task, split, theta, w, here, active)
            if by_theta is not None and by_w is not None:
                theta, w = by_theta(g_theta, active), by_w(g_w, active)
                continue
            theta = torch.add(theta, g_theta, alpha=-self.lr)
            w = torch.add(w, g_w, alpha=-self.private_lr)
        return {"theta": theta}, {"w": w.contiguous()}
