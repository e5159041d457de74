"""Theorems 13 and 15 of the lp-proj paper: lp-proj-2 on a smooth problem that is not convex.

With t* drawn at random, E ||∇F(w_t*)||² falls as 1/√T with client sampling and as 1/(β T)^(2/3)
without: for the constant step that fits T (Theorem 13), and up to ln T with schedules (Theorem 15).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..closed_forms.convergence import Scheduled, Smooth, draw_rounds, step_weights
from ..closed_forms.problems import Robust
from ..page import Row, page_from_text
from ..panels import Line, Panel
from ..runs import one_thread, train_all
from ..theory import ConvergenceRun, Curve, guide, log_slope, spaced
from .quadratic import TheoremCase

FIRST = 8.0  # practical η̃_0: as large as F's own smoothness allows, λ L / (λ + L) < 1/4
DRAWS = 200  # t* per repetition
GRADIENT = "E ‖∇F(w_t*)‖²"
DRAWN = f"by {DRAWS} draws of t*"


@dataclass(frozen=True)
class Nonconvex(TheoremCase):
    """A problem that is not convex, with the smallest λ that the theorems allow."""

    problem: Robust = field(default_factory=Robust)

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
            clients_per_round=self.clients_per_round,
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
        fields = {"dim": problem.dim, "projection": "orthogonal", "lam": self.lam}
        fields["personal_lr"] = 1 / (self.lam + problem.L)
        run = self.follow(problem, plan, rounds, repetition, **fields)
        w = torch.stack([now.server["w"] for now in run])[:-1]
        with one_thread():
            parts = [problem.gradients(part, self.lam) for part in w.split(256)]
        return torch.cat(parts).square().sum(1)


# -- Theorem 13: constant steps -------------------------------------------------------------------
@dataclass(frozen=True)
class Theorem13Size:
    """How much is run."""

    rounds: tuple[int, ...] = (64, 128, 256, 512)  # T: a run for each
    repetitions: int = 6
    batch: int = 16  # |D̃|
    nu: float = 1e-8


@dataclass(frozen=True)
class ConstantStepRun(ConvergenceRun):
    """A run of T rounds: mean ||∇F(w_t)||² over its rounds, exactly and by draws of t*."""

    case: Nonconvex = Nonconvex()
    batch: int = 16
    nu: float = 1e-8
    shortest: int = 64  # T for which the practical step is `FIRST`

    def step(self) -> float:
        """η̃: that of the proof, or a larger one that depends on T in the same way."""
        theory = self.case.theory()
        if self.own:
            return theory.step(self.rounds, self.batch, self.nu)
        power = 1 / 2 if theory.sampling else 1 / 3
        return FIRST * (self.shortest / self.rounds) ** power

    def bound(self) -> float:
        return self.case.theory().bound13(self.rounds, self.step(), self.batch, self.nu)

    def train(self) -> dict[str, Any]:
        plan = Scheduled(self.case.theory().local(self.step()), self.nu, self.batch)
        slopes = self.case.slopes(plan, self.rounds, self.repetition)
        drawn = draw_rounds(step_weights(slopes.new_ones(self.rounds)), DRAWS, self.repetition)
        return {"expected": float(slopes.mean()), "drawn": float(slopes[drawn].mean())}


def write_theorem13(
    folder: Path, size: Theorem13Size | None = None, workers: int = 2
) -> list[Path]:
    """Some two minutes on two cores."""
    name = "lp-proj-theorem13"
    began = time.monotonic()
    size = size or Theorem13Size()
    base = Nonconvex()
    everyone = replace(base, clients_per_round=base.problem.clients)
    jobs = {
        label: {
            T: [
                ConstantStepRun(T, repetition, own, case, size.batch, size.nu, size.rounds[0])
                for repetition in range(1 if own else size.repetitions)
            ]
            for T in size.rounds
        }
        for label, case, own in (
            ("S = 2 of 10", base, False),
            ("S = N", everyone, False),
            ("S = 2, the theorem's η̃", base, True),
        )
    }
    results = train_all(jobs, folder, name, workers)
    curves = {label: Curve.over_runs(group, results) for label, group in jobs.items()}
    rows: list[Row] = [
        {
            "run": label,
            "T": job.rounds,
            "η̃": job.step(),
            GRADIENT: expected,
            DRAWN: drawn,
            "bound": job.bound(),
        }
        for label, curve in curves.items()
        for job, expected, drawn in zip(
            curve.jobs, curve.mean("expected"), curve.mean("drawn"), strict=True
        )
    ]
    sampled, all_clients, _ = curves.values()
    slopes = [curve.slope("expected") for curve in curves.values()]
    theory = base.theory()
    lines = [curve.line(label, "expected", points=True) for label, curve in curves.items()]
    for curve, power, label in ((sampled, 1 / 2, "1/√T"), (all_clients, 2 / 3, "1/T^(2/3)")):
        first = 1.2 * curve.mean("expected")[0]
        y = [first * (size.rounds[0] / T) ** power for T in size.rounds]
        lines.append(Line(label, size.rounds, y, formula=True, style=6))
    return page_from_text(
        name,
        facts={
            "size": size,
            "theory": theory,
            "first": FIRST,
            "own": 1 / theory.slowness,
            "sampled": slopes[0],
            "everyone": slopes[1],
            "own_slope": slopes[2],
            "settings": len(rows),
            "ratio": rows[-1]["bound"] / rows[-1][GRADIENT],
            "last": size.rounds[-1],
        },
        verdicts={
            "sampled": slopes[0].value <= -1 / 2 + 0.1,
            "everyone": slopes[1].value <= -2 / 3 + 0.1,
            "bound": all(row[GRADIENT] <= row["bound"] for row in rows),
        },
        tables={"A run for every T, with the step for that T:": rows},
        figures={
            "rounds": list(size.rounds),
            "curves": {label: curve.rows["expected"].tolist() for label, curve in curves.items()},
        },
        panels=[Panel("Theorem 13", "rounds T", GRADIENT, lines, "xy")],
        seconds=time.monotonic() - began,
    ).write(folder)


# -- Theorem 15: schedules ------------------------------------------------------------------------
@dataclass(frozen=True)
class Theorem15Size:
    """How much is run."""

    rounds: int = 1000
    own: int = 300  # with the theorem's own steps, which are some 1,500 times smaller
    repetitions: int = 6
    batch: int = 2  # D_0
    points: int = 40
    beta: float = 4.0  # shown with β = 1, without client sampling


@dataclass(frozen=True)
class ScheduledRun(ConvergenceRun):
    """A run: E ||∇F(w_t*)||² for several T, over t* exactly, and by draws for the last T."""

    case: Nonconvex = Nonconvex()
    batch: int = 2
    points: int = 40

    def schedule(self) -> Scheduled:
        theory = self.case.theory()
        # without client sampling the theorem's η̃_0 is proportional to β^(2/3): FIRST is for β = 4
        first = FIRST if theory.sampling else FIRST * (self.case.beta / 4) ** (2 / 3)
        return theory.scheduled(self.batch, None if self.own else first)

    def at(self) -> list[int]:
        return spaced(1, self.rounds, self.points)

    def bound(self) -> float:
        return float(self.case.theory().bound15(self.rounds, self.schedule())[-1])

    def train(self) -> dict[str, Any]:
        slopes = self.case.slopes(self.schedule(), self.rounds, self.repetition)
        power = 1 / 2 if self.case.theory().sampling else 1 / 3
        steps = torch.arange(1, self.rounds + 1, dtype=torch.float64) ** -power  # η_t / η_0
        weights = [step_weights(steps[:T]) for T in self.at()]
        drawn = draw_rounds(weights[-1], DRAWS, self.repetition)
        return {
            "expected": [float(slopes[: len(a)] @ a) for a in weights],
            "drawn": [float(slopes[drawn].mean())],
        }


def write_theorem15(
    folder: Path, size: Theorem15Size | None = None, workers: int = 2
) -> list[Path]:
    """Some two minutes on two cores."""
    name = "lp-proj-theorem15"
    began = time.monotonic()
    size = size or Theorem15Size()
    base = Nonconvex()
    everyone = replace(base, clients_per_round=base.problem.clients)
    jobs = {
        label: [
            ScheduledRun(
                size.own if own else size.rounds, repetition, own, case, size.batch, size.points
            )
            for repetition in range(1 if own else size.repetitions)
        ]
        for label, case, own in (
            ("S = 2 of 10", base, False),
            ("S = N", everyone, False),
            (f"S = N, β = {size.beta:g}", replace(everyone, beta=size.beta), False),
            ("S = 2, the theorem's η̃_0", base, True),
            ("S = N, the theorem's η̃_0", everyone, True),
        )
    }
    results = train_all(jobs, folder, name, workers)
    curves = {
        label: Curve.over_rounds(group[0].at(), group, results) for label, group in jobs.items()
    }
    slopes = [c.slope("expected", c.jobs[0].rounds / 20) for c in curves.values()]
    rows: list[Row] = []
    for (label, curve), slope in zip(curves.items(), slopes, strict=True):
        job = curve.jobs[0]
        plan = job.schedule()
        rows.append(
            {
                "run": label,
                "η̃_0": plan.lr * job.case.beta * job.case.alternations,
                "ν_0": plan.nu,
                "T": job.rounds,
                GRADIENT: curve.last("expected"),
                DRAWN: curve.last("drawn"),
                "slope": str(slope),
                "bound": job.bound(),
            }
        )
    sampled, all_clients, larger_beta, *own_steps = curves.values()
    gain = larger_beta.last("expected") / all_clients.last("expected")
    expected_gain = size.beta ** (-2 / 3)
    late = [T for T in sampled.x if size.rounds / 20 <= T]
    rates = [log_slope(late, power) for power in (1 / 2, 2 / 3)]
    theory = base.theory()
    lines = [curve.line(label, "expected") for label, curve in curves.items()]
    lines += [
        guide(sampled.x, 1.3 * sampled.last("expected"), -1 / 2, "1/√T"),
        guide(sampled.x, larger_beta.last("expected") / 1.5, -2 / 3, "1/T^(2/3)"),
    ]
    return page_from_text(
        name,
        facts={
            "size": size,
            "theory": theory,
            "case": base,
            "own": 1 / theory.slowness,
            "first": FIRST,
            "sampled": slopes[0],
            "everyone": slopes[1],
            "rate_sampled": rates[0],
            "rate_everyone": rates[1],
            "gain": gain,
            "expected_gain": expected_gain,
            "left": [c.rows["expected"][0, -1] / c.rows["expected"][0, 0] for c in own_steps],
            "own_row": rows[3],
        },
        verdicts={
            "sampled": slopes[0].value <= rates[0] + 0.05,
            "everyone": slopes[1].value <= rates[1] + 0.05,
            "beta": abs(gain / expected_gain - 1) < 0.25,
            "own": "same order",
        },
        tables={"Slopes are fitted from T/20 on, repetition by repetition:": rows},
        figures={
            "rounds": sampled.x,
            "curves": {label: curve.rows["expected"].tolist() for label, curve in curves.items()},
        },
        panels=[Panel("Theorem 15", "rounds T", GRADIENT, lines, "xy")],
        seconds=time.monotonic() - began,
    ).write(folder)
