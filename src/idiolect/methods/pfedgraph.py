"""pFedGraph: the server infers who should work with whom, and averages by that graph.

Ye, Ni, Wu, Chen and Wang 2023 (ICML). Choose it when clients are alike to different degrees:
between FedAvg (`alpha` large) and groups of the most alike. Costs per round: 2 d numbers down to
and d up from each sampled client, its own message down; `steps` gradients. Keeps N d numbers at
the server, and each client its own model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ..core.knobs import knob
from ..core.types import State
from ..method import Combine, Traits
from ..task.context import Here
from ..task.task import Task
from .options import LocalSgd, epochs_knob, steps_knob
from .similarity import cosines
from .simplex import onto_simplex


@dataclass(frozen=True)
class PFedGraph(LocalSgd):
    """Each client starts from a mean weighted by an inferred graph. For degrees of likeness."""

    traits = Traits(
        data_through_gradients=True,
        optimizers=("w",),
        linear=False,
        uncombined="the server keeps each client's model, and averages them for each client",
        discloses="it is sent itself",
        shares_statistics=False,
        reductions={"steps": "models are averaged and never trained"},
    )

    lr: float = knob(0.1, "step size", above=0)
    steps: int = steps_knob(20, "SGD steps per round")
    epochs: int = epochs_knob()
    alpha: float = knob(
        0.8, "how strongly a client's weights are tied to shares of samples", above=0
    )
    lam: float = knob(
        0.01, "λ, pull of each model to the direction of its neighbours; its public code has -0.01"
    )

    def server(self, task: Task) -> State:
        return {}

    def server_rows(self, task: Task, clients: np.ndarray) -> State:
        models = task.x0.repeat(len(clients), 1)
        return {"models": models, "samples": models.new_zeros(len(clients), 1)}

    def broadcast(self, task: Task, server: State) -> State:
        return {}

    def address(self, task: Task, server: State, clients: Tensor) -> State:
        own = server["models"][clients.to(task.device)]
        senders = server["samples"][:, 0].nonzero().flatten()
        if not len(senders):
            return {"w": own, "neighbours": torch.zeros_like(own)}
        models, samples = server["models"][senders], server["samples"][senders, 0]
        p = samples / samples.sum()
        # min_x α ||x - p||² + d·x on the simplex, d_j = -cos(θ_i - θ⁰, θ_j - θ⁰)
        graph = onto_simplex(p + cosines(own - task.x0, models - task.x0) / (2 * self.alpha))
        return {"w": graph @ models, "neighbours": graph @ normalize(models, dim=1)}

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        return {"models": up["w"], "samples": rule.samples.to(up["w"]).unsqueeze(1)}

    def private(self, task: Task, clients: np.ndarray) -> State:
        w = task.x0.repeat(len(clients), 1)
        return {"w": w, "trained": w.new_zeros(len(clients), 1)}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        c = down["neighbours"]  # Σ_j x_ij θ_j / ||θ_j||

        def pull(w: Tensor) -> Tensor:
            # of -λ Σ_j x_ij cos(w, θ_j) = -λ c·w / ||w||
            size = w.norm(dim=1, keepdim=True).clamp(min=torch.finfo(w.dtype).tiny)
            along = w / size
            across = c - torch.linalg.vecdot(c, along).unsqueeze(1) * along
            return -self.lam * across / size

        w = self.sgd(task, down["w"], here, self.lr, self.steps, self.epochs, pull)
        return {"w": w}, {"w": w, "trained": torch.ones_like(private["trained"])}

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        # who has never trained takes the mean that it would start from
        return torch.where(private["trained"] > 0, private["w"], down["w"])
