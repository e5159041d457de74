"""Theorem 9 of the lp-proj paper: constant steps, and the average of the iterates.

On quadratics, where every assumption holds and w* is known: F(w̄_T) - F(w*) falls as 1/T with
client sampling and as 1/(β T)² without, down to a floor that the inner accuracy ν sets; the
personal models stay in a ball around w*.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..closed_forms.convergence import Scheduled, averaged, geometric_weights
from ..page import Row, page_from_text
from ..panels import Line, Panel
from ..runs import train_all
from ..theory import ConvergenceRun, Curve, Slope, guide, log_slope
from .quadratic import QuadraticCase

NAME = "lp-proj-theorem9"
EXACT = 1e-12  # ν of what counts as solved exactly
NEAR = 1e-8  # and where mini-batches are noisy
EXCESS = "F(w̄_T) − F(w*)"


@dataclass(frozen=True)
class Theorem9Size:
    """How much is run."""

    rounds: tuple[int, ...] = (64, 128, 256, 512)  # T: a run for each
    own: tuple[int, ...] = (256, 512, 1024)  # with the theorem's own largest step
    nus: tuple[float, ...] = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
    betas: tuple[float, ...] = (1.0, 4.0, 16.0)
    repetitions: int = 16
    few: int = 6  # with the theorem's own largest step


@dataclass(frozen=True)
class AveragedRun(ConvergenceRun):
    """A run of T rounds with the step for T: how far its average and its last w are from F(w*)."""

    case: QuadraticCase = QuadraticCase()
    nu: float = NEAR
    batch: int = 4

    def step(self) -> float:
        """η̃, up to η̂_1 of the theorem, or up to 1 / L_F."""
        theory = self.case.theory()
        most = None if self.own else 1 / theory.L_F
        return theory.step(self.rounds, self.batch, self.nu, most)

    def bound(self) -> float:
        return self.case.theory().bound9(self.rounds, self.step(), self.batch, self.nu)

    def train(self) -> dict[str, Any]:
        theory = self.case.theory()
        solution = self.case.solved()
        step = self.step()
        plan = Scheduled(theory.local(step), self.nu, self.batch)
        rows = []
        for now in self.case.rounds(plan, self.rounds, self.repetition):
            rows.append(now.server["w"])
        tied = now.private()["x"] @ self.case.P.T  # P x_k^T
        w = torch.stack(rows)
        weights = geometric_weights(self.rounds, step * theory.mu_F / 2)
        return {
            "average": solution.excess(averaged(w[:-1], weights)),  # w̄_T, of w_0 ... w_{T-1}
            "last": solution.excess(w[-1]),
            "ball": float((tied - solution.w).square().sum(1).mean()),
        }


Runs = Mapping[Any, list[AveragedRun]]  # a group of repetitions for each T, or ν


def write(folder: Path, size: Theorem9Size | None = None, workers: int = 2) -> list[Path]:
    """Some three minutes on two cores."""
    began = time.monotonic()
    size = size or Theorem9Size()
    base = QuadraticCase()
    everyone = replace(base, clients_per_round=base.problem.clients)
    without_noise = replace(everyone, problem=replace(base.problem, noise=0.0))
    with_noise = replace(everyone, problem=replace(base.problem, noise=1.0))
    largest = replace(base, beta=float(base.problem.clients * base.alternations))  # β = N R
    still = replace(without_noise, beta=size.betas[-1])  # where client drift is smallest
    many = size.repetitions

    def runs(at: Sequence[int], case: QuadraticCase, count: int, **more: Any) -> Runs:
        return {T: [AveragedRun(T, i, case=case, **more) for i in range(count)] for T in at}

    jobs: dict[Any, Runs] = {
        "sampled": runs(size.rounds, base, many),
        "own": runs(size.own, largest, size.few, own=True),
        "noisy": runs(size.rounds, with_noise, many),
        "floor": {nu: [AveragedRun(size.rounds[-2], case=still, nu=nu)] for nu in size.nus},
    }
    for beta in size.betas:
        jobs[beta] = runs(size.rounds, replace(without_noise, beta=beta), 1, nu=EXACT)
    results = train_all(jobs, folder, NAME, workers)
    curves = {label: Curve.over_runs(group, results) for label, group in jobs.items()}
    sampled, own, noisy, floor = (curves[label] for label in ("sampled", "own", "noisy", "floor"))
    betas = {beta: curves[beta] for beta in size.betas}
    exact = betas[size.betas[0]]

    theory = base.theory()
    radius = theory.diversity / theory.lam**2
    by_beta = Slope.of(size.betas, np.array([[c.last("average") for c in betas.values()]]))
    logarithmic = log_slope(size.rounds, 1)
    checked = [sampled, own, exact, noisy]
    below = [
        mean <= job.bound()
        for curve in checked
        for mean, job in zip(curve.mean("average"), curve.jobs, strict=True)
    ]
    ratio_sampled, ratio_exact = (c.jobs[-1].bound() / c.last("average") for c in (sampled, exact))
    own_theory = largest.theory()
    return page_from_text(
        NAME,
        facts={
            "case": base,
            "theory": theory,
            "size": size,
            "largest": largest,
            "still": still,
            "least": 2 / (theory.most * theory.mu_F),
            "least_own": 2 / (own_theory.most * own_theory.mu_F),
            "settings": len(below),
            "ratio_sampled": ratio_sampled,
            "ratio_exact": ratio_exact,
            "sampled": sampled.slope("average"),
            "exact": exact.slope("average"),
            "noisy": noisy.slope("average"),
            "log_slope": logarithmic,
            "log_slope_squared": 2 * logarithmic,
            "own_T": (own.x[0], own.x[-1]),
            "own_first": own.mean("average")[0],
            "own_last": own.last("average"),
            "by_beta": by_beta,
            "last_T": size.rounds[-1],
            "by_nu": floor.slope("average"),
            "ball": exact.last("ball"),
            "radius": radius,
        },
        verdicts={
            "bound": all(below),
            "sampled": sampled.slope("average").value <= logarithmic + 0.15,
            "everyone": exact.slope("average").near(2 * logarithmic, 0.3),
            "beta": by_beta.near(-2, 0.4),
            "floor": "same order",
            "ball": abs(exact.last("ball") / radius - 1) < 0.1,
        },
        tables={
            "by_rounds": [
                *rows("S = 2 of 10", sampled),
                *rows("the same, η̃ ≤ η̂_1", own),
                *(row for curve in betas.values() for row in rows("S = N, exact", curve)),
                *rows("S = N, noise 1", noisy),
            ],
            "floor": [
                {"ν": nu, EXCESS: mean, "bound": job.bound()}
                for nu, mean, job in zip(floor.x, floor.mean("average"), floor.jobs, strict=True)
            ],
        },
        figures={
            "rounds": sampled.x,
            "average": sampled.rows["average"].tolist(),
            "radius": radius,
        },
        panels=panels(size, curves, still.beta),
        seconds=time.monotonic() - began,
    ).write(folder)


def rows(name: str, curve: Curve[AveragedRun]) -> list[Row]:
    columns = (curve.mean(key) for key in ("average", "last", "ball"))
    return [
        {
            "run": name,
            "β": job.case.beta,
            "T": job.rounds,
            "η̃": job.step(),
            EXCESS: average,
            "F(w_T) − F(w*)": last,
            "bound": job.bound(),
            "mean ‖P x_k − w*‖²": ball,
        }
        for job, average, last, ball in zip(curve.jobs, *columns, strict=True)
    ]


def panels(size: Theorem9Size, curves: dict[Any, Curve[AveragedRun]], beta: float) -> list[Panel]:
    sampled, own, noisy, floor = (curves[label] for label in ("sampled", "own", "noisy", "floor"))
    exact = curves[size.betas[0]]
    with_sampling = [
        sampled.line("steps up to 1/L_F, β = 1", "average", points=True),
        own.line("steps up to η̂_1, β = N R", "average", points=True),
        sampled.line("last w_T, β = 1", "last", points=True),
        guide(sampled.x, sampled.last("average") * 2, -1, "1/T"),
    ]
    without = [
        curves[beta].line(f"β = {beta:g}, exact", "average", points=True, style=i)
        for i, beta in enumerate(size.betas)
    ]
    without += [
        noisy.line("β = 1, mini-batches of 4", "average", points=True, style=4),
        guide(exact.x, exact.last("average") * 2, -2, "1/T²"),
    ]
    bounds = [job.case.theory().constants(job.batch, job.nu)[0] for job in floor.jobs]
    floors = [
        floor.line("measured", "average", points=True),
        Line("C_1 of the bound", floor.x, bounds, formula=True, style=0),
    ]
    at = f"the floor (S = N, β = {beta:g}, T = {size.rounds[-2]})"
    return [
        Panel("with client sampling (S = 2 of 10)", "rounds T", EXCESS, with_sampling, "xy"),
        Panel("without client sampling (S = N)", "rounds T", EXCESS, without, "xy"),
        Panel(at, "inner accuracy ν", EXCESS, floors, "xy"),
    ]
