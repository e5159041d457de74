"""Options that several methods share: the server's mean, where models start, local steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import SettingError, knob
from ..core.types import State
from ..method import Combine, Method
from ..solvers import STEP_RULES, Extra, Pull, sgd
from ..task.context import Here
from ..task.task import Task

WEIGHTINGS = ("samples", "equal", "unbiased")
# what a method whose personal models are tied to a shared point is where the tie has strength 0
UNTIED = "nothing is shared, the shared point never moves, and every client trains alone, as Local"


@dataclass(frozen=True)
class Averaging(Method):
    """Base of methods whose server takes a mean of the messages, weighted as a setting says.

    "samples" and "equal" are means of the messages. "unbiased" is the step of the paper of Chen,
    Zheng, Long and Su (2021), w - m / (N |C|) sum_i n_i (w - w_i): with few clients heard its
    weights need not sum to 1. There other parts of the message than the model have equal weights.
    """

    weighting = "samples"  # one of WEIGHTINGS; a subclass makes it a field

    def weigh(self, samples: Tensor) -> Tensor:
        return torch.ones_like(samples) if self.weighting == "equal" else samples

    def average(self, server: State, up: State, rule: Combine) -> State:
        """The server's mean of a message, by part."""
        if self.weighting != "unbiased":
            return rule(up)
        shared = self.traits.shared_name
        w = server[shared]
        share = rule.samples.to(w.dtype).unsqueeze(1)  # m n_i / N
        rows = up | {shared: share * (up[shared] - w)}
        moved = rule(rows, torch.ones_like(rule.samples))
        return moved | {shared: w + moved[shared]}

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        return server | self.average(server, up, rule)


def own_models(task: Task, clients: np.ndarray, init: str) -> Tensor:  # -> x[K, d]
    """Where personal models start: all at the common x0, or each at its own initialisation."""
    if init == "common":
        return task.x0.repeat(len(clients), 1)
    return task.draw(streams.keys(task.seed, "init", 0, clients))


def init_knob(**acts_with: Any) -> Any:
    """The field `init`."""
    return knob(
        "common",
        "personal models start at the common x0, or each at its own",
        choices=("common", "own"),
        acts_with=acts_with,
    )


def steps_knob(default: int, help: str, epochs: str = "epochs") -> Any:
    """A number of local steps that a field of passes over the data, if set, takes the place of."""
    return knob(default, help, low=0, acts_with={epochs: 0})


def epochs_knob(steps: str = "steps") -> Any:
    """The field `epochs`; `steps`: the fields in whose place it stands."""
    return knob(
        0, f"passes over the client's data per round, in place of {steps}; 0 = use {steps}", low=0
    )


def tie_step(lr: float, lam: float, share: float, alternations: int) -> float:
    """ηλ, the part of its gap to a personal model that a shared point moves per alternation.

    η is lr, or for lr 0 share / (λ R): whatever λ is, it moves by `share` of the gap per round.

    >>> tie_step(0.1, 0.5, 1.0, 1), tie_step(0.0, 0.5, 1.0, 4), tie_step(0.0, 0.0, 1.0, 1)
    (0.05, 0.25, 0.0)
    """
    if not lam:
        return 0.0
    return lr * lam if lr else share / alternations


# -- local SGD of Algorithm 3 of Chen, Zheng, Long and Su (2021): steps that fall within a round,
# -- and the projection P_W onto the compact domain W of its Assumption A, here a ball around 0


def step_rule_knob() -> Any:
    """The field `step_rule`."""
    return knob(
        "constant",
        "within a round, local step k = 0, 1, ... has size lr, or lr / (k + 1) (inverse; Theorem "
        "4.4 of Chen et al. with lr = 1/(μ + λ))",
        choices=STEP_RULES,
    )


def ball_knob() -> Any:
    """The field `ball`."""
    return knob(
        0.0, "after each local step, models are projected onto ||x|| <= ball; 0 = R^d", low=0
    )


@dataclass(frozen=True)
class LocalSgd(Averaging):
    """Base of methods whose clients take plain SGD steps under these two options."""

    step_rule = "constant"  # a subclass makes them fields
    ball = 0.0

    def step_coordinates(self, task: Task) -> dict[str, Tensor | None]:
        """Refuse these options with an optimiser of the run, which has its own steps."""
        for name, default in (("step_rule", "constant"), ("ball", 0.0)):
            if getattr(self, name) != default:
                raise SettingError(
                    f"{name} must be {default!r} with an optimizer or lr_scale of the run, "
                    f"got {getattr(self, name)!r}"
                )
        return super().step_coordinates(task)

    def sgd(
        self,
        task: Task,
        x: Tensor,
        here: Here,
        lr: float,
        steps: int,
        epochs: int = 0,
        pull: Pull | None = None,
        model: str = "w",
        extra: Extra | None = None,
    ) -> Tensor:
        """`solvers.sgd` by this method's rule for steps, on its ball."""
        rule, ball = self.step_rule, self.ball
        return sgd(task, x, here, lr, steps, epochs, pull, model, rule, ball, extra)
