"""Federated LoRA: of the two factors of B A, which are trained, and which are shared?

    method       A                        B           papers
    fedit        trained, averaged        the same    Zhang et al. 2024 (FedIT)
    ffa-lora     frozen at its start      averaged    Sun, Li, Li and Ding, ICLR 2024 (FFA-LoRA)
    fedsa-lora   trained, averaged        private     Guo et al., ICLR 2025 (FedSA-LoRA)

They are for models whose trained parameters are LoRA's: a module of peft, or of `models.adapt`.
What is trained beside the factors (a head) is averaged. Choose ffa-lora where the mean of products
is to be the product of means, as with noise or robust rules; fedsa-lora where clients differ.
Costs per round: the averaged factors down to and up from each sampled client; `steps` gradients.
Without factors all of them are FedAvg.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..solvers import turns
from ..task.context import Here
from ..task.layout import Split
from ..task.task import Task
from .fedavg import FedAvg
from .lgfedavg import LgFedAvg
from .options import WEIGHTINGS, epochs_knob, steps_knob
from .partial import SplitMethod, step


def without_factor(task: Task, factor: str) -> Split:
    """The split whose private part is a factor of LoRA ("lora_A"); empty where there is none."""
    return task.split(factor if task.layout.parts.words[factor] else "none")


@dataclass(frozen=True)
class FedIt(FedAvg):
    """Both LoRA factors are trained and averaged, as FedAvg does. For data alike."""

    traits = replace(FedAvg.traits, presets={})


@dataclass(frozen=True)
class FedSaLora(LgFedAvg):
    """One LoRA factor is shared (A), the other stays with each client (B). For unlike data."""

    traits = LgFedAvg.traits

    shared_part: str = knob(
        "lora_A",
        "the factor that is shared: A, as in the paper, or B",
        choices=("lora_A", "lora_B"),
    )

    def split(self, task: Task) -> Split:
        return without_factor(task, "lora_B" if self.shared_part == "lora_A" else "lora_A")


@dataclass(frozen=True)
class FfaLora(SplitMethod):
    """LoRA's factor A stays at its start and only B is trained and averaged. Half the message."""

    traits = replace(
        SplitMethod.traits,
        data_through_gradients=True,
        optimizers=("theta",),
        reductions={"steps": "no model is trained"},
    )

    lr: float = knob(0.3, "step size", above=0)
    steps: int = steps_knob(5, "SGD steps per round")
    epochs: int = epochs_knob()
    weighting: str = knob("samples", "the server's mean", choices=WEIGHTINGS)

    def split(self, task: Task) -> Split:
        return without_factor(task, "lora_A")

    def step_coordinates(self, task: Task) -> dict[str, Tensor | None]:
        return {"theta": self.split(task).theta}

    def alone(self) -> str:
        return "no model is trained"

    def together(self) -> str:
        return "this is FedAvg"

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        split = self.split(task)
        theta = down["theta"].expand(here.rows, -1)
        a = split.parts(task.x0)[1].expand(here.rows, -1)  # A = A_0 in every round
        by = here.optimise.begin("theta", theta, self.lr) if here.optimise else None
        for active in turns(here, self.steps, self.epochs):
            theta, _ = step(task, split, theta, a, here, self.lr, "theta", by, active)
        return {"theta": theta}, {}

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return self.handover(task, down).expand(here.rows, -1)

    def shared(self, task: Task, down: State) -> Tensor:
        return self.handover(task, down)
