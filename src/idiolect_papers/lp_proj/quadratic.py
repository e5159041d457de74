"""lp-proj-2 on quadratics: the problem of Theorems 9 and 14, its solution, and runs on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

import idiolect as il
from idiolect import LpProj

from ..closed_forms import linear_solutions as solutions
from ..closed_forms.convergence import Scheduled, StronglyConvex
from ..closed_forms.problems import Means, matrix_of

CAP = 10_000  # gradient steps: never reached, so that every (3) is solved to ν


@dataclass(frozen=True)
class QuadraticCase:
    """A problem and how lp-proj-2 is run on it; P is that of seed 0."""

    problem: Means = field(default_factory=lambda: Means(clients=10, d=40, high=4.0, noise=0.1))
    dim: int = 5  # d_sub
    lam: float = 0.5
    clients_per_round: int = 2  # S
    alternations: int = 2  # R
    beta: float = 1.0

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

    def follow(self, plan: Scheduled, rounds: int, repetition: int) -> Iterator[il.RoundState]:
        """A run, round by round. Repetitions differ in all random numbers but P."""
        steepest = self.problem.high + self.lam * float(torch.linalg.matrix_norm(self.P, 2)) ** 2
        method = LpProj(
            p=2.0,
            dim=self.dim,
            lam=self.lam,
            alternations=self.alternations,
            server_rate=self.beta,
            personal_lr=2 / (self.problem.low + steepest),  # the best for gradient descent
            steps=CAP,
            **plan.method,
        )
        return il.iterate(
            method,
            self.problem.task(),
            self.problem.federation(repetition),
            rounds=rounds,
            sample=self.clients_per_round,
            dtype="float64",
            **plan.run,
        )


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
