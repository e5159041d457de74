"""Dichotomy: train FedAvg's model and local ones, use what does better on validation data.

Corollary 3.1 of the paper of Chen, Zheng, Long and Su (2021). Choose it when it is unclear whether
the clients should learn together: up to constants it is minimax optimal. Costs per round: d + 2
numbers down to everyone and up from each sampled client; FedAvg's gradients and Local's. Keeps: the
local model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Combine, Traits
from ..task.context import Here
from ..task.task import Task
from .fedavg import FedAvg
from .options import epochs_knob, own_models, steps_knob


@dataclass(frozen=True)
class Dichotomy(FedAvg):
    """FedAvg and Local side by side; validation data decide which is used. When in doubt."""

    traits = Traits(
        sends="d + 2",
        trains="everyone",
        uncompressed=("votes",),
        rates=("lr", "personal_lr"),
        models=("w", "x"),
        row_messages=True,
        needs_round="its votes are a mean over the clients heard together",
        fixed_step="its two models are those of its paper's algorithms, which train by plain SGD; "
        "run fedavg and local with the optimiser and compare them",
        reductions={"steps": "FedAvg's model stays as it starts"},
    )

    steps: int = steps_knob(5, "SGD steps of FedAvg's model per round")
    epochs: int = epochs_knob("steps and personal_steps")
    personal_lr: float = knob(0.1, "step size of the local model", above=0)
    personal_steps: int = steps_knob(20, "SGD steps of the local model per round")
    level: str = knob(
        "federation",
        "one decision for the federation (the paper), or one for each client",
        choices=("federation", "client"),
    )

    def refine(self, traits: Traits) -> Traits:
        return replace(
            traits,
            linear=self.weighting != "equal",  # else models and errors are weighed differently
            streams=self.weighting == "samples",  # else votes are weighed by the mean sample number
        )

    def message(self, task: Task) -> dict[str, int]:
        return {"w": task.d, "votes": 2}

    def server(self, task: Task) -> State:
        return {"w": task.x0.clone(), "votes": task.x0.new_zeros(2)}

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"x": own_models(task, clients, "common")}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        steps, epochs = self.personal_steps, self.epochs
        x = self.sgd(task, private["x"], here, self.personal_lr, steps, epochs, model="x")
        of_shared = here.validate(down["w"].expand(here.rows, -1))
        of_local = here.validate(x, "x")
        up, _ = super().update(task, down, {}, here)
        votes = torch.stack([of_shared, of_local], dim=1).to(task.x0)
        return {**up, "votes": votes}, {"x": x}

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        if self.weighting != "samples":  # of the models; errors are weighed by samples in any case
            share = (rule.samples / rule.samples.mean()).to(up["votes"].dtype)
            up = up | {"votes": share.unsqueeze(1) * up["votes"]}
        return super().aggregate(task, server, up, rule)

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        w = down["w"].expand(here.rows, -1)
        x = private["x"]
        if self.level == "federation":
            shared = bool(down["votes"][0] < down["votes"][1])
            return here.complete(w) if shared else here.complete(x, "x")
        better = here.validate(w) < here.validate(x, "x")
        use_shared = better.unsqueeze(1).to(w.device)
        return torch.where(use_shared, here.complete(w), here.complete(x, "x"))
