"""Scaffnew: ProxSkip for federated learning.

Mishchenko, Malinovsky, Stich and Richtárik 2022, Algorithm 2. Choose it for one shared model when
all clients are always there and rounds are expensive: local steps provably save rounds. Costs per
round: d numbers each way; 1/p gradients on average, the same number at every client (a shared
coin). Keeps: control variate and last model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Method, Traits
from ..solvers import sgd
from ..task.context import Here
from ..task.task import Task
from .l2gd import waiting


@dataclass(frozen=True)
class Scaffnew(Method):
    """One shared model; local steps that provably save rounds, if every client is always heard."""

    traits = Traits(
        data_through_gradients=True,
        trains="everyone",
        hears_all=True,  # Σ h_i = 0 holds only then
        fixed_step="its control variates assume the plain step x - γ (g - h) between two means",
    )

    lr: float = knob(0.3, "γ, step size", above=0)
    p: float = knob(0.2, "chance of a communication after a step", above=0, high=1)

    def weigh(self, samples: Tensor) -> Tensor:
        return torch.ones_like(samples)

    def private(self, task: Task, clients: np.ndarray) -> State:
        k = len(clients)
        return {
            "h": task.x0.new_zeros(k, task.d),
            "x": task.x0.repeat(k, 1),
            "rate": task.x0.new_full((k, 1), self.lr),
        }

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        w = down["w"]
        # h <- h + (p/γ)(x_{t+1} - x̂_{t+1}), once x_{t+1} is known, with the γ that x̂ was made with
        h = private["h"] + self.p / private["rate"] * (w - private["x"])
        steps = waiting(here.coins("scaffnew", 1)[0], self.p)
        start = w.expand(here.rows, -1)
        x = sgd(task, start, here, self.lr, steps, pull=lambda x: -h)  # x̂ <- x - γ (g(x) - h)
        # the server's mean of x̂ is the prox: Σ h_i = 0
        return {"w": x}, {"h": h, "x": x, "rate": torch.full_like(private["rate"], self.lr)}
