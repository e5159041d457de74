"""FedAMP: every client is pulled towards those whose models are like its own.

Huang et al. 2021 (AAAI), Algorithm 1, and its HeurFedAMP (`attention="cosine"`). Choose it when
clients fall into groups that nobody knows. The server keeps each client's last model and sends each
a mixture of all, in which like models weigh more. Costs per round: d numbers each way for each
sampled client, its own message down; `steps` gradients. Keeps N d numbers at the server, and each
client its own model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Combine, Traits
from ..task.context import Here
from ..task.task import Task
from .options import LocalSgd, epochs_knob, steps_knob
from .similarity import cosines, squared_distances


@dataclass(frozen=True)
class FedAmp(LocalSgd):
    """Each client is pulled to clients of like models. For groups of clients that nobody knows."""

    traits = Traits(
        data_through_gradients=True,
        optimizers=("w",),
        linear=False,
        uncombined="the server keeps each client's model, and mixes them for each client",
        discloses="it is sent itself",
        shares_statistics=False,
        reductions={
            "lam": "nothing pulls: this is Local, of the clients heard",
            "share": "each model is pulled to itself: nothing is shared",
            "steps": "no model is trained",
        },
    )

    lr: float = knob(0.1, "step size", above=0)
    steps: int = steps_knob(20, "SGD steps per round")
    epochs: int = epochs_knob()
    lam: float = knob(1.0, "λ / α of the paper, pull of each model to its mixture", low=0)
    share: float = knob(
        0.5,
        "what all others weigh together: α A'(0) (N - 1) while models are equal, or with "
        "attention='cosine' 1 - ξ_ii",
        low=0,
        high=1,
    )
    attention: str = knob(
        "distance",
        "how alike two models are: by their distance (FedAMP), or by their cosine (HeurFedAMP)",
        choices=("distance", "cosine"),
    )
    sigma: float = knob(
        10.0,
        "σ: at a squared distance of σ a model weighs 1/e of an equal one; with "
        "attention='cosine' weights are in proportion to exp(σ cos)",
        above=0,
    )

    def server(self, task: Task) -> State:
        return {}

    def server_rows(self, task: Task, clients: np.ndarray) -> State:
        models = task.x0.repeat(len(clients), 1)
        return {"models": models, "heard": models.new_zeros(len(clients), 1)}

    def broadcast(self, task: Task, server: State) -> State:
        return {}

    def address(self, task: Task, server: State, clients: Tensor) -> State:
        clients = clients.to(task.device)
        own = server["models"][clients]
        senders = server["heard"][:, 0].nonzero().flatten()  # of the others nothing is known
        models = server["models"]
        if len(senders) < len(models):
            models = models[senders]
        others = (clients.unsqueeze(1) != senders).to(own.dtype)
        weights = self.weights(own, models, others)
        # u_i = ξ_ii w_i + Σ_j≠i ξ_ij w_j, ξ_ii = 1 - Σ_j≠i ξ_ij
        return {"w": (1 - weights.sum(1, keepdim=True)) * own + weights @ models}

    def weights(self, own: Tensor, models: Tensor, others: Tensor) -> Tensor:  # -> ξ[K, H]
        """What the models heard weigh for each client; `others`: [K, H], 0 for its own."""
        if self.attention == "distance":
            # ξ_ij = α A'(||w_i - w_j||²), A'(x) = exp(-x / σ) / σ
            closeness = (-squared_distances(own, models) / self.sigma).exp() * others
            whole = others.sum(1, keepdim=True).clamp(min=1)
        else:
            # ξ_ij = (1 - ξ_ii) exp(σ cos(w_i, w_j)) / Σ_h≠i exp(σ cos(w_i, w_h))
            closeness = (self.sigma * (cosines(own, models) - 1)).exp() * others
            whole = closeness.sum(1, keepdim=True).clamp(min=torch.finfo(own.dtype).tiny)
        return self.share / whole * closeness

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        return {"models": up["w"], "heard": torch.ones_like(up["w"][:, :1])}

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"w": task.x0.repeat(len(clients), 1)}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        u = down["w"]

        def pull(w: Tensor) -> Tensor:
            return self.lam * (w - u)

        # w_i = argmin F_i(w) + λ / (2 α) ||w - u_i||², by steps of SGD
        w = self.sgd(task, private["w"], here, self.lr, self.steps, self.epochs, pull)
        return {"w": w}, {"w": w}

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return private["w"]
