"""Dichotomy: train both FedAvg's model and local ones, use whichever does better on validation data (alternative paper, Cor. 3.1).

Choose it when nobody knows whether the clients should learn together: up to constants it is minimax optimal. Costs per round: d + 2
numbers up from and d + 2 down to everyone heard; FedAvg's gradients and Local's. Keeps: the local model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Rule
from ..solvers import sgd
from ..task.batches import Batches
from ..task.task import Task
from .fedavg import FedAvg, average
from .local import own_models


@dataclass(frozen=True)
class Dichotomy(FedAvg):
    """FedAvg and Local side by side; validation data decide which is used. When it is unknown whether to learn together."""

    trains: ClassVar[str] = "everyone"
    sends: ClassVar[str] = "d + 2"
    plain: ClassVar[tuple[str, ...]] = ("votes",)
    rates = ("lr", "personal_lr")

    personal_lr: float = knob(0.1, "step size of the local model", above=0)
    personal_steps: int = knob(20, "SGD steps of the local model a round", low=0)
    level: str = knob(
        "federation",
        "one decision for the federation (the paper), or one for each client",
        choices=("federation", "client"),
    )

    def message(self, task: Task) -> dict[str, int]:
        return {"w": task.d, "votes": 2}

    def server(self, task: Task) -> State:
        return {"w": task.x0.clone(), "votes": task.x0.new_zeros(2)}

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"x": own_models(task, clients, "common")}

    def update(
        self, task: Task, down: State, private: State, batches: Batches
    ) -> tuple[State, State]:
        x = sgd(task, private["x"], batches, self.personal_lr, self.personal_steps)
        errors = (
            batches.validate(down["w"].expand(batches.rows, -1)),
            batches.validate(x),
        )  # of the shared and of the local model
        up, _ = super().update(task, down, {}, batches)
        return {**up, "votes": torch.stack(errors, dim=1).to(task.x0)}, {"x": x}

    def aggregate(self, task: Task, server: State, up: State, weights: Tensor, rule: Rule) -> State:
        return {
            "w": average(server["w"], up["w"], weights, rule, self.weighting),
            "votes": rule(up["votes"], weights),
        }

    def personal(self, task: Task, down: State, private: State, batches: Batches) -> Tensor:
        w, x = down["w"].expand(batches.rows, -1), private["x"]
        if self.level == "federation":
            return w if bool(down["votes"][0] < down["votes"][1]) else x
        better = batches.validate(w) < batches.validate(x)
        return torch.where(better.unsqueeze(1).to(w.device), w, x)
