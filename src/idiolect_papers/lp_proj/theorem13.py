"""Theorem 13 of the lp-proj paper: constant steps on a smooth problem, and t* drawn uniformly.

E ||∇F(w_t*)||² falls as 1/√T with client sampling and as 1/(β T)^(2/3) without, for the step that
fits T.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..closed_forms.convergence import Scheduled, draw_rounds, step_weights
from ..page import Page, Row
from ..panels import Line, Panel
from ..rates import Slope, checked
from ..runs import Work, finished
from .smooth import Nonconvex
from .theorem15 import DRAWS, FIRST

NAME = "lp-proj-theorem13"


@dataclass(frozen=True)
class Size:
    """How much is run."""

    rounds: tuple[int, ...] = (64, 128, 256, 512)  # T: a run for each
    repetitions: int = 6
    batch: int = 16  # |D̃|
    nu: float = 1e-8


@dataclass(frozen=True)
class Uniform(Work):
    """A run of T rounds: mean ||∇F(w_t)||² over its rounds, exactly and by draws of t*."""

    case: Nonconvex
    rounds: int
    batch: int
    nu: float
    shortest: int  # T for which the practical step is `FIRST`
    own: bool = False  # the theorem's step, or the practical one
    repetition: int = 0

    def cost(self) -> float:
        return self.rounds

    def step(self) -> float:
        """η̃: of the proof; or as it depends on T there, from a larger one on."""
        theory = self.case.theory()
        if self.own:
            return theory.step(self.rounds, self.batch, self.nu)
        power = 1 / 2 if theory.sampling else 1 / 3
        return FIRST * (self.shortest / self.rounds) ** power

    def bound(self) -> float:
        return self.case.theory().bound13(self.rounds, self.step(), self.batch, self.nu)

    def train(self) -> dict[str, Any]:
        plan = Scheduled(self.case.theory().local(self.step()), self.nu, self.batch)
        found = self.case.slopes(plan, self.rounds, self.repetition)
        drawn = draw_rounds(step_weights(found.new_ones(self.rounds)), DRAWS, self.repetition)
        return {"expected": float(found.mean()), "drawn": float(found[drawn].mean())}


class Cases:
    def __init__(self, size: Size):
        self.size = size
        base = Nonconvex()
        everyone = replace(base, heard=base.problem.clients)
        self.groups = {
            "S = 2 of 10": self._over_rounds(base),
            "S = N": self._over_rounds(everyone),
            "S = 2, the theorem's η̃": self._over_rounds(base, own=True),
        }

    def _over_rounds(self, case: Nonconvex, own: bool = False) -> list[list[Uniform]]:
        size = self.size
        repetitions = 1 if own else size.repetitions
        return [
            [
                Uniform(case, T, size.batch, size.nu, size.rounds[0], own, r)
                for r in range(repetitions)
            ]
            for T in size.rounds
        ]

    def all(self) -> Iterator[Uniform]:
        for group in self.groups.values():
            for jobs in group:
                yield from jobs


def write(folder: Path, size: Size | None = None, workers: int = 2) -> list[Path]:
    """Some two minutes on two cores."""
    began = time.monotonic()
    cases = Cases(size or Size())
    results = finished(list(cases.all()), folder, NAME, workers)
    return _reproduced(cases, results, time.monotonic() - began).write(folder)


def _reproduced(cases: Cases, results: dict[Uniform, dict[str, Any]], seconds: float) -> Page:
    size = cases.size
    curves = {
        name: np.array([[results[job]["expected"] for job in jobs] for jobs in group]).T
        for name, group in cases.groups.items()
    }
    slopes = {name: Slope.of(size.rounds, curve, 0) for name, curve in curves.items()}
    rows: list[Row] = [
        {
            "run": name,
            "T": jobs[0].rounds,
            "η̃": jobs[0].step(),
            "E ‖∇F(w_t*)‖²": float(np.mean([results[j]["expected"] for j in jobs])),
            f"by {DRAWS} draws of t*": float(np.mean([results[j]["drawn"] for j in jobs])),
            "bound": jobs[0].bound(),
        }
        for name, group in cases.groups.items()
        for jobs in group
    ]
    sampled, everyone, own = cases.groups
    below = all(row["E ‖∇F(w_t*)‖²"] <= row["bound"] for row in rows)
    top = cases.groups[sampled][0][0]
    theory = top.case.theory()
    ratio = rows[-1]["bound"] / rows[-1]["E ‖∇F(w_t*)‖²"]
    claims = [
        checked(
            "with client sampling, O(1/√T)",
            f"slope {slopes[sampled].text()}",
            slopes[sampled].value <= -0.5 + 0.1,
        ),
        checked(
            "without it, O(1/T^(2/3))",
            f"slope {slopes[everyone].text()}",
            slopes[everyone].value <= -2 / 3 + 0.1,
        ),
        checked(
            "E‖∇F(w_t*)‖² is below the bound (20) of the proof",
            f"in all {len(rows)} settings; with the theorem's own step the bound is {ratio:.0f} "
            f"times larger at T = {size.rounds[-1]}, and the slope is {slopes[own].text()}: "
            "w hardly moves",
            below,
        ),
    ]
    panel = Panel(
        "Theorem 13",
        "rounds T",
        "E ‖∇F(w_t*)‖²",
        [
            *(
                Line(name, size.rounds, curve.mean(0).tolist(), points=True)
                for name, curve in curves.items()
            ),
            *(
                Line(
                    label,
                    size.rounds,
                    [
                        1.2 * float(curves[name][:, 0].mean()) * (size.rounds[0] / T) ** power
                        for T in size.rounds
                    ],
                    formula=True,
                    style=6,
                )
                for name, power, label in ((sampled, 1 / 2, "1/√T"), (everyone, 2 / 3, "1/T^(2/3)"))
            ),
        ],
        log="xy",
    )
    return Page(
        NAME,
        "lp-proj, Theorem 13: constant steps on a smooth problem",
        settings=SETTINGS.format(size=size, theory=theory, first=FIRST, most=1 / theory.slowness),
        claims=claims,
        tables={"A run for every T, with the step for that T:": rows},
        figures={"rounds": list(size.rounds), "curves": {n: c.tolist() for n, c in curves.items()}},
        panels=[panel],
        seconds=seconds,
        order=22,
    )


SETTINGS = """\
The theorem (p = 2, f_k smooth): for T rounds there is a constant step
η̃ = η β R <= η̂_2 = 1/(90 λ² L_F) with which, for t* uniform on 0 … T − 1, E ‖∇F(w_t*)‖² =
O(Δ_F/(η̂_2 T)) + O((Δ_F L_F σ²_F,2 (N/S − 1)/(T N))^(1/2))
+ O((Δ_F L_F)^(2/3) (σ²_F,2 + λ² δ_2²)^(1/3)/(β T)^(2/3)) + O(λ² δ_2²). The step of its proof is
min((β² Δ_F/(T C_4))^(1/3), (Δ_F/(T C_5))^(1/2)).

The problem, left open by the paper, is that of [Theorem 15](lp-proj-theorem15.md), with
|D̃| = {size.batch} and ν = {size.nu:g}. η̂_2 = {most:.4f} is so small that w hardly moves in these T,
and it binds up to T of some 10⁵: so steps of the same form are shown that start from
η̃ = {first:g} at T = {size.rounds[0]}: ∝ 1/√T with client sampling, ∝ 1/T^(1/3) without. The bound
is (20) with all its constants. {size.repetitions} repetitions with the same P.
"""
