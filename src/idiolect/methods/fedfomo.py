"""FedFomo: each client weighs models of others by what they do for it, and takes the best of them.

Zhang, Sapra, Fidler, Yeung and Alvarez 2021 (ICLR), equations 3 and 4 and section 3.3. Choose it
when every client has validation data, and messages down may be large. Costs per round: M d numbers
down to and d + M up from each sampled client; `steps` gradients, and the validation loss of M + 1
models. Keeps N d numbers at the server with `remembered` affinities for each client, and each
client its own model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ..core import streams
from ..core.knobs import knob
from ..core.types import State
from ..method import Combine, Traits
from ..task.context import Here
from ..task.task import Task
from .options import LocalSgd, epochs_knob, steps_knob


@dataclass(frozen=True)
class FedFomo(LocalSgd):
    """Each client mixes models of others that do well on its validation data (M of them sent)."""

    traits = Traits(
        sends="d + M",
        changes=("change",),
        uncompressed=("weights",),
        optimizers=("w",),
        linear=False,
        uncombined="each client weighs the models of others by itself",
        discloses="it is the sum of its changes",
        shares_statistics=False,
        reductions={"steps": "models are mixed and never trained"},
    )

    lr: float = knob(0.1, "step size", above=0)
    steps: int = steps_knob(20, "SGD steps per round")
    epochs: int = epochs_knob()
    models: int = knob(5, "M, how many models of others a client is sent", low=1)
    explore: float = knob(
        0.3, "ε, how likely a model is sent at random and not for its affinity", low=0, high=1
    )
    decay: float = knob(0.05, "how much less likely in each round", low=0)
    remembered: int = knob(
        100, "of how many others the server remembers the affinity to a client", low=1
    )

    def message(self, task: Task) -> dict[str, int]:
        return {"change": task.d, "weights": self.models}

    # -- the server ------------------------------------------------------------------------------
    def server(self, task: Task) -> State:
        return {"round": torch.zeros(1, dtype=torch.int64, device=task.device)}

    def server_rows(self, task: Task, clients: np.ndarray) -> State:
        models = task.x0.repeat(len(clients), 1)
        key = torch.from_numpy(clients.view(np.int64).copy()).to(task.device).unsqueeze(1)
        neighbours = key.new_zeros(len(clients), self.remembered)
        return {
            "models": models,
            "heard": models.new_zeros(len(clients), 1),
            "key": key,
            "known": neighbours,  # the clients that p_i, its row of P, is about, by key; 0 = none
            "affinity": neighbours.to(task.dtype),
        }

    def broadcast(self, task: Task, server: State) -> State:
        return {}

    def address(self, task: Task, server: State, clients: Tensor) -> State:
        selection, others = self.choose(task, server, clients.to(task.device))
        return {"models": server["models"][selection], "others": others.to(task.dtype)}

    def choose(self, task: Task, server: State, clients: Tensor) -> tuple[Tensor, Tensor]:
        """Whose models each client is sent, [K, M], and which of them there are."""
        n = len(server["models"])
        places = torch.arange(n, device=task.device)
        count = min(self.models, n)
        possible = (server["heard"][:, 0] > 0) & (clients.unsqueeze(1) != places)
        luck, coins = self.draws(task, server, clients)
        # p_i: best first, in a random order where it is equal
        order = luck.argsort(dim=1)
        p = affinities(server, clients).masked_fill(~possible, -torch.inf).gather(1, order)
        best = order.gather(1, p.argsort(dim=1, descending=True, stable=True))[:, :count]
        # ε-greedy: as many of the best as coins have fallen so, the others at random
        explore = max(self.explore - self.decay * int(server["round"]), 0.0)
        by_affinity = (coins >= explore).sum(1, keepdim=True) > places[:count]
        score = luck.scatter_add(1, best, (2 * by_affinity).to(luck)).masked_fill(~possible, -1)
        top = score.topk(count, dim=1)
        missing = (0, self.models - count)
        return pad(top.indices, missing), pad(top.values >= 0, missing)

    def draws(self, task: Task, server: State, clients: Tensor) -> tuple[Tensor, Tensor]:
        """Random numbers of this round: [K, N], for pairs of clients, and [K, M]."""
        names = server["key"][:, 0].cpu().numpy().view(np.uint64)
        keys = streams.keys(task.seed, "fomo", int(server["round"]), names[clients.cpu().numpy()])
        with np.errstate(over="ignore"):
            pairs = streams.mix(keys[:, None] + names)
        coins = streams.uniform(keys, self.models)
        luck = streams.uniform(pairs.reshape(-1), 1).reshape(pairs.shape)
        return torch.from_numpy(luck).to(task.device), torch.from_numpy(coins).to(task.device)

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        clients = rule.wire_ids.to(task.device)
        selection, others = self.choose(task, server, clients)
        # p_i <- p_i + w_i
        p = affinities(server, clients).scatter_add(1, selection, up["weights"] * others)
        places = p.abs().topk(min(self.remembered, p.shape[1]), dim=1).indices
        affinity = p.gather(1, places)
        neighbours = torch.where(affinity != 0, server["key"][:, 0][places], 0)
        missing = (0, self.remembered - neighbours.shape[1])
        return {
            "round": server["round"] + 1,
            "models": server["models"][clients] + up["change"],
            "heard": torch.ones_like(up["change"][:, :1]),
            "known": pad(neighbours, missing),
            "affinity": pad(affinity, missing),
        }

    # -- the clients -----------------------------------------------------------------------------
    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"w": task.x0.repeat(len(clients), 1)}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        own = private["w"]
        weights = self.weigh_models(down, own, here)
        positive = weights.clamp(min=0)
        share = positive / positive.sum(1, keepdim=True).clamp(min=torch.finfo(own.dtype).tiny)
        # θ_i <- θ_i + Σ_n w_n (θ_n - θ_i), weights in proportion to max(w_n, 0)
        mixed = torch.einsum("km,kmd->kd", share, down["models"])
        start = (1 - share.sum(1, keepdim=True)) * own + mixed
        w = self.sgd(task, start, here, self.lr, self.steps, self.epochs)
        return {"change": w - own, "weights": weights}, {"w": w}

    def weigh_models(self, down: State, own: Tensor, here: Here) -> Tensor:  # -> [K, M]
        """w_n = (L_i(θ_i) - L_i(θ_n)) / ||θ_n - θ_i||, on the client's validation data."""
        before = here.validate(own, loss=True)
        weights = []
        for model in down["models"].unbind(1):
            gain = (before - here.validate(model, loss=True)).to(own)
            distance = (model - own).norm(dim=1)
            weights.append(torch.where(distance > 0, gain / distance, 0.0))
        return torch.stack(weights, dim=1) * down["others"]

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return private["w"]


def affinities(server: State, clients: Tensor) -> Tensor:  # -> [K, N]
    """The rows p_i of the matrix P for these clients, as far as they are remembered."""
    rows, neighbours = server["affinity"][clients], server["known"][clients]
    keys, order = server["key"][:, 0].sort()
    places = order[torch.searchsorted(keys, neighbours).clamp(max=len(keys) - 1)]
    blank = rows.new_zeros(len(clients), len(keys))
    return blank.scatter_add(1, places, rows)  # an affinity is 0 where none is known
