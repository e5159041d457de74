"""pFedHN: a hypernetwork at the server makes each client's model from an embedding of the client.

Shamsian, Navon, Fetaya and Chechik 2021, Algorithm 1. Choose it when clients are many and alike in
ways that a few numbers can tell, and they can keep nothing. Costs per round: d numbers each way for
each sampled client, its own message down; `steps` gradients; at the server two passes of the
hypernetwork, whose last layer has `hidden` d numbers. Keeps nothing at the clients, and `embedding`
numbers for each client at the server.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp

from ..core import streams
from ..core.draws import keyed_torch
from ..core.knobs import knob
from ..core.types import State
from ..method import Combine, Traits
from ..task.context import Here
from ..task.task import Task
from .options import LocalSgd, epochs_knob, steps_knob


@dataclass(frozen=True)
class PFedHn(LocalSgd):
    """A hypernetwork at the server makes all models. For many clients that keep nothing."""

    traits = Traits(
        data_through_gradients=True,
        changes=("change",),
        shared_name="phi",
        rates=("lr", "hyper_lr"),
        optimizers=("w",),
        linear=False,
        shares_statistics=False,
        uncombined="each client's change goes through the hypernetwork at its own embedding",
        reductions={"steps": "no model is trained"},
    )

    lr: float = knob(0.3, "α, step size of the clients' models", above=0)
    steps: int = steps_knob(5, "K, SGD steps per round")
    epochs: int = epochs_knob()
    hyper_lr: float = knob(0.1, "step size of the hypernetwork and of the embeddings", above=0)
    embedding: int = knob(24, "numbers of a client's embedding v", low=1)
    hidden: int = knob(100, "units of a hidden layer of the hypernetwork", low=1)
    layers: int = knob(1, "hidden layers with ReLU, behind a first linear one", low=0)

    def message(self, task: Task) -> dict[str, int]:
        return {"change": task.d}

    def server(self, task: Task) -> State:
        key = streams.keys(task.seed, "hypernetwork")[0]
        with keyed_torch(int(key >> np.uint64(1))):
            inner = nn.utils.parameters_to_vector(self.inner().parameters()).detach().to(task.x0)
        # the last layer makes x0 for everyone at first, be it random or trained before
        matrix = task.x0.new_zeros(self.hidden * task.d)
        return {"phi": torch.cat([inner, matrix, task.x0])}

    def inner(self) -> nn.Sequential:
        """The hypernetwork without its last layer, which is linear: hidden -> model."""
        layers: list[nn.Module] = [nn.Linear(self.embedding, self.hidden)]
        for _ in range(self.layers):
            layers += [nn.ReLU(), nn.Linear(self.hidden, self.hidden)]
        return nn.Sequential(*layers)

    def make(self, task: Task, phi: Tensor, v: Tensor) -> Tensor:
        """h(v; φ): [m], [K, embedding] -> x[K, d]."""
        with torch.device("meta"):
            network = nn.Sequential(*self.inner(), nn.Linear(self.hidden, task.d))
        parameters = dict(network.named_parameters())
        parts = phi.split([p.numel() for p in parameters.values()])
        values = {n: t.view(p.shape) for (n, p), t in zip(parameters.items(), parts, strict=True)}
        return functional_call(network, values, (v,))

    def server_rows(self, task: Task, clients: np.ndarray) -> State:
        keys = streams.keys(task.seed, "embedding", 0, clients)
        return {"v": torch.from_numpy(streams.normal(keys, self.embedding)).to(task.x0)}

    def broadcast(self, task: Task, server: State) -> State:
        return {}

    def address(self, task: Task, server: State, clients: Tensor) -> State:
        # θ_i = h(v_i; φ)
        return {"w": self.make(task, server["phi"], server["v"][clients.to(task.device)])}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        theta = down["w"]
        x = self.sgd(task, theta, here, self.lr, self.steps, self.epochs)
        return {"change": x - theta}, private  # Δθ_i

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        phi = server["phi"]
        v = server["v"][rule.wire_ids.to(task.device)]
        pull_back = vjp(lambda phi, v: self.make(task, phi, v), phi, v)[1]
        by_phi, by_v = pull_back(up["change"])
        # φ <- φ + α ∇_φ h(v_i)ᵀ Δθ_i, their mean over i; v_i <- v_i + α ∇_v h(v_i)ᵀ Δθ_i
        return {
            "phi": phi + self.hyper_lr / rule.heard * by_phi,
            "v": v + self.hyper_lr * by_v,
        }

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return down["w"]
