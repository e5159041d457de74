"""Theorem 14 of the lp-proj paper: η_t, ν_t and D_t over rounds lead to the exact solution.

On quadratics, where every assumption holds and w* is known: with client sampling at the rate 1/T,
without at 1/(β² T²), for w and for the personal models, whatever d_sub.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from idiolect.run.run import torch_threads

from ..closed_forms import linear_solutions as solutions
from ..closed_forms.convergence import Scheduled
from ..page import Page, Row
from ..panels import Line, Panel
from ..rates import Slope, checked, guide, spaced
from ..runs import Work, finished
from .quadratic import Quadratic

PRACTICAL = 8.0  # ζ / κ_F: then η̃_0 = 1 / L_F, the largest step of plain gradient descent


@dataclass(frozen=True)
class Size:
    """How much is run."""

    rounds: int = 1000  # with client sampling
    own: int = 1500  # the same with the theorem's own ζ, which is larger
    without: int = 300  # without client sampling
    rounds_of_dims: int = 500
    repetitions: int = 8
    own_repetitions: int = 32  # with the theorem's own ζ, where slopes differ more
    dims: tuple[int, ...] = (2, 5, 10, 20)
    betas: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0, 16.0)
    points: int = 40
    batch: int = 2  # D_0


@dataclass(frozen=True)
class Distances(Work):
    """A run: how far w and the personal models are from the solution, at some rounds.

    For w, the mean over the rounds since the last of them: less noise at the same slope.
    """

    case: Quadratic
    own: bool  # ζ of the theorem, or the practical one
    rounds: int
    batch: int
    points: int
    repetition: int = 0

    def cost(self) -> float:
        return self.rounds

    def zeta(self) -> float:
        theory = self.case.theory()
        return theory.zeta if self.own else PRACTICAL * theory.kappa_F

    def plan(self) -> Scheduled:
        return self.case.theory().scheduled(self.batch, self.zeta())

    def at(self) -> list[int]:
        """The rounds that are looked at."""
        return spaced(1, self.rounds, self.points)

    def bound(self) -> list[float]:
        """What the proof has for w at these rounds."""
        return self.case.theory().bound14(self.rounds, self.plan(), self.zeta())[self.at()].tolist()

    def train(self) -> dict[str, Any]:
        found = self.case.solved()
        seen = set(self.at())
        w, x = [], []
        since: list[float] = []
        with torch_threads(1):
            for now in self.case.follow(self.plan(), self.rounds, self.repetition):
                since.append(float((now.server["w"] - found.w).square().sum()))
                if now.round in seen:
                    w.append(float(np.mean(since)))
                    since = []
                    away = now.private()["x"] - found.x
                    x.append(float(away.square().sum(1).mean()))
        return {"w": w, "x": x}


@dataclass(frozen=True)
class Approximation(Work):
    """Lemma 4: how far g_k is from ∇F_k at a w that stays, for fixed ν and |D̃|."""

    case: Quadratic
    rounds: int
    batch: int
    nu: float

    def train(self) -> dict[str, Any]:
        case = replace(self.case, heard=self.case.problem.clients, alternations=1)
        problem, P = case.problem, case.P
        plan = Scheduled(lr=1e-12, nu=self.nu, batch=self.batch)  # w stays at 0
        errors = []
        with torch_threads(1):
            for now in case.follow(plan, self.rounds, 0):
                if now.round:
                    w = now.server["w"]
                    exact = solutions.tied(problem.hessians, problem.centres, case.lam, P, w)
                    gap = (now.private()["x"] - exact) @ P.T  # (∇F_k - g_k) / λ
                    errors.append(float(gap.square().sum(1).mean()))
        return {"error": float(np.mean(errors))}


class Cases:
    """All runs by what they are for."""

    def __init__(self, size: Size):
        base = Quadratic()
        everyone = replace(base, heard=base.problem.clients)
        exact = replace(everyone, problem=replace(base.problem, noise=0.0))
        most = float(base.problem.clients * base.alternations)  # β = N R
        self.size = size
        self.sampled = self._repeated(base, False, size.rounds)
        self.own = [
            self._job(replace(base, beta=most), True, size.own, r)
            for r in range(size.own_repetitions)
        ]
        self.everyone = self._repeated(everyone, False, size.without)
        self.own_everyone = self._job(replace(exact, beta=most), True, size.own)
        self.betas = {b: self._job(replace(exact, beta=b), False, size.without) for b in size.betas}
        self.dims = {
            m: self._repeated(replace(base, dim=m), False, size.rounds_of_dims) for m in size.dims
        }
        self.lemma = {
            m: Approximation(replace(base, dim=m), max(2, size.repetitions * 5), 4, 1e-4)
            for m in size.dims
        }

    def _job(self, case: Quadratic, own: bool, rounds: int, repetition: int = 0) -> Distances:
        return Distances(case, own, rounds, self.size.batch, self.size.points, repetition)

    def _repeated(self, case: Quadratic, own: bool, rounds: int) -> list[Distances]:
        return [self._job(case, own, rounds, r) for r in range(self.size.repetitions)]

    def all(self) -> Iterator[Work]:
        groups = [self.sampled, self.own, self.everyone, [self.own_everyone]]
        groups += [[job] for job in self.betas.values()]
        seen = dict.fromkeys(job for group in [*groups, *self.dims.values()] for job in group)
        yield from seen
        yield from self.lemma.values()


def write(folder: Path, size: Size | None = None, workers: int = 2) -> list[Path]:
    """Some five minutes on two cores."""
    began = time.monotonic()
    cases = Cases(size or Size())
    results = finished(list(cases.all()), folder, NAME, workers)
    return _reproduced(cases, results, time.monotonic() - began).write(folder)


NAME = "lp-proj-theorem14"


@dataclass(frozen=True)
class Curve:
    """Repetitions of a run: mean distances and their slope against ζ + T."""

    jobs: list[Distances]
    w: np.ndarray  # [repetitions, points]
    x: np.ndarray

    @classmethod
    def of(cls, jobs: list[Distances], results: dict[Work, dict[str, Any]]) -> Curve:
        return cls(jobs, *(np.array([results[job][k] for job in jobs]) for k in "wx"))

    def slope(self, which: str = "w") -> Slope:
        """From ζ rounds on, where the start is forgotten; of a short run, the last points."""
        zeta = self.jobs[0].zeta()
        at = [zeta + t for t in self.jobs[0].at()]
        return Slope.of(at, getattr(self, which), min(2 * zeta, at[-5]))

    def line(self, label: str, which: str = "w", style: int | None = None) -> Line:
        return Line(label, self.jobs[0].at(), getattr(self, which).mean(0).tolist(), style=style)

    def row(self, name: str) -> Row:
        job = self.jobs[0]
        plan = job.plan()
        return {
            "run": name,
            "β": job.case.beta,
            "ζ": job.zeta(),
            "η̃_0": plan.lr * job.case.beta * job.case.alternations,
            "ν_0": plan.nu,
            "T": job.rounds,
            "‖w_T − w*‖²": float(self.w[:, -1].mean()),
            "slope of w": self.slope().text(),
            "slope of x": self.slope("x").text(),
        }


def _reproduced(cases: Cases, results: dict[Work, dict[str, Any]], seconds: float) -> Page:
    sampled, own, everyone = (
        Curve.of(jobs, results) for jobs in (cases.sampled, cases.own, cases.everyone)
    )
    own_everyone = Curve.of([cases.own_everyone], results)
    betas = {b: Curve.of([job], results) for b, job in cases.betas.items()}
    by_beta = Slope.of(list(betas), np.array([[c.w[0, -1] for c in betas.values()]]), 1)
    dims = {m: Curve.of(jobs, results) for m, jobs in cases.dims.items()}
    errors = {m: results[job]["error"] for m, job in cases.lemma.items()}
    theories = {m: job.case.theory() for m, job in cases.lemma.items()}
    rows = [
        sampled.row("S = 2 of 10"),
        own.row("the same, ζ of the theorem"),
        everyone.row("S = N"),
        own_everyone.row("S = N, exact, ζ of the theorem"),
    ]
    dim_rows = [
        {
            "d_sub": m,
            "s": theories[m].s,
            "κ_F": theories[m].kappa_F,
            "slope of w": curve.slope().text(),
            "‖w_T − w*‖² / ‖w_0 − w*‖²": float(curve.w[:, -1].mean() / theories[m].start),
            "(∇F_k − g_k)² / λ²": errors[m],
            "its bound δ_1²": theories[m].approximation(job.batch, job.nu),
        }
        for (m, curve), job in zip(dims.items(), cases.lemma.values(), strict=True)
    ]
    slopes = [c.slope().value for c in dims.values()]
    left = [row["‖w_T − w*‖² / ‖w_0 − w*‖²"] for row in dim_rows]
    flat = [row["its bound δ_1²"] for row in dim_rows]
    claims = [
        checked(
            "with client sampling, E‖w_T − w*‖² = O(1/T)",
            f"slope {sampled.slope().text()} ({own.slope().text()} with the theorem's ζ)",
            sampled.slope().near(-1, 0.15) and own.slope().near(-1, 0.15),
        ),
        checked(
            "and E‖x_k^T − x_k*‖² = O(1/T)",
            f"slope {sampled.slope('x').text()} ({own.slope('x').text()})",
            sampled.slope("x").near(-1, 0.15) and own.slope("x").near(-1, 0.15),
        ),
        checked(
            "without it, O(1/T²) for both",
            f"w: slope {everyone.slope().text()} (the noise of mini-batches, unbiased for "
            f"quadratics, falls as 1/T³), x: {everyone.slope('x').text()}; with exact gradients w: "
            f"{betas[1.0].slope().text()}, x: {betas[1.0].slope('x').text()} "
            f"(with the theorem's ζ the start is not forgotten after {cases.size.own} rounds: "
            f"{own_everyone.slope().text()}, {own_everyone.slope('x').text()})",
            betas[1.0].slope().near(-2, 0.2) and everyone.slope().value <= -1.8,
        ),
        checked(
            "and O(1/β²)",
            f"slope {by_beta.text()} against β at T = {cases.size.without} (exact gradients)",
            by_beta.near(-2, 0.2),
        ),
        checked(
            "mild dependence on d_sub",
            f"slopes {min(slopes):.2f} to {max(slopes):.2f} for d_sub {cases.size.dims[0]} to "
            f"{cases.size.dims[-1]}, relative distances at T within a factor "
            f"{max(left) / min(left):.1f}; δ_1² of Lemma 4 grows by {max(flat) / min(flat):.1f}, "
            f"the error that it bounds by {max(errors.values()) / min(errors.values()):.1f}",
            max(slopes) - min(slopes) < 0.3 and max(left) / min(left) < 3,
        ),
    ]
    top = cases.sampled[0]
    panels = [
        Panel(
            "with client sampling (S = 2 of 10)",
            "rounds T",
            "squared distance",
            [
                sampled.line("w, practical ζ"),
                sampled.line("x, practical ζ", "x"),
                own.line("w, the theorem's ζ"),
                own.line("x, the theorem's ζ", "x"),
                guide(top.at(), 2 * float(sampled.w.mean(0)[-1]), -1, "1/T"),
            ],
            log="xy",
        ),
        Panel(
            "without client sampling (S = N)",
            "rounds T",
            "‖w_T − w*‖²",
            [
                everyone.line("β = 1, mini-batches D_t", style=6),
                *(c.line(f"β = {b:g}, exact", style=i) for i, (b, c) in enumerate(betas.items())),
                guide(cases.everyone[0].at(), float(betas[1.0].w[0, -1]) * 3, -2, "1/T²"),
            ],
            log="xy",
        ),
        Panel(
            "several d_sub (S = 2 of 10)",
            "rounds T",
            "‖w_T − w*‖² / ‖w_0 − w*‖²",
            [
                Line(f"d_sub = {m}", c.jobs[0].at(), (c.w.mean(0) / theories[m].start).tolist())
                for m, c in dims.items()
            ],
            log="xy",
        ),
    ]
    bounds = [
        {
            "run": name,
            "T": job.rounds,
            "‖w_T − w*‖²": float(curve.w[:, -1].mean()),
            "bound of the proof": job.bound()[-1],
        }
        for name, curve in (
            ("S = 2", sampled),
            ("S = 2, ζ of the theorem", own),
            ("S = N", everyone),
        )
        for job in curve.jobs[:1]
    ]
    return Page(
        NAME,
        "lp-proj, Theorem 14: the rates 1/T and 1/(β² T²)",
        settings=SETTINGS.format(
            size=cases.size,
            theory=top.case.theory(),
            most=cases.own[0].case.theory(),
            case=top.case,
        ),
        claims=claims,
        tables={
            "Slopes are fitted to log distance against log(ζ + T) from T = ζ on, repetition by "
            "repetition (mean and 95 % interval). η̃ = η β R.": rows,
            "The dimension of the subspace (S = 2 of 10, practical ζ). The last two columns are "
            "Lemma 4: the error of g_k for mini-batches of 4 and ν = 1e-4.": dim_rows,
            "The bound that the proof gives with all its constants (the recursion before (32)):": (
                bounds
            ),
        },
        figures={
            "rounds": top.at(),
            "w": sampled.w.tolist(),
            "x": sampled.x.tolist(),
            "by_beta": {str(b): c.w[0].tolist() for b, c in betas.items()},
        },
        panels=panels,
        seconds=seconds,
        order=24,
    )


SETTINGS = """\
The theorem (p = 2, f_k strongly convex) takes η_t = 8/(β R μ_F (ζ + t)) and, with client sampling,
ν_t = 8/(μ_F (ζ + t)) and D_t = ⌈μ_F (ζ + t)/D⌉; without it 8/(μ_F β² (ζ + t)²) and its inverse. It
leaves the problem open. Here: {case.problem.clients} clients in R^{case.problem.d},
f̃_k(x; ξ) = (h_k/2) ‖x − ξ‖² with h_k from {case.problem.low:g} to {case.problem.high:g}, centres
c_k = 1 + N(0, 1) and samples with standard deviation {case.problem.noise:g} around them per
coordinate; λ = {case.lam:g}, R = {case.alternations}, d_sub = {case.dim}, Gaussian P, w_0 = 0. All
assumptions hold exactly (μ = {theory.mu:g}, μ_F = {theory.mu_F:.3f}, κ_F = {theory.kappa_F:.2f},
s = {theory.s:.2f}), and w* is known in closed form. In the method's words: `nu` and `lr` are ν_0
and η_0, and `schedule="lr=inverse:1/ζ:1 + nu=inverse:1/ζ:1 + batch=grow:1/ζ:1"`; the batch is
rounded where the paper takes the next whole number, and D_0 = {size.batch} fixes D. Every (3) is
solved to ν_t. ‖w_T − w*‖² is the mean over the rounds since the last point of a curve.
{size.repetitions} repetitions that differ in all random numbers but P, as in the theorem's
expectation; {size.own_repetitions} with the theorem's own ζ, raised from 8 after its slope of w,
−1.22 ± 0.47, was seen.

ζ = 72 κ_F (1 + 7 κ_F/β) makes the first steps small: the rate shows only after some multiples of ζ
rounds, and ζ is {theory.zeta:,.0f} for β = 1 here, {most.zeta:,.0f} for β = N R = {most.beta:g}. So
the same schedule is shown with the practical ζ = 8 κ_F, with which the first step is 1/L_F. "Exact"
is without noise in the samples: then nothing is random.
"""
