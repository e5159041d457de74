"""Ditto: FedAvg's shared model, and a personal model pulled towards it.

Li, Hu, Beirami and Smith 2021, Algorithm 1. Choose it when one model is a good start but not good
enough, and fairness or robustness matters. Costs per round: d numbers down to everyone who trains
and up from each sampled client; steps + personal_steps gradients. Keeps: the personal model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Traits
from ..task.context import Here
from ..task.task import Task
from .fedavg import FedAvg
from .options import WEIGHTINGS, epochs_knob, init_knob, own_models, steps_knob


@dataclass(frozen=True)
class Ditto(FedAvg):
    """FedAvg's shared model, and a personal one pulled to it (lam). For moderately unlike data."""

    traits = replace(
        FedAvg.traits,
        rates=("lr", "personal_lr"),
        models=("w", "v"),
        optimizers=("w", "v"),
        reductions={
            "lam": "the personal models are Local's, trained alongside FedAvg's",
            "steps": "the shared model stays as it starts",
        },
    )

    lr: float = knob(0.1, "step size of the shared model", above=0)
    steps: int = steps_knob(20, "SGD steps of the shared model per round")
    epochs: int = epochs_knob("steps and personal_steps")
    lam: float = knob(0.1, "λ, pull of the personal model to the shared one; 0 is Local", low=0)
    personal_lr: float = knob(0.1, "step size of the personal model", above=0)
    personal_steps: int = steps_knob(20, "SGD steps of the personal model per round")
    weighting: str = knob("equal", "the server's mean", choices=WEIGHTINGS)
    who: str = knob(
        "everyone",
        "who trains: everyone (the lp-proj code) or sampled (the original)",
        choices=("everyone", "sampled"),
        acts_with={"heard": "some clients"},
    )
    init: str = init_knob()

    def refine(self, traits: Traits) -> Traits:
        return replace(traits, trains=self.who)

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"v": own_models(task, clients, self.init)}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        up, _ = super().update(task, down, {}, here)
        w = down["w"]

        def pull(v: Tensor) -> Tensor:
            return self.lam * (v - w)

        # v <- v - η (∇F_k(v) + λ (v - w)), w the received model
        steps, epochs = self.personal_steps, self.epochs
        v = self.sgd(task, private["v"], here, self.personal_lr, steps, epochs, pull, model="v")
        return up, {"v": v}

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return private["v"]
