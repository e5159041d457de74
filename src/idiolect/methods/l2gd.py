"""L2GD: a mixture of global and local models, communicating by chance.

Hanzely and Richtárik 2020, Algorithm 1: min (1/n) Σ f_i(x_i) + λ/(2n) Σ ||x_i - x̄||². At each step
a shared coin decides: with probability p all models move towards their mean, else each takes a
gradient step. Only the first of several mean steps in a row needs a message, so a round here is:
the mean steps (towards the mean received), then the gradient steps, then the message. Choose it
when rounds are expensive. Costs per round: d numbers down to everyone and up from each sampled
client; 1/p gradients on average. Keeps: the client's model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..core.knobs import SettingError, knob
from ..core.types import State
from ..method import Traits
from ..solvers import sgd
from ..task.context import Here
from ..task.task import Task
from .options import Averaging, init_knob, own_models


def waiting(u: float, stop: float) -> int:
    """Trials until the first success of probability `stop`: geometric, from a uniform u."""
    return 1 if stop >= 1 else 1 + int(math.log1p(-u) / math.log1p(-stop))


@dataclass(frozen=True)
class L2gd(Averaging):
    """Models drawn to their mean (lam), communicating by chance (p). When rounds are expensive."""

    traits = Traits(
        data_through_gradients=True,
        trains="everyone",
        discloses="the private model is the message",
        shares_statistics=False,
        needs_round="its models are drawn to the mean of all of them at the toss of a common coin",
        fixed_step="its mean and gradient steps are one random gradient step, with one step size α",
        reductions={"lam": "nothing is shared, and this is Local"},
    )

    lam: float = knob(0.5, "λ, weight of the distance to the mean; 0 is Local", low=0)
    lr: float = knob(0.05, "α/n, step size", above=0)
    p: float = knob(0.1, "chance of a mean step", above=0, below=1)
    weighting: str = knob("equal", "the server's mean", choices=("equal", "samples"))
    init: str = init_knob()

    def check(self, task: Task) -> None:
        if self.lr * self.lam / self.p > 1:
            raise SettingError(
                f"lam must be at most p / lr = {self.p / self.lr:g}, got {self.lam:g}: "
                "lr * lam / p must be at most 1"
            )

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"x": own_models(task, clients, self.init)}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        u = here.coins("l2gd", 2)
        mean_steps = waiting(u[0], 1 - self.p)
        steps = waiting(u[1], self.p)
        # ξ = 1: x_i <- (1 - αλ/(np)) x_i + αλ/(np) x̄, the same x̄ for all of them
        keep = (1 - self.lr * self.lam / self.p) ** mean_steps if here.round else 1.0
        x = down["w"] + keep * (private["x"] - down["w"])
        # ξ = 0: x_i <- x_i - α/(n(1-p)) ∇f_i(x_i)
        x = sgd(task, x, here, self.lr / (1 - self.p), steps)
        return {"w": x}, {"x": x}

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return private["x"]
