"""lp-proj-2 on a smooth problem that is not convex: what Theorems 13 and 15 share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import idiolect as il
from idiolect.methods import LpProj
from idiolect.run.run import torch_threads

from ..closed_forms.convergence import Scheduled, Smooth
from ..closed_forms.problems import Robust

CAP = 10_000  # gradient steps: never reached, so that every (3) is solved to ν


@dataclass(frozen=True)
class Nonconvex:
    """A problem and how lp-proj-2 is run on it, with the smallest λ that the theorems allow."""

    problem: Robust = field(default_factory=Robust)
    heard: int = 2  # S
    alternations: int = 2  # R
    beta: float = 1.0

    @property
    def lam(self) -> float:
        return Smooth.least_lam(self.problem.L)

    def theory(self) -> Smooth:
        """The constants of the theorems; F >= 0, so that Δ_F <= F(w_0)."""
        problem, lam = self.problem, self.lam
        bound = problem.gradient_bound
        return Smooth(
            lam=lam,
            s=0.0,
            clients=problem.clients,
            heard=self.heard,
            alternations=self.alternations,
            beta=self.beta,
            noise=bound,
            diversity=lam**2 * bound / (lam**2 - 10 * problem.L**2),  # σ²_F,2 of Lemma 12
            start=float(problem.value(torch.zeros(1, problem.dim).double(), lam)),
            L=problem.L,
        )

    def slopes(self, plan: Scheduled, rounds: int, repetition: int) -> Tensor:  # -> [T]
        """||∇F(w_t)||² for t = 0 ... T - 1 of a run."""
        problem = self.problem
        method = LpProj(
            p=2.0,
            dim=problem.dim,
            projection="orthogonal",
            lam=self.lam,
            alternations=self.alternations,
            server_rate=self.beta,
            personal_lr=1 / (self.lam + problem.L),
            steps=CAP,
            **plan.method,
        )
        run: dict[str, Any] = {"rounds": rounds, "sample": self.heard, "dtype": "float64"}
        federation = problem.federation(repetition)
        with torch_threads(1):
            steps = il.iterate(method, problem.task(), federation, **run, **plan.run)
            w = torch.stack([now.server["w"] for now in steps])[:-1]
            parts = [problem.gradients(part, self.lam) for part in w.split(256)]
        return torch.cat(parts).square().sum(1)
