"""IFCA: several shared models; each client trains the one that fits its data best.

Ghosh, Chung, Yin and Ramchandran 2020, Algorithm 1 with model averaging (option II). Choose it when
the clients fall into a few groups and nobody knows which. Costs per round: k d numbers down to and
d + k up from each sampled client; `steps` gradients, and k forward passes to choose (not counted as
gradients), also before use. Keeps nothing at the clients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..core import streams
from ..core.knobs import knob
from ..core.types import State
from ..method import Combine
from ..task.context import Here
from ..task.task import Task
from .fedavg import FedAvg


@dataclass(frozen=True)
class Ifca(FedAvg):
    """One shared model per group of clients; each trains the best for it. For unknown groups."""

    traits = replace(
        FedAvg.traits,
        data_through_gradients=False,
        sends="d + clusters up, d · clusters down",
        shared_name="models",
        changes=("w",),
        uncompressed=("choice",),
        linear=False,  # what is averaged is the product of change and choice
        reductions={"clusters=1": "this is FedAvg", "steps": "no model is trained"},
    )

    clusters: int = knob(2, "k, how many shared models; 1 is FedAvg", low=1)
    choice_batches: int = knob(1, "mini-batches on which a client compares the models", low=1)
    weighting: str = knob("samples", "the server's mean", choices=("samples", "equal"))

    def message(self, task: Task) -> dict[str, int]:
        return {"w": task.d, "choice": self.clusters}

    def server(self, task: Task) -> State:
        """The common start, and models drawn anew beside it."""
        others = np.arange(1, self.clusters, dtype=np.uint64)
        drawn = [task.draw(streams.keys(task.seed, "cluster", 0, others))] if len(others) else []
        return {"models": torch.cat([task.x0.unsqueeze(0), *drawn]).flatten()}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        choice, w = self._choose(task, down["models"], here)
        x = self.sgd(task, w, here, self.lr, self.steps, self.epochs)
        return {"w": x - w, "choice": choice}, private

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        k = self.clusters
        choice = one_hot(up["choice"].argmax(-1), k).to(up["w"])  # one cluster, whatever was sent
        # what a client asks of all models: its change to the one it chose, 0 to the others
        changes = choice.unsqueeze(-1) * up["w"].unsqueeze(1)
        mean = rule({"w": changes.flatten(1), "choice": choice})
        # θ_j <- θ_j + Σ_i p_i s_ij (θ̃_i - θ_j) / Σ_i p_i s_ij; a model nobody chose stays
        weight = mean["choice"].unsqueeze(-1)
        step = mean["w"].view(k, -1) / torch.where(weight > 0, weight, 1)
        return {"models": server["models"] + step.flatten()}

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return self._choose(task, down["models"], here)[1]

    def _choose(self, task: Task, models: Tensor, here: Here) -> tuple[Tensor, Tensor]:
        """ĵ = argmin_j F_i(θ_j): each client's choice, one-hot [K, k], and θ_ĵ [K, d]."""
        k = self.clusters
        candidates = models.expand(here.rows, -1).unflatten(-1, (k, task.d))
        losses = models.new_zeros(here.rows, k)
        for _ in range(self.choice_batches if k > 1 else 0):
            batch = here.draw()
            each = [task.loss(here.complete(candidates[:, j]), batch) for j in range(k)]
            losses = losses + torch.stack(each, dim=-1)
        best = losses.nan_to_num(nan=torch.inf).argmin(-1)
        choice = one_hot(best, k).to(models)
        return choice, candidates[torch.arange(here.rows), best]
