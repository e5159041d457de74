"""L2GD: a mixture of global and local models, communicating by chance (Hanzely and Richtárik 2020, Algorithm 1).

min (1/n) Σ f_i(x_i) + λ/(2n) Σ ||x_i - x̄||². At each step a shared coin decides: with probability p all models move to their mean,
else each takes a gradient step. Only the first of a run of mean steps needs a message, so a round here is: the run of mean steps
(towards the mean received), then the run of gradient steps, then the message. Costs per round: d numbers down to everyone and up from
each sampled client; 1/p gradients on average. Keeps: the client's model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from ..core.knobs import SettingError, knob
from ..core.types import State
from ..method import Method, Rule
from ..solvers import sgd
from ..task.batches import Batches
from ..task.task import Task
from .fedavg import average
from .local import own_models


def waiting(u: float, stop: float) -> int:
    """How many trials until the first success of probability `stop`, from a uniform u: geometric, at least 1."""
    return 1 if stop >= 1 else 1 + int(math.log1p(-u) / math.log1p(-stop))


@dataclass(frozen=True)
class L2gd(Method):
    """Models drawn to their mean (lam), communicating only now and then (p). When rounds are dear and models may differ."""

    trains: ClassVar[str] = "everyone"

    lam: float = knob(0.1, "λ, weight of the distance to the mean; 0 is Local", low=0)
    lr: float = knob(0.05, "α/n, step size", above=0)
    p: float = knob(0.1, "chance of a mean step", above=0, below=1)
    weighting: str = knob("equal", "the server's mean", choices=("equal", "samples"))
    init: str = knob(
        "common", "models start at the common x0, or each at its own", choices=("common", "own")
    )

    def check(self, task: Task) -> None:
        if self.lr * self.lam / self.p > 1:
            raise SettingError(
                f"lam: {self.lam:g} is not accepted with lr {self.lr:g} and p {self.p:g}; lr * lam / p must be at most 1"
            )

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"x": own_models(task, clients, self.init)}

    def update(
        self, task: Task, down: State, private: State, batches: Batches
    ) -> tuple[State, State]:
        u = batches.coins("l2gd", 2)
        mean_steps, steps = waiting(u[0], 1 - self.p), waiting(u[1], self.p)
        # ξ = 1: x_i <- (1 - αλ/(np)) x_i + αλ/(np) x̄, the same x̄ for the whole run of them
        keep = (1 - self.lr * self.lam / self.p) ** mean_steps if batches.round else 1.0
        x = down["w"] + keep * (private["x"] - down["w"])
        x = sgd(
            task, x, batches, self.lr / (1 - self.p), steps
        )  # ξ = 0: x_i <- x_i - α/(n(1-p)) ∇f_i(x_i)
        return {"w": x}, {"x": x}

    def aggregate(self, task: Task, server: State, up: State, weights: Tensor, rule: Rule) -> State:
        return {"w": average(server["w"], up["w"], weights, rule, self.weighting)}

    def personal(self, task: Task, down: State, private: State, batches: Batches) -> Tensor:
        return private["x"]
