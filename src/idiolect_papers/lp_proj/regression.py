"""Runs of the methods on the paper's linear regression, in the paper's "simplified setting".

Appendix B.3 analyses one round of communication with infinitely many local steps, after which each
client ties its model to what the server answers. All H_k are b I there, so step sizes exist with
which the methods of this package do that exactly: one alternation of pFedMe or lp-proj with
η λ b / (b + λ) = 1 brings the local copy of w to P ŵ_k, one step of Ditto with η = 1/b as well.
What the server answers in a round depends on that round's messages alone, so every further round
plays the paper's round again, under attacks drawn anew.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from idiolect import (
    Ditto,
    FedAvg,
    Federation,
    Local,
    LpProj,
    Method,
    PFedMe,
    Result,
    Task,
    run,
)
from idiolect.data.sets.regression import LinearRegression

LOCAL, FEDAVG, PFEDME, DITTO, LPPROJ = "Local", "FedAvg", "pFedMe", "Ditto", "lp-proj-2"
SOLVED = 1e-13  # lp-proj's inner problem: what is left of the distance to its solution


def pfedme(s: LinearRegression, lam: float) -> Method:
    """The envelope, whose curvature is b + λ, by one step; then w_k <- ŵ_k."""
    lr = (s.b + lam) / (s.b * lam)
    return PFedMe(lam=lam, lr=lr, personal_lr=1 / (s.b + lam), steps=1, nu=0.0)


def ditto(s: LinearRegression, lam: float) -> Method:
    """w_k <- ŵ_k by one step, and the personal model by one."""
    return Ditto(lam=lam, lr=1 / s.b, steps=1, personal_lr=1 / (s.b + lam), personal_steps=1)


def lpproj(s: LinearRegression, lam: float, dim: int) -> Method:
    """P with orthonormal rows; (3) by gradient descent to rounding, then w_k <- P ŵ_k.

    The curvature of (3) is b beside the subspace and b + λ in it: with the step 2 / (2 b + λ) what
    is left shrinks by λ / (2 b + λ) per step.
    """
    steps = math.ceil(math.log(SOLVED) / math.log(lam / (2 * s.b + lam)))
    return LpProj(
        p=2.0,
        projection="orthogonal",
        dim=dim,
        lam=lam,
        lr=(s.b + lam) / (s.b * lam),
        personal_lr=2 / (2 * s.b + lam),
        steps=max(steps, 2),
        nu=0.0,
    )


def tied(name: str, s: LinearRegression, lam: float, dim: int) -> Method:
    """The method of this name with this λ."""
    if name == LPPROJ:
        return lpproj(s, lam, dim)
    return {PFEDME: pfedme, DITTO: ditto}[name](s, lam)


def local(s: LinearRegression) -> Method:
    """ŵ_k by one step."""
    return Local(lr=1 / s.b, steps=1)


def fedavg(s: LinearRegression) -> Method:
    """w_k <- ŵ_k by one step."""
    return FedAvg(lr=1 / s.b, steps=1)


def play(method: Method, federation: Federation, seed: int, rounds: int, **settings: Any) -> Result:
    """A run with all clients heard, all data in every gradient, in float64."""
    task = Task(nn.Linear(federation.inputs.shape[1], 1, bias=False), "half_squared")
    run_settings: dict[str, Any] = {
        "rounds": rounds,
        "seed": seed,
        "sample": federation.clients,
        "batching": "full",
        "dtype": "float64",
        "threads": 1,
        "progress": False,
    }
    return run(method, task, federation, **run_settings, **settings)


def tested(result: Result) -> np.ndarray:  # -> [plays]
    """The mean test loss of the benign clients after each play of the paper's round.

    Models after the first round are tied to the server's start: the first play ends in the second.
    """
    return np.array([row["loss"] for row in result.rounds_table()[1:]])


def malicious_of(result: Result) -> Tensor:  # -> bool[N]
    """Who was malicious."""
    return torch.tensor([row["malicious"] for row in result.clients_table()])


def models_of(result: Result, clients: int) -> Tensor:  # -> x[N, d]
    """The personal models at the end of a run."""
    session = result.session()
    return session.personal_rows()[:clients]
