"""Ditto: a shared model by FedAvg and beside it a personal model pulled to it (Li, Hu, Beirami and Smith 2021, Algorithm 1).

Choose it when one model is a good start but not good enough, and fairness or robustness matters. Costs per round: d numbers down to
everyone who trains and up from each sampled client; steps + personal_steps gradients. Keeps: the personal model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..solvers import sgd
from ..task.batches import Batches
from ..task.task import Task
from .fedavg import FedAvg
from .local import own_models


@dataclass(frozen=True)
class Ditto(FedAvg):
    """A shared model by FedAvg, and a personal one pulled towards it (lam). For clients that differ but have much in common."""

    rates = ("lr", "personal_lr")

    lam: float = knob(0.1, "λ, pull of the personal model to the shared one; 0 is Local", low=0)
    personal_lr: float = knob(0.1, "step size of the personal model", above=0)
    personal_steps: int = knob(20, "SGD steps of the personal model a round", low=0)
    weighting: str = knob("equal", "the server's mean", choices=("samples", "equal", "unbiased"))
    who: str = knob(
        "everyone",
        "who trains: everyone (the lp-proj code) or sampled (the original)",
        choices=("everyone", "sampled"),
    )
    init: str = knob(
        "common",
        "personal models start at the common x0, or each at its own",
        choices=("common", "own"),
    )

    @property
    def trains(self) -> str:  # type: ignore[override]
        return self.who

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"v": own_models(task, clients, self.init)}

    def update(
        self, task: Task, down: State, private: State, batches: Batches
    ) -> tuple[State, State]:
        up, _ = super().update(task, down, {}, batches)
        w = down["w"]
        # v <- v - η (∇F_k(v) + λ (v - w)), w the received model
        v = sgd(
            task,
            private["v"],
            batches,
            self.personal_lr,
            self.personal_steps,
            pull=lambda v: self.lam * (v - w),
        )
        return up, {"v": v}

    def personal(self, task: Task, down: State, private: State, batches: Batches) -> Tensor:
        return private["v"]
