"""FedDANE: a Newton-type step from two exchanges per round (Li et al., Asilomar 2019).

First the clients heard send their gradients at w, then each solves, inexactly, its own problem with
the mean of these gradients in place of its own at w, and a proximal term. Choose it to study such
steps, where most clients are heard: with few of them, or unlike data, FedAvg and FedProx are better
in its own paper. Costs per round: d numbers up and d down in the first exchange, d up and 2 d down
in the second; `anchor_batches` and `steps` gradients. A client keeps its gradient from one exchange
to the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Combine, Exchange
from ..task.context import Here
from ..task.task import Task
from .fedprox import FedProx


@dataclass(frozen=True)
class FedDane(FedProx):
    """FedProx with its gradients corrected towards their mean at w, for two exchanges per round."""

    traits = replace(
        FedProx.traits,
        sends="2 d up, 3 d down",
        changes=("g",),
        exchanges=(Exchange("gradient", up=("g",), down=("w",)), Exchange("model", up=("w",))),
        reductions={
            "correction": "this is FedProx, for twice the messages",
            "steps": "no model is trained",
        },
    )

    mu: float = knob(0.1, "proximal weight: mu/2 ||x - w||^2", low=0)
    correction: float = knob(
        1.0, "weight of the gradients' correction; 0 is FedProx", low=0, high=1
    )
    anchor_batches: int = knob(
        4, "mini-batches of the gradient at w; it is the full one with batching=full", low=1
    )

    def message(self, task: Task) -> dict[str, int]:
        return {"g": task.d, "w": task.d}

    def server(self, task: Task) -> State:
        return {"w": task.x0.clone(), "g": torch.zeros_like(task.x0)}

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"g": task.x0.new_zeros(len(clients), task.d)}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        w = down["w"].expand(here.rows, -1)  # w^{t-1}
        if here.exchange == "gradient":  # ∇F_k(w^{t-1})
            g = torch.zeros_like(w)
            for _ in range(self.anchor_batches):
                g = g + task.grad(w, here.draw()) / self.anchor_batches
            return {"g": g}, {"g": g}
        shift = self.correction * (down["g"] - private["g"])  # g_t - ∇F_k(w^{t-1})

        def pull(x: Tensor) -> Tensor:
            return shift + self.mu * (x - w)

        # w_k ≈ argmin_w F_k(w) + <g_t - ∇F_k(w^{t-1}), w - w^{t-1}> + μ/2 ||w - w^{t-1}||^2
        x = self.sgd(task, w, here, self.lr, self.steps, self.epochs, pull)
        return {"w": x}, private

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        if "g" in up:  # g_t: the mean of ∇F_k(w^{t-1}) over those heard
            return server | rule(up)
        return super().aggregate(task, server, up, rule)  # w^t: the mean of w_k
