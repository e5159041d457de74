"""APFL: every client predicts with a mixture of its own model and the shared one.

Deng, Kamani and Mahdavi 2020, Algorithm 1 with the adaptive weight of its equation (10). Choose it
when it is unclear how much a client should listen to the others: each learns its own α. Costs per
round: d numbers each way for each sampled client; 2 `steps` gradients. Keeps: its own model v, α.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Traits
from ..task.context import Here
from ..task.task import Task
from .options import WEIGHTINGS, Averaging, init_knob, own_models


@dataclass(frozen=True)
class Apfl(Averaging):
    """Mixture of a client's own model and the shared one, α learned. For clients of all kinds."""

    traits = Traits(
        data_through_gradients=True,
        rates=("lr", "alpha_lr"),
        models=("w", "v"),
        row_messages=True,
        fixed_step="both models and α take plain steps, α along the gradient of the mixture",
        reductions={
            "alpha=1,alpha_lr": "the personal models are Local's, trained beside FedAvg's",
            "alpha,alpha_lr": "the personal models are the shared one, which is FedAvg's",
            "steps": "no model is trained",
        },
    )

    lr: float = knob(0.1, "η, step size of both models", above=0)
    steps: int = knob(20, "τ, SGD steps of both models per round", low=0)
    alpha: float = knob(
        0.5, "α_i at the start, weight of the client's own model in the mixture", low=0, high=1
    )
    alpha_lr: float = knob(0.1, "step size of α_i; 0 = α_i stays as it is", low=0)
    weighting: str = knob("equal", "the server's mean", choices=WEIGHTINGS)
    init: str = init_knob()

    def private(self, task: Task, clients: np.ndarray) -> State:
        v = own_models(task, clients, self.init)
        return {"v": v, "alpha": v.new_full((len(clients), 1), self.alpha)}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        w = down["w"].expand(here.rows, -1)
        v = private["v"]
        alpha = private["alpha"]
        for j in range(self.steps):
            batch = here.draw()
            g = task.grad(mixture(alpha, v, w), batch.of("v"))  # ∇f(v̄; ξ)
            slope = torch.linalg.vecdot(v - w, g).unsqueeze(-1)  # ∂f/∂α = <v - w, ∇f(v̄)>
            v = v - self.lr * alpha * g  # ∇_v f(v̄) = α ∇f(v̄)
            w = w - self.lr * task.grad(w, batch)
            if j == 0:  # eq. (10), once per round: α <- α - η ∂f/∂α, kept in [0, 1]
                alpha = (alpha - self.alpha_lr * slope).clamp(0, 1)
        return {"w": w}, {"v": v, "alpha": alpha}

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return mixture(private["alpha"], private["v"], down["w"])


def mixture(alpha: Tensor, v: Tensor, w: Tensor) -> Tensor:
    """v̄ = α v + (1 - α) w, of rows: alpha[K, 1], v[K, d], w[d] or w[K, d]."""
    return alpha * v + (1 - alpha) * w
