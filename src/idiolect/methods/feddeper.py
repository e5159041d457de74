"""FedDeper: depersonalised federated learning, a globalised model y and a personal model v.

Algorithm 1 of its paper. Choose it for a shared model on unlike data at the cost of FedAvg's
messages, with a personal model as a by-product. Costs per round: d numbers each way for each
sampled client; 2 `steps` gradients (`feddeper*` halves the steps). Keeps: the personal model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Combine, Method, Traits
from ..task.context import Here
from ..task.task import Task


@dataclass(frozen=True)
class FedDeper(Method):
    """A shared model kept from drifting by the personal models (rho); both are of use."""

    traits = Traits(
        data_through_gradients=True,
        changes=("w",),
        models=("w", "v"),
        row_messages=True,
        fixed_step="lines 7 and 8 of its algorithm are plain steps, whose penalty ϱ/(2η) is "
        "written for the step size η",
        presets={"paper": {"lr": 0.01, "steps": 10, "rho": 0.03, "lam": 0.5}},
        reductions={"rho": "the shared model is FedAvg's", "steps": "no model is trained"},
    )

    lr: float = knob(0.1, "η, step size", above=0)
    steps: int = knob(10, "τ, local steps per round", low=0)
    rho: float = knob(
        0.0003,
        "ϱ, penalty; 0 is FedAvg; 0.03 (the paper) diverges when clients are rarely sampled",
        low=0,
    )
    lam: float = knob(
        0.5, "λ, share of y in the next round's v; the theory has [1/2, 1]", low=0, high=1
    )
    same_batch: bool = knob(
        True,
        "lines 7 and 8 of a step use one mini-batch (the paper does not say)",
        acts_with={"batching": ("replace", "epochs", "poisson")},
    )

    def refine(self, traits: Traits) -> Traits:
        if self.lam < 1:
            return traits
        return replace(traits, discloses="with lam=1 the private model is the one that is sent")

    def weigh(self, samples: Tensor) -> Tensor:
        return torch.ones_like(samples)

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"v": task.x0.repeat(len(clients), 1)}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        x = down["w"]
        v = private["v"]
        y = x.expand(here.rows, -1)
        for _ in range(self.steps):
            batch = here.draw()
            # line 7, y <- y - η g^ϱ(y): g^ϱ is the gradient of f + ϱ/(2η) ||v + y - 2x||², and v
            # is as before line 8
            new = y - self.lr * task.grad(y, batch) - self.rho * (v + y - 2 * x)
            again = batch if self.same_batch else here.draw()
            v = v - self.lr * task.grad(v, again.of("v"))  # line 8
            y = new
        return {"w": y - x}, {"v": (1 - self.lam) * v + self.lam * y}  # lines 11 and 10

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        return {"w": server["w"] + rule(up)["w"]}  # line 14

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return private["v"]
