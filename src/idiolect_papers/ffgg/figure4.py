"""FFGG with Byzantine clients: Figure 4 of its paper. `idiolect reproduce ffgg-figure4`."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import idiolect as il

from ..closed_forms.quadratic import Problem, Quadratic
from ..panels import Panel
from ..theory import theory_page
from .runs import FollowedRuns, NormCurve

CLEAN, ROBUST, MEAN, OWN = (
    "no Byzantine clients",
    "Byzantine, median of buckets",
    "Byzantine, mean",
    "Byzantine, median of buckets, own targets",
)


@dataclass(frozen=True)
class Figure4Size:
    """The sizes of the experiment; those of the paper as defaults."""

    drawn: Quadratic = Quadratic(clients=42, truth="common", noise=0.0, seed=42)
    malicious: int = 10
    rounds: int = 1000

    @property
    def attack(self) -> dict[str, Any]:
        """Malicious clients send the gradient with its sign flipped."""
        return {"attack": "scaling(factor=-1)", "malicious": float(self.malicious)}


BUCKETS = {"rule": "bucketing(size=2) + median"}


def write(folder: Path, size: Figure4Size | None = None) -> list[Path]:
    """Run everything and write the page."""
    began = time.process_time()
    size = size or Figure4Size()
    with FollowedRuns("ffgg-figure4", 4 * size.rounds) as runs:
        problem = size.drawn.draw()
        curves = {
            CLEAN: measure(runs, CLEAN, problem, size),
            ROBUST: measure(runs, ROBUST, problem, size, **size.attack, **BUCKETS),
            MEAN: measure(runs, MEAN, problem, size, **size.attack),
        }
        own = replace(size.drawn, truth="own", noise=1e-3).draw()
        curves[OWN] = measure(runs, OWN, own, size, **size.attack, **BUCKETS)
    shown = [r for r in (0, 1, 101, 501, 1000) if r <= size.rounds]
    clean, robust = (rate(curves[label], size.rounds) for label in (CLEAN, ROBUST))
    end = {label: curve.at(size.rounds) for label, curve in curves.items()}
    remains = end[OWN] > 10 * end[ROBUST]
    return theory_page(
        "ffgg-figure4",
        facts={
            "size": size,
            "drawn": size.drawn,
            "constants": problem.constants(),
            "clean": clean,
            "robust": robust,
            "end_robust": end[ROBUST],
            "end_mean": end[MEAN],
            "end_own": end[OWN],
            "remains": "stays" if remains else "is",
        },
        verdicts={
            "linear": robust[1] > 0.99 and robust[0] < 1,
            "slower": robust[0] >= clean[0],
            "assumption": remains,
        },
        tables={
            "‖F(θ)‖ of the honest clients after so many rounds": [
                {"": label} | curve.row(shown) for label, curve in curves.items()
            ],
            "The same by an independent implementation, 32 honest clients and 10 copies of them": [
                {"": label} | {f"{r}": REFERENCE[label].get(r) for r in shown}
                for label in REFERENCE
            ],
        },
        figures={label: curve.line().y for label, curve in curves.items()},
        panels=[
            Panel(
                f"{size.malicious} of {size.drawn.clients} clients flip the sign",
                "round",
                "‖F(θ)‖",
                [curve.line() for curve in curves.values()],
                log="y",
            )
        ],
        seconds=time.process_time() - began,
    ).write(folder)


REFERENCE: dict[str, dict[int, float]] = {
    CLEAN: {0: 12.80, 1: 1.285, 101: 0.656, 501: 4.57e-2, 1000: 1.65e-3},
    ROBUST: {101: 0.691, 501: 5.9e-2, 1000: 2.9e-3},
    MEAN: {1000: 3.9e-2},
}


def measure(
    runs: FollowedRuns, label: str, problem: Problem, size: Figure4Size, **settings: Any
) -> NormCurve:
    """Algorithm 5 with exact computations on the clients."""
    lr = 1 / problem.constants().F
    method = il.Ffgg(part="w.*", lr=lr, solver="exact", start="common")
    return runs.follow(label, problem, method, size.rounds, 1, **settings)


def rate(curve: NormCurve, rounds: int) -> tuple[float, float]:
    """(factor per round, R²) of a straight line through log ‖F(θ)‖ after the first tenth."""
    x = np.arange(rounds // 10, rounds + 1)
    y = np.log([curve.at(int(r)) for r in x])
    slope, start = np.polyfit(x, y, 1)
    residuals = y - (start + slope * x)
    return float(np.exp(slope)), float(1 - residuals.var() / y.var())
