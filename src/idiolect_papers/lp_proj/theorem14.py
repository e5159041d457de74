"""Theorem 14 of the lp-proj paper: η_t, ν_t and D_t over rounds lead to the exact solution.

On quadratics, where every assumption holds and w* is known: with client sampling at the rate 1/T,
without at 1/(β² T²), for w and for the personal models, whatever d_sub.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..closed_forms import linear_solutions as solutions
from ..closed_forms.convergence import Scheduled
from ..page import Row, page_from_text
from ..panels import Line, Panel
from ..runs import Work, train_all
from ..theory import ConvergenceRun, Curve, Slope, guide, spaced
from .quadratic import QuadraticCase

NAME = "lp-proj-theorem14"
DISTANCE = "‖w_T − w*‖²"
RELATIVE = "‖w_T − w*‖² / ‖w_0 − w*‖²"
PRACTICAL = 8.0  # ζ / κ_F: then η̃_0 = 1 / L_F, the largest step of plain gradient descent


@dataclass(frozen=True)
class Theorem14Size:
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
class DistanceRun(ConvergenceRun):
    """A run: how far w and the personal models are from the solution, at some rounds.

    For w, the mean over the rounds since the last of them: less noise at the same slope.
    """

    case: QuadraticCase = QuadraticCase()
    batch: int = 2
    points: int = 40

    def zeta(self) -> float:
        theory = self.case.theory()
        return theory.zeta if self.own else PRACTICAL * theory.kappa_F

    def schedule(self) -> Scheduled:
        return self.case.theory().scheduled(self.batch, self.zeta())

    def at(self) -> list[int]:
        """The rounds that are looked at."""
        return spaced(1, self.rounds, self.points)

    def bound(self) -> list[float]:
        """What the proof has for w at these rounds."""
        bounds = self.case.theory().bound14(self.rounds, self.schedule(), self.zeta())
        return bounds[self.at()].tolist()

    def train(self) -> dict[str, Any]:
        solution = self.case.solved()
        points = set(self.at())
        w, x = [], []
        since: list[float] = []
        for now in self.case.rounds(self.schedule(), self.rounds, self.repetition):
            since.append(float((now.server["w"] - solution.w).square().sum()))
            if now.round in points:
                w.append(float(np.mean(since)))
                since = []
                away = now.private()["x"] - solution.x
                x.append(float(away.square().sum(1).mean()))
        return {"w": w, "x": x}


@dataclass(frozen=True)
class InnerErrorRun(Work):
    """Lemma 4: how far g_k is from ∇F_k at a w that stays, for fixed ν and |D̃|."""

    case: QuadraticCase
    rounds: int
    batch: int
    nu: float

    def train(self) -> dict[str, Any]:
        case = replace(self.case, clients_per_round=self.case.problem.clients, alternations=1)
        problem, P = case.problem, case.P
        plan = Scheduled(lr=1e-12, nu=self.nu, batch=self.batch)  # w stays at 0
        errors = []
        for now in case.rounds(plan, self.rounds, 0):
            if now.round:
                w = now.server["w"]
                exact = solutions.tied(problem.hessians, problem.centres, case.lam, P, w)
                gap = (now.private()["x"] - exact) @ P.T  # (∇F_k - g_k) / λ
                errors.append(float(gap.square().sum(1).mean()))
        return {"error": float(np.mean(errors))}


def write(folder: Path, size: Theorem14Size | None = None, workers: int = 2) -> list[Path]:
    """Some five minutes on two cores."""
    began = time.monotonic()
    size = size or Theorem14Size()
    base = QuadraticCase()
    everyone = replace(base, clients_per_round=base.problem.clients)
    without_noise = replace(everyone, problem=replace(base.problem, noise=0.0))
    most = float(base.problem.clients * base.alternations)  # β = N R

    def runs(
        case: QuadraticCase, rounds: int, own: bool = False, count: int = 1
    ) -> list[DistanceRun]:
        return [
            DistanceRun(rounds, repetition, own, case, size.batch, size.points)
            for repetition in range(count)
        ]

    many = size.repetitions
    jobs: dict[Any, list[DistanceRun]] = {
        "sampled": runs(base, size.rounds, count=many),
        "own": runs(replace(base, beta=most), size.own, True, size.own_repetitions),
        "everyone": runs(everyone, size.without, count=many),
        "own_everyone": runs(replace(without_noise, beta=most), size.own, own=True),
    }
    for beta in size.betas:
        jobs["β", beta] = runs(replace(without_noise, beta=beta), size.without)
    for dim in size.dims:
        jobs["dim", dim] = runs(replace(base, dim=dim), size.rounds_of_dims, count=many)
    lemma = {
        dim: InnerErrorRun(replace(base, dim=dim), max(2, many * 5), 4, 1e-4) for dim in size.dims
    }
    results = train_all([jobs, lemma], folder, NAME, workers)
    curves = {key: Curve.over_rounds(group[0].at(), group, results) for key, group in jobs.items()}
    sampled, own, all_clients = curves["sampled"], curves["own"], curves["everyone"]
    betas = {beta: curves["β", beta] for beta in size.betas}
    exact = betas[1.0]
    by_beta = Slope.of(size.betas, np.array([[c.last("w") for c in betas.values()]]))
    dims = {dim: curves["dim", dim] for dim in size.dims}
    theories = {dim: job.case.theory() for dim, job in lemma.items()}
    dim_rows = [
        {
            "d_sub": dim,
            "s": theory.s,
            "κ_F": theory.kappa_F,
            "slope of w": str(slope(dims[dim])),
            RELATIVE: dims[dim].last("w") / theory.start,
            "(∇F_k − g_k)² / λ²": results[lemma[dim]]["error"],
            "its bound δ_1²": theory.approximation(lemma[dim].batch, lemma[dim].nu),
        }
        for dim, theory in theories.items()
    ]
    slopes = [slope(curve).value for curve in dims.values()]
    distances, errors, bounds = (
        max(column) / min(column)
        for column in (
            [row[key] for row in dim_rows]
            for key in (RELATIVE, "(∇F_k − g_k)² / λ²", "its bound δ_1²")
        )
    )
    theory = base.theory()
    return page_from_text(
        NAME,
        facts={
            "size": size,
            "case": base,
            "theory": theory,
            "largest": replace(base, beta=most).theory(),
            **{
                name: {"w": slope(curves[name]), "x": slope(curves[name], "x")}
                for name in ("sampled", "own", "everyone", "own_everyone")
            },
            "exact": {"w": slope(exact), "x": slope(exact, "x")},
            "by_beta": by_beta,
            "least_slope": min(slopes),
            "largest_slope": max(slopes),
            "least_dim": size.dims[0],
            "largest_dim": size.dims[-1],
            "distances": distances,
            "bounds": bounds,
            "errors": errors,
        },
        verdicts={
            "sampled_w": slope(sampled).near(-1, 0.15) and slope(own).near(-1, 0.15),
            "sampled_x": slope(sampled, "x").near(-1, 0.15) and slope(own, "x").near(-1, 0.15),
            "everyone": slope(exact).near(-2, 0.2) and slope(all_clients).value <= -1.8,
            "beta": by_beta.near(-2, 0.2),
            "dims": max(slopes) - min(slopes) < 0.3 and distances < 3,
        },
        tables={
            "slopes": [
                row("S = 2 of 10", sampled),
                row("the same, ζ of the theorem", own),
                row("S = N", all_clients),
                row("S = N, exact, ζ of the theorem", curves["own_everyone"]),
            ],
            "dims": dim_rows,
            "bounds": [
                bound_row("S = 2", sampled),
                bound_row("S = 2, ζ of the theorem", own),
                bound_row("S = N", all_clients),
            ],
        },
        figures={
            "rounds": sampled.x,
            "w": sampled.rows["w"].tolist(),
            "x": sampled.rows["x"].tolist(),
            "by_beta": {str(beta): curve.rows["w"][0].tolist() for beta, curve in betas.items()},
        },
        panels=panels(curves, betas, dims),
        seconds=time.monotonic() - began,
    ).write(folder)


def slope(curve: Curve[DistanceRun], key: str = "w") -> Slope:
    """Against ζ + T, from T = ζ on, where the start is forgotten; of short runs the last points."""
    zeta = curve.jobs[0].zeta()
    return curve.slope(key, min(2 * zeta, zeta + curve.x[-5]), zeta)


def row(name: str, curve: Curve[DistanceRun]) -> Row:
    job = curve.jobs[0]
    plan = job.schedule()
    return {
        "run": name,
        "β": job.case.beta,
        "ζ": job.zeta(),
        "η̃_0": plan.lr * job.case.beta * job.case.alternations,
        "ν_0": plan.nu,
        "T": job.rounds,
        DISTANCE: curve.last("w"),
        "slope of w": str(slope(curve)),
        "slope of x": str(slope(curve, "x")),
    }


def bound_row(name: str, curve: Curve[DistanceRun]) -> Row:
    job = curve.jobs[0]
    return {
        "run": name,
        "T": job.rounds,
        DISTANCE: curve.last("w"),
        "bound of the proof": job.bound()[-1],
    }


Curves = dict[Any, Curve[DistanceRun]]


def panels(curves: Curves, betas: Curves, dims: Curves) -> list[Panel]:
    sampled, own, all_clients = curves["sampled"], curves["own"], curves["everyone"]
    with_sampling = [
        sampled.line("w, practical ζ", "w"),
        sampled.line("x, practical ζ", "x"),
        own.line("w, the theorem's ζ", "w"),
        own.line("x, the theorem's ζ", "x"),
        guide(sampled.x, 2 * sampled.last("w"), -1, "1/T"),
    ]
    without = [
        all_clients.line("β = 1, mini-batches D_t", "w", style=6),
        *(
            curve.line(f"β = {beta:g}, exact", "w", style=i)
            for i, (beta, curve) in enumerate(betas.items())
        ),
        guide(all_clients.x, betas[1.0].last("w") * 3, -2, "1/T²"),
    ]
    by_dim = []
    for dim, curve in dims.items():
        distances = curve.rows["w"].mean(0) / curve.jobs[0].case.theory().start
        by_dim.append(Line(f"d_sub = {dim}", curve.x, distances.tolist()))
    return [
        Panel(
            "with client sampling (S = 2 of 10)",
            "rounds T",
            "squared distance",
            with_sampling,
            "xy",
        ),
        Panel("without client sampling (S = N)", "rounds T", DISTANCE, without, "xy"),
        Panel("several d_sub (S = 2 of 10)", "rounds T", RELATIVE, by_dim, "xy"),
    ]
