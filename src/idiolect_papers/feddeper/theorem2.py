"""Theorem 2 of the FedDeper paper: personal models lie around the global minimiser x*.

On quadratics with a known x*: how large the ball is, and what makes it larger.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from idiolect import FedDeper

from ..closed_forms.convergence import Theorem2
from ..closed_forms.problems import Means
from ..page import ORDER, Row, page_from_text
from ..panels import Line, Panel
from ..runs import Work, exact_rounds, train_all
from ..theory import Slope, spaced

NAME = "feddeper-theorem2"


@dataclass(frozen=True)
class Theorem2Size:
    """How much is run."""

    rounds: int = 400  # K, with the practical step
    own: int = 2000  # K, with the theorem's own step
    lams: tuple[float, ...] = (0.5, 0.75, 1.0)
    spreads: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    commons: tuple[float, ...] = (0.0, 1.0, 4.0)  # how far x⁰ = 0 is from x*, per coordinate
    vanishing: tuple[int, ...] = (50, 100, 200, 400, 800)  # K of part (ii), a run for each


@dataclass(frozen=True)
class BallRun(Work):
    """A run: the mean of ||v_{i,j}^k - x*||² and of ||∇f(x^k)||² in every round."""

    rounds: int
    rate: float  # ητβ; 0 = the largest that the theorem allows
    lam: float = 0.5
    problem: Means = field(
        default_factory=lambda: Means(clients=10, samples=2, d=20, low=1.0, high=1.0, noise=0.0)
    )
    heard: int = 5  # m
    steps: int = 10  # τ
    penalty: float = 0.5  # ϱ / (ηβ)

    def cost(self) -> float:
        return self.rounds

    def theory(self) -> Theorem2:
        """For equal curvatures Assumption 3 holds with equality, with B² = 1."""
        problem = self.problem
        theory = Theorem2(
            clients=problem.clients,
            heard=self.heard,
            steps=self.steps,
            lr=0.0,
            beta=problem.high,
            mu=problem.low,
            G2=float((problem.high * (problem.centres - problem.common)).square().sum(1).mean()),
        )
        return replace(theory, lr=(self.rate or theory.most) / (self.steps * problem.high))

    def train(self) -> dict[str, Any]:
        problem = self.problem
        lr = self.theory().lr
        rho = self.penalty * lr * problem.high
        method = FedDeper(lr=lr, steps=self.steps, rho=rho, lam=self.lam)
        shrunk = (1 - lr * problem.curvatures[:, None]) ** torch.arange(self.steps)  # [n, τ]
        c = problem.centres.unsqueeze(1)
        balls, slopes = [], []
        rounds = exact_rounds(
            method,
            problem.task(),
            problem.federation(),
            rounds=self.rounds,
            sample=self.heard,
        )
        for now in rounds:
            # v_{i,j}: j exact gradient steps of line 8 from v_{i,0}, also where i is not heard
            v = c + shrunk.unsqueeze(-1) * (now.private()["v"].unsqueeze(1) - c)  # [n, τ, d]
            balls.append(float((v - problem.common).square().sum(-1).mean()))
            if not now.round:
                first = float((v - now.server["w"]).square().sum(-1).mean())  # ξ⁰
            slope = problem.curvatures.mean() * (now.server["w"] - problem.common)
            slopes.append(float(slope.square().sum()))
        return {"balls": balls[:-1], "slopes": slopes[:-1], "first": first}


@dataclass(frozen=True)
class Balls:
    """The terms of Theorem 2, for one run."""

    job: BallRun
    balls: np.ndarray  # [K]
    slopes: np.ndarray
    first: float  # ξ⁰

    def mean(self, K: int | None = None) -> float:
        """1/(nτK) sum ||v_{i,j}^k - x*||²."""
        return float(self.balls[:K].mean())

    def epsilon(self, K: int | None = None) -> float:
        return float(self.slopes[:K].mean())

    @property
    def radius(self) -> float:
        """The same over the last tenth of the rounds: the squared radius of the ball."""
        return float(self.balls[-max(1, len(self.balls) // 10) :].mean())

    def bound(self, K: int | None = None) -> float:
        return self.job.theory().bound(self.first, self.epsilon(K), K or len(self.balls))

    def row(self, name: str) -> Row:
        theory = self.job.theory()
        return {
            "run": name,
            "λ": self.job.lam,
            "ητβ": theory.lr * theory.steps * theory.beta,
            "K": len(self.balls),
            "G²": theory.G2,
            "mean ‖v − x*‖²": self.mean(),
            "ξ⁰": self.first,
            "ε": self.epsilon(),
            "bound": self.bound(),
            "last tenth": self.radius,
        }


def write(folder: Path, size: Theorem2Size | None = None, workers: int = 2) -> list[Path]:
    """Some two minutes on two cores."""
    began = time.monotonic()
    size = size or Theorem2Size()
    base = BallRun(size.rounds, rate=0.2)
    first_K = size.vanishing[0]
    jobs: dict[str, dict[Any, BallRun]] = {
        "λ": {lam: replace(base, lam=lam) for lam in size.lams},
        "own": {lam: BallRun(size.own, rate=0.0, lam=lam) for lam in size.lams},
        "spread": {s: replace(base, problem=replace(base.problem, spread=s)) for s in size.spreads},
        "common": {c: replace(base, problem=replace(base.problem, common=c)) for c in size.commons},
    }
    for lam in (0.5, 1.0):  # η ∝ √(m/(τK)), Corollary 1
        jobs[f"vanishing {lam}"] = {
            K: BallRun(K, rate=0.2 * (first_K / K) ** 0.5, lam=lam) for K in size.vanishing
        }
    results = train_all(jobs, folder, NAME, workers)
    balls = {
        name: {key: balls_of(job, results[job]) for key, job in group.items()}
        for name, group in jobs.items()
    }
    own, spreads, commons = balls["own"], balls["spread"], balls["common"]
    vanishing = {lam: balls[f"vanishing {lam}"] for lam in (0.5, 1.0)}
    last = vanishing[1.0]
    every = [ball for group in balls.values() for ball in group.values()]
    orders = [ball.mean() / (ball.first + ball.epsilon()) for ball in every]
    G2 = [ball.job.theory().G2 for ball in spreads.values()]
    radii = [ball.radius for ball in spreads.values()]
    by_G = Slope.of(G2, np.array([radii]))
    by_K = {
        lam: Slope.of(list(group), np.array([[ball.mean() for ball in group.values()]]))
        for lam, group in vanishing.items()
    }
    shares = [ball.mean() / ball.epsilon() for ball in last.values()]
    at = spaced(1, size.own, 40)
    top = jobs["own"][size.lams[0]]
    half = own[0.5]
    by_round = [
        *(Line(f"λ = {lam:g}", at, [ball.mean(K) for K in at]) for lam, ball in own.items()),
        Line("bound", at, [half.bound(K) for K in at], formula=True, style=6),
        Line("ξ⁰ + ε", at, [half.first + half.epsilon(K) for K in at], style=4),
    ]
    by_spread = [
        Line("last tenth of the rounds", G2, radii, points=True),
        Line("(ητ)² G²", G2, [0.04 * g for g in G2], formula=True, style=6),
    ]
    by_rounds = [
        Line(f"λ = {lam:g}", list(group), [ball.mean() for ball in group.values()], points=True)
        for lam, group in vanishing.items()
    ]
    epsilons = [ball.epsilon() for ball in last.values()]
    by_rounds.append(Line("ε (λ = 1)", list(last), epsilons, points=True))
    return page_from_text(
        NAME,
        facts={
            "problem": top.problem,
            "job": top,
            "most": top.theory().most,
            "least_order": min(orders),
            "largest_order": max(orders),
            "runs": len(orders),
            "by_G": by_G,
            "near": commons[size.commons[0]],
            "far": commons[size.commons[-1]],
            "by_K": by_K[1.0],
            "by_K_half": by_K[0.5],
            "least_share": min(shares),
            "largest_share": max(shares),
        },
        verdicts={
            "ball": all(ball.mean() <= ball.bound() for ball in every) and max(orders) < 100,
            "radius": by_G.near(1, 0.1),
            "start": ORDER,
            "vanishing": by_K[1.0].value < -0.4 and max(shares) < 100,
            "half": "not stated by the paper",
        },
        tables={
            "All runs (last tenth: the mean over the last rounds alone):": [
                *(ball.row("ητβ = 0.2") for ball in balls["λ"].values()),
                *(ball.row("the theorem's ητβ") for ball in own.values()),
                *(ball.row(f"spread {s:g}") for s, ball in spreads.items()),
                *(ball.row(f"x* at {c:g}") for c, ball in commons.items()),
                *(ball.row("ητβ ∝ 1/√K") for ball in last.values()),
            ]
        },
        figures={"radius": radii, "G2": G2},
        panels=[
            Panel("ητβ of the theorem", "rounds K", "mean ‖v_{i,j}^k − x*‖²", by_round, log="xy"),
            Panel(f"ητβ = 0.2, K = {size.rounds}", "G²", "squared distance", by_spread, log="xy"),
            Panel("ητβ ∝ 1/√K (Corollary 1)", "rounds K", "squared distance", by_rounds, log="xy"),
        ],
        seconds=time.monotonic() - began,
    ).write(folder)


def balls_of(job: BallRun, result: Mapping[str, Any]) -> Balls:
    return Balls(job, np.array(result["balls"]), np.array(result["slopes"]), result["first"])
