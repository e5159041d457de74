"""SCAFFOLD: control variates against client drift (Karimireddy et al. 2020, Algorithm 1).

Choose it for one shared model on unlike data with many local steps and clients that come back.
Costs per round: 2 d numbers each way for each sampled client; `steps` gradients (and one more for
option I). Keeps: the client's control variate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Combine, Method, Traits
from ..solvers import sgd
from ..task.context import Here
from ..task.task import Task


@dataclass(frozen=True)
class Scaffold(Method):
    """One shared model with control variates against drift. For unlike data, returning clients."""

    traits = Traits(
        data_through_gradients=True,
        sends="2 d",
        changes=("w", "c"),
        needs_round="its control variates correct the steps of clients that start from one model",
        fixed_step="its control variates are computed from plain steps, (w - y) / (steps * lr): "
        "with another optimiser they are no longer gradients",
    )

    lr: float = knob(0.1, "η_l, local step size", above=0)
    steps: int = knob(20, "K, SGD steps per round", low=1)
    server_rate: float = knob(1.0, "η_g, server step size", above=0)
    option: str = knob(
        "II",
        "new c_i: gradient at the received model (I), or from the steps taken (II)",
        choices=("I", "II"),
    )

    def message(self, task: Task) -> dict[str, int]:
        return {"w": task.d, "c": task.d}

    def weigh(self, samples: Tensor) -> Tensor:
        return torch.ones_like(samples)

    def server(self, task: Task) -> State:
        return {"w": task.x0.clone(), "c": torch.zeros_like(task.x0)}

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"c": task.x0.new_zeros(len(clients), task.d)}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        w = down["w"]
        c = down["c"]
        mine = private["c"]
        x = w.expand(here.rows, -1)
        # y <- y - η_l (g_i(y) - c_i + c)
        y = sgd(task, x, here, self.lr, self.steps, pull=lambda y: c - mine)
        if self.option == "I":
            new = task.grad(x, here.draw())
        else:
            new = mine - c + (w - y) / (self.steps * self.lr)
        return {"w": y - w, "c": new - mine}, {"c": new}  # Δy, Δc

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        mean = rule(up)
        return {
            "w": server["w"] + self.server_rate * mean["w"],  # x <- x + η_g mean Δy
            # c <- c + |S|/N mean Δc, so that c stays the mean of all c_i
            "c": server["c"] + rule.weight / max(rule.clients, rule.heard) * mean["c"],
        }
