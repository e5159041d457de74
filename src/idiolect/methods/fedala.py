"""FedALA: each client learns, number by number, how much of the received model to take.

Zhang, Hua, Wang, Song, Xue, Ma and Guan 2023, Algorithm 1. Choose it when the shared model helps
some clients and overwrites what others have learnt in their top layers. Costs per round: d numbers
each way for each sampled client; weight_steps + steps gradients, and weight_steps before use.
Keeps: the top layers of its last model, and a weight in [0, 1] for each of their numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..task.context import Here
from ..task.task import Task
from .fedavg import FedAvg
from .options import steps_knob
from .partial import part_knob


@dataclass(frozen=True)
class FedAla(FedAvg):
    """FedAvg whose clients learn how much of the top layers to take. For partly alike data."""

    traits = replace(
        FedAvg.traits,
        rates=("lr", "weight_lr"),
        discloses="what a client keeps are the top layers of the model that it sends",
        reductions={"weight_lr": "this is FedAvg", "steps": "no model is trained"},
    )

    lr: float = knob(0.3, "α, step size of local SGD", above=0)
    steps: int = steps_knob(20, "SGD steps per round")
    weight_lr: float = knob(1.0, "η, step size of the weights W", low=0)
    weight_steps: int = knob(1, "steps on W before each local training", low=0)
    first_steps: int = knob(
        10, "steps on W before a client's second training (the paper: to convergence)", low=0
    )
    part: str = part_knob("head", "the top layers (p of the paper)")

    def private(self, task: Task, clients: np.ndarray) -> State:
        top = task.split(self.part).parts(task.x0)[1].repeat(len(clients), 1)
        trainings = top.new_zeros(len(clients), 1)
        return {"top": top, "weights": torch.ones_like(top), "trainings": trainings}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        x, weights = self._adapted(task, down["w"], private, here)
        x = self.sgd(task, x, here, self.lr, self.steps, self.epochs)
        top = task.split(self.part).parts(x)[1]
        trainings = private["trainings"] + 1
        return {"w": x}, {"top": top, "weights": weights, "trainings": trainings}

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return self._adapted(task, down["w"], private, here)[0]

    def _adapted(
        self, task: Task, w: Tensor, private: State, here: Here
    ) -> tuple[Tensor, Tensor]:  # -> [K, d], [K, d_top]
        """Θ̂: lower layers as received, top layers Θ_i + (Θ - Θ_i) ⊙ W_i; and W_i, learned."""
        split = task.split(self.part)
        lower, received = split.parts(w)
        top = private["top"]
        weights = private["weights"]
        # nothing to learn before the first training, where both models are one
        trainings = private["trainings"].flatten()
        todo = torch.where(trainings == 1, self.first_steps, self.weight_steps) * (trainings > 0)
        for j in range(int(todo.max())):
            active = todo > j
            x = split.join(lower, torch.lerp(top, received, weights))
            g = split.parts(task.grad(x, here.draw().only(active)))[1]
            # W <- W - η ∇_Θ̂ f ⊙ (Θ - Θ_i), kept in [0, 1]
            step = self.weight_lr * g * (received - top) * active.unsqueeze(-1)
            weights = (weights - step).clamp(0, 1)
        here.restart()  # clients have drawn unlike numbers of mini-batches
        return split.join(lower, torch.lerp(top, received, weights)), weights
