"""lp-proj-2 on quadratics: the problem of Theorems 9 and 14, its solution, and runs on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

import idiolect as il
from idiolect import LpProj

from ..closed_forms import linear_solutions as solutions
from ..closed_forms.convergence import Scheduled, StronglyConvex
from ..closed_forms.problems import Means, Robust, matrix_of
from ..runs import one_thread

CAP = 10_000  # gradient steps: never reached, so that every (3) is solved to ν


@dataclass(frozen=True)
class TheoremCase:
    """How lp-proj-2 is run on a problem of a convergence theorem."""

    clients_per_round: int = 2  # S
    alternations: int = 2  # R
    beta: float = 1.0

    def follow(
        self, problem: Means | Robust, plan: Scheduled, rounds: int, repetition: int, **fields: Any
    ) -> Iterator[il.RoundState]:
        """A run, round by round. Repetitions differ in all random numbers but P."""
        method = LpProj(
            p=2.0,
            alternations=self.alternations,
            server_rate=self.beta,
            steps=CAP,
            **plan.method,
            **fields,
        )
        run: dict[str, Any] = {
            "rounds": rounds,
            "sample": self.clients_per_round,
            "dtype": "float64",
        }
        federation = problem.federation(repetition)
        with one_thread():
            yield from il.iterate(method, problem.task(), federation, **run, **plan.run)


@dataclass(frozen=True)
class QuadraticCase(TheoremCase):
    """Quadratics, on which everything is known; P is that of seed 0."""

    problem: Means = field(default_factory=lambda: Means(clients=10, d=40, high=4.0, noise=0.1))
    dim: int = 5  # d_sub
    lam: float = 0.5

    @property
    def P(self) -> Tensor:  # [m, d]
        return matrix_of("gaussian", self.dim, self.problem.d)

    def solved(self) -> Solved:
        return _solved(self)

    def theory(self) -> StronglyConvex:
        """The constants of the theorems."""
        solution = self.solved()
        return StronglyConvex(
            lam=self.lam,
            s=float(torch.linalg.matrix_norm(self.P, 2)) - 1,
            clients=self.problem.clients,
            clients_per_round=self.clients_per_round,
            alternations=self.alternations,
            beta=self.beta,
            noise=float(self.problem.gradient_noise.max()),
            diversity=solution.diversity,
            start=float(solution.w.square().sum()),  # w_0 = 0
            mu=self.problem.low,
        )

    def rounds(self, plan: Scheduled, rounds: int, repetition: int) -> Iterator[il.RoundState]:
        steepest = self.problem.high + self.lam * float(torch.linalg.matrix_norm(self.P, 2)) ** 2
        personal_lr = 2 / (self.problem.low + steepest)  # the best for gradient descent
        fields = {"dim": self.dim, "lam": self.lam, "personal_lr": personal_lr}
        return self.follow(self.problem, plan, rounds, repetition, **fields)


@dataclass(frozen=True)
class Solved:
    """The minimum of the bi-level objective, in closed form."""

    A: Tensor  # [N, m, m]: ∇F_k(w) = λ A_k (w - P c_k)
    w: Tensor  # w*[m]
    x: Tensor  # x*[N, d]
    lam: float
    diversity: float  # σ²_F,1 = mean ||∇F_k(w*)||²

    def excess(self, w: Tensor) -> float:
        """F(w) - F(w*)."""
        away = w - self.w
        return float(0.5 * self.lam * away @ self.A.mean(0) @ away)


@lru_cache(maxsize=16)
def _solved(case: QuadraticCase) -> Solved:
    problem, P = case.problem, case.P
    A = solutions.envelope(problem.hessians, case.lam, P)
    w, x = solutions.lpproj(problem.hessians, problem.centres, case.lam, P)
    slopes = case.lam * ((w - problem.centres @ P.T).unsqueeze(1) @ A.mT).squeeze(1)
    return Solved(A, w, x, case.lam, float(slopes.square().sum(1).mean()))
