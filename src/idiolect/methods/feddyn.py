"""FedDyn: each client's loss is bent so that all local optima meet at the shared one.

Acar, Zhao, Matas, Mattina, Whatmough and Saligrama 2021, Algorithm 1. Choose it for one shared
model on unlike data with many local steps, where SCAFFOLD's second vector per message is too much.
Costs per round: d numbers each way for each sampled client; `steps` gradients. Keeps: a gradient.
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
from .options import epochs_knob, steps_knob


@dataclass(frozen=True)
class FedDyn(Method):
    """One shared model; dynamic regularisation against drift. For unlike data, FedAvg's bytes."""

    traits = Traits(
        data_through_gradients=True,
        optimizers=("w",),
        row_messages=True,
        needs_round="its server adds up the changes of the clients that are heard together",
        reductions={"steps": "no model is trained"},
    )

    lr: float = knob(0.3, "step size of local SGD", above=0)
    steps: int = steps_knob(5, "SGD steps per round")
    epochs: int = epochs_knob()
    alpha: float = knob(0.1, "α, weight of the dynamic regulariser", above=0)

    def weigh(self, samples: Tensor) -> Tensor:
        return torch.ones_like(samples)

    def server(self, task: Task) -> State:
        return {"w": task.x0.clone(), "h": torch.zeros_like(task.x0)}  # h here is the paper's h / α

    def broadcast(self, task: Task, server: State) -> State:
        return {"w": server["w"]}

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"g": task.x0.new_zeros(len(clients), task.d)}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        w = down["w"]
        g = private["g"]

        def pull(x: Tensor) -> Tensor:
            return self.alpha * (x - w) - g

        # θ_k ≈ argmin f_k(θ) - <∇f_k(θ_k^{t-1}), θ> + α/2 ||θ - θ^{t-1}||²
        x = w.expand(here.rows, -1)
        x = sgd(task, x, here, self.lr, self.steps, self.epochs, pull)
        return {"w": x}, {
            "g": g - self.alpha * (x - w)
        }  # ∇f_k(θ_k^t), by the first-order condition

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        mean = rule(up)["w"]
        # h <- h - α/m Σ_{k heard} (θ_k - θ^{t-1}), m = all clients; θ <- mean θ_k - h/α
        share = rule.weight / max(rule.clients, rule.heard)
        h = server["h"] - share * (mean - server["w"])
        return {"w": mean - h, "h": h}
