"""CFL: the server divides clients whose changes point in other directions, over and over.

Sattler, Müller and Samek 2020, Algorithms 1 and 2. Choose it when clients fall into groups that no
single model can serve, such as those that label alike inputs in another way. Within a group it is
FedAvg, so that robust rules act there. Costs per round: d numbers each way for every client, the
model of its own group down; `steps` gradients; at the server the cosines of all pairs in a group.
Keeps no state at the clients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Combine
from ..task.task import Task
from .fedavg import FedAvg
from .similarity import cosines


@dataclass(frozen=True)
class Cfl(FedAvg):
    """FedAvg in groups that the server finds by the directions of changes. For clear groups."""

    traits = replace(
        FedAvg.traits,
        hears_all=True,  # a group can be divided only if all of its changes are known
        linear=False,
        shares_statistics=False,
        reductions={
            "eps1": "no group is ever divided: this is FedAvg",
            "steps": "no model is trained",
        },
    )

    weighting: str = knob("equal", "the mean of a group", choices=("equal", "samples"))
    eps1: float = knob(
        0.4,
        "ε1: a group may be divided once its mean change is below this part of its largest so far",
        low=0,
    )
    eps2: float = knob(
        0.2, "ε2: and while the largest change of a client is above this part of it", low=0
    )
    gamma: float = knob(
        0.0, "γ_max: and if sqrt((1 - α) / 2) is above it, α the largest cosine across", low=0
    )
    clusters: int = knob(10, "the most groups that there may be", low=1)

    def server(self, task: Task) -> State:
        models = task.x0.repeat(self.clusters, 1)
        return {"models": models, "largest": models.new_zeros(self.clusters)}

    def server_rows(self, task: Task, clients: np.ndarray) -> State:
        return {"group": torch.zeros(len(clients), 1, dtype=torch.int64, device=task.device)}

    def broadcast(self, task: Task, server: State) -> State:
        return {}

    def address(self, task: Task, server: State, clients: Tensor) -> State:
        return {"w": server["models"][server["group"][clients.to(task.device), 0]]}

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        group = server["group"][rule.wire_ids.to(task.device), 0]
        models, largest = server["models"].clone(), server["largest"].clone()
        groups = int(server["group"].max()) + 1
        for c in range(groups):
            members = group == c
            if not bool(members.any()):
                continue
            w = models[c].clone()
            models[c] = self._mean(w, up, members, rule)
            mean_change = (models[c] - w).norm()
            largest[c] = largest[c].maximum(mean_change)
            changes = up["w"][members] - w
            # ||Δθ_c|| < ε1 and max_i ||Δθ_i|| > ε2
            stationary = mean_change < self.eps1 * largest[c]
            unlike = changes.norm(dim=1).amax() > self.eps2 * largest[c]
            if groups == self.clusters or len(changes) < 2 or not bool(stationary & unlike):
                continue
            alike = cosines(changes, changes)
            smaller = bipartition(alike)
            across = alike[smaller][:, ~smaller].amax()  # α_cross^max
            if bool(((1 - across).clamp(min=0) / 2).sqrt() > self.gamma):
                group = group.masked_scatter(members, torch.where(smaller, groups, c))
                largest[groups] = largest[c]
                for part in (c, groups):
                    models[part] = self._mean(w, up, group == part, rule)
                groups += 1
        return {"models": models, "largest": largest, "group": group.unsqueeze(1)}

    def _mean(self, w: Tensor, up: State, members: Tensor, rule: Combine) -> Tensor:  # -> [d]
        """FedAvg's step for some of the clients."""
        return self.average({"w": w}, {"w": up["w"][members]}, rule.among(members))["w"]


def bipartition(alike: Tensor) -> Tensor:  # [S, S] -> bool[S]
    """Algorithm 1: the smaller half of the division whose largest cosine across is least.

    The most alike are merged until two groups are left, which is single linkage.
    """
    from scipy.cluster.hierarchy import cut_tree, linkage
    from scipy.spatial.distance import squareform

    distances = squareform((1 - alike).double().cpu().numpy(), checks=False)
    half = torch.from_numpy(cut_tree(linkage(distances, "single"), n_clusters=2)[:, 0] == 1)
    return (half if 2 * int(half.sum()) <= len(half) else ~half).to(alike.device)
