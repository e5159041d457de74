"""RSA: consensus with an L^p penalty that bounds what any client can do to the shared model.

Li, Xu, Chen, Giannakis and Ling 2019. Choose it when clients may be malicious and d numbers per
message are affordable. Costs per round: d numbers down to everyone and up from each sampled client;
`steps` gradients. Keeps: the client's model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.tensors import power
from ..core.types import State
from ..method import Combine, Method, Traits
from ..solvers import sgd
from ..task.context import Here
from ..task.task import Task
from .options import init_knob, own_models


@dataclass(frozen=True)
class Rsa(Method):
    """Personal models tied to a shared one by ||x - w||_p; p = 1 bounds each client's influence."""

    traits = Traits(
        data_through_gradients=True,
        trains="everyone",
        shares_statistics=False,
        row_messages=True,
        rates=("lr", "personal_lr"),
        fixed_step="it is defined by its subgradient step x - η (∇f(x) + λ ∂||x - w||)",
        reductions={
            "lam": "the personal models are Local's",
            "steps": "the personal models stay as they start",
        },
    )

    p: float = knob(1.0, "the norm of the penalty", low=1)
    lam: float = knob(0.01, "λ, weight of the penalty", low=0)
    lr: float = knob(0.3, "step size of the shared model", above=0)
    personal_lr: float = knob(0.1, "step size of the personal model", above=0)
    steps: int = knob(20, "SGD steps per round", low=0)
    decay: float = knob(0.0, "f_0(w) = decay/2 ||w||², the server's own term", low=0)
    # x_i in the server's sum: x_i^k, before the clients' step (the paper's eq. (11)), or x_i^{k+1}
    server_step: str = knob(
        "sum",
        "w <- w - η (∇f_0(w) + λ Σ ∂||w - x_i||) with the clients' models before their steps of "
        "the round (the paper), sum-new: after them (its code), or mean: the clients step and w "
        "is their mean (the lp-proj code)",
        choices=("sum", "sum-new", "mean"),
    )
    init: str = init_knob()

    def refine(self, traits: Traits) -> Traits:
        if self.server_step == "mean":
            direction = "the message has the direction of w - x, and w is known: x follows from two"
            return traits if self.p == 1 else replace(traits, discloses=direction)
        sums = "its server adds up Σ ∂||w - x_i|| over the models of all clients"
        private = "the private model is the message"
        return replace(traits, linear=False, needs_round=sums, discloses=private)

    def weigh(self, samples: Tensor) -> Tensor:
        return torch.ones_like(samples)

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"x": own_models(task, clients, self.init)}

    def pull(self, gap: Tensor) -> Tensor:
        """The gradient of ||gap||_p, with 0 at 0; sign(gap) for p = 1."""
        if self.p == 1:
            return gap.sign()
        size = torch.linalg.vector_norm(gap, self.p, dim=-1, keepdim=True)
        return gap.sign() * power(gap.abs() / torch.where(size > 0, size, 1), self.p - 1)

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        w = down["w"]

        def tie(x: Tensor) -> Tensor:
            return self.lam * self.pull(x - w)

        # eq. (10): x_i <- x_i - η (∇f_i(x_i) + λ ∂||x_i - w||_p)
        x = sgd(task, private["x"], here, self.personal_lr, self.steps, pull=tie)
        if self.server_step == "mean":
            return {"w": w - self.lr * self.lam * self.pull(w - x)}, {"x": x}
        # x_i^k: eqs. (10) and (11) read the same iterates, so neither waits for the other
        return {"w": private["x"] if self.server_step == "sum" else x}, {"x": x}

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        w = server["w"]
        if self.server_step == "mean":
            return {"w": rule(up)["w"] - self.lr * self.decay * w}
        # eq. (11): the sum, through the rule
        pulls = rule.weight * rule({"w": self.pull(w - up["w"])})["w"]
        return {"w": w - self.lr * (self.decay * w + self.lam * pulls)}

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return private["x"]
