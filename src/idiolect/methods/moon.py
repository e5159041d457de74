"""MOON: FedAvg whose clients keep their features near the shared model's.

Li, He and Song 2021 (CVPR), Algorithm 1. Choose it when one shared model is wanted and many local
steps pull it apart. Every step contrasts the features of a sample with those that the received
model gives for it (to be near) and those of the client's own last model (to be far from). Costs per
round: as FedAvg, and two forward passes beside every gradient. Keeps the client's last model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..task.batches import Batch
from ..task.context import Here
from ..task.task import Task
from ..task.term import HEAD, Pass, Term, find_layer
from .fedavg import FedAvg
from .options import steps_knob


@dataclass(frozen=True)
class Moon(FedAvg):
    """FedAvg with features held near the shared model's (mu). For many local steps."""

    traits = replace(
        FedAvg.traits,
        data_through_gradients=False,
        reductions={"mu": "this is FedAvg", "steps": "no model is trained"},
    )

    lr: float = knob(0.3, "step size of local SGD", above=0)
    steps: int = steps_knob(5, "SGD steps per round")
    mu: float = knob(1.0, "μ, weight of the contrast of features; 0 is FedAvg", low=0)
    temperature: float = knob(0.5, "τ, by which similarities are divided", above=0)
    layer: str = knob(
        HEAD, "whose features: head (what the last layer is given) or the name of a module"
    )

    def check(self, task: Task) -> None:
        find_layer(task.module, task.layout, self.layer)

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"last": task.x0.repeat(len(clients), 1)}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        start = down["w"].expand(here.rows, -1)
        received, last = here.complete(start), here.complete(private["last"])

        def contrast(batch: Batch) -> Term:
            near = task.features(received, batch.inputs, self.layer)  # z_glob = R_{w^t}(x)
            far = task.features(last, batch.inputs, self.layer)  # z_prev = R_{w_i^{t-1}}(x)
            return Term(self.contrast, self.layer, samples={"near": near, "far": far})

        extra = contrast if self.mu else None
        x = self.sgd(task, start, here, self.lr, self.steps, self.epochs, extra=extra)
        return {"w": x}, {"last": x}

    def contrast(self, run: Pass, rows: State) -> Tensor:  # -> [K, B]
        """-μ log(exp(sim(z, z_glob) / τ) / (exp(sim(z, z_glob) / τ) + exp(sim(z, z_prev) / τ)))."""
        assert run.features is not None
        z = _vectors(run.features)
        near, far = (
            torch.cosine_similarity(z, _vectors(rows[name]), dim=-1) / self.temperature
            for name in ("near", "far")
        )
        return -self.mu * torch.stack([near, far], dim=-1).log_softmax(-1)[..., 0]


def _vectors(features: Tensor) -> Tensor:
    """Features as one vector per sample: [K, B, ...] -> [K, B, F]."""
    return features.unsqueeze(-1).flatten(2)
