"""Options that several methods share: the server's mean, where models start, local steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import SettingError, knob
from ..core.types import State
from ..method import Combine
from ..solvers import STEP_RULES
from ..task.task import Task

WEIGHTINGS = ("samples", "equal", "unbiased")
INITS = ("common", "own")
# what a method whose personal models are tied to a shared point is where the tie has strength 0
UNTIED = "nothing is shared, the shared point never moves, and every client trains alone, as Local"


def sample_weights(samples: Tensor, weighting: str) -> Tensor:
    """The weights of clients with these numbers of samples[S]: their numbers, or all the same."""
    return torch.ones_like(samples) if weighting == "equal" else samples


def average(server: State, up: State, shared: str, rule: Combine, weighting: str) -> State:
    """The server's mean of a message, by part; `shared` names the part that holds models.

    "samples" and "equal" are means of the messages. "unbiased" is the step of the paper of Chen,
    Zheng, Long and Su (2021), w - m / (N |C|) sum_i n_i (w - w_i): with few clients heard its
    weights need not sum to 1. There the other parts of the message have equal weights.
    """
    if weighting != "unbiased":
        return rule(up)
    w = server[shared]
    share = rule.samples.to(w.dtype).unsqueeze(1)  # m n_i / N
    rows = up | {shared: share * (up[shared] - w)}
    moved = rule(rows, torch.ones_like(rule.samples))
    return moved | {shared: w + moved[shared]}


def own_models(task: Task, clients: np.ndarray, init: str) -> Tensor:  # -> x[K, d]
    """Where personal models start: all at the common x0, or each at its own initialisation."""
    if init == "common":
        return task.x0.repeat(len(clients), 1)
    return task.draw(streams.keys(task.seed, "init", 0, clients))


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


def plain_steps_only(step_rule: str, ball: float) -> None:
    """Refuse these options with an optimiser of the run, which has its own steps."""
    for name, value, default in (("step_rule", step_rule, "constant"), ("ball", ball, 0.0)):
        if value != default:
            raise SettingError(
                f"{name} must be {default!r} with an optimizer or lr_scale of the run, "
                f"got {value!r}"
            )
