"""FFGG with Byzantine clients: Figure 4 of its paper. `idiolect reproduce ffgg-figure4`."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from idiolect.methods import Ffgg

from ..closed_forms.quadratic import Problem, Quadratic
from ..page import Claim, Page
from ..panels import Panel
from .runs import Curve, Runs

CLEAN, ROBUST, MEAN, OWN = (
    "no Byzantine clients",
    "Byzantine, median of buckets",
    "Byzantine, mean",
    "Byzantine, median of buckets, own targets",
)


@dataclass(frozen=True)
class Size:
    """The sizes of the experiment; those of the paper as defaults."""

    drawn: Quadratic = Quadratic(clients=42, truth="common", noise=0.0, seed=42)
    malicious: int = 10
    rounds: int = 1000

    @property
    def attack(self) -> dict[str, Any]:
        """Malicious clients send the gradient with its sign flipped."""
        return {"attack": "scaling(factor=-1)", "malicious": float(self.malicious)}


BUCKETS = {"rule": "bucketing(size=2) + median"}


def write(folder: Path, size: Size | None = None) -> list[Path]:
    """Run everything and write the page."""
    began = time.process_time()
    size = size or Size()
    with Runs("ffgg-figure4", 4 * size.rounds) as runs:
        problem = size.drawn.draw()
        found = {
            CLEAN: measure(runs, CLEAN, problem, size),
            ROBUST: measure(runs, ROBUST, problem, size, **size.attack, **BUCKETS),
            MEAN: measure(runs, MEAN, problem, size, **size.attack),
        }
        own = replace(size.drawn, truth="own", noise=1e-3).draw()
        found[OWN] = measure(runs, OWN, own, size, **size.attack, **BUCKETS)
    marks = [r for r in (0, 1, 101, 501, 1000) if r <= size.rounds]
    page = Page(
        name="ffgg-figure4",
        title="FFGG, Figure 4: Byzantine clients",
        settings=words(size, problem),
        claims=claims(found, size),
        tables={
            "‖F(θ)‖ of the honest clients after so many rounds": [
                {"": label} | {f"{r}": float(f"{c.at(r):.3g}") for r in marks}
                for label, c in found.items()
            ],
            "The same by an independent implementation, 32 honest clients and 10 copies of them": [
                {"": label} | {f"{r}": REFERENCE[label].get(r) for r in marks}
                for label in REFERENCE
            ],
        },
        figures={label: c.line().y for label, c in found.items()},
        panels=[
            Panel(
                f"{size.malicious} of {size.drawn.clients} clients flip the sign",
                "round",
                "‖F(θ)‖",
                [c.line() for c in found.values()],
                log="y",
            )
        ],
        seconds=time.process_time() - began,
        order=14,
    )
    return page.write(folder)


REFERENCE: dict[str, dict[int, float]] = {
    CLEAN: {0: 12.80, 1: 1.285, 101: 0.656, 501: 4.57e-2, 1000: 1.65e-3},
    ROBUST: {101: 0.691, 501: 5.9e-2, 1000: 2.9e-3},
    MEAN: {1000: 3.9e-2},
}


def measure(runs: Runs, label: str, problem: Problem, size: Size, **settings: Any) -> Curve:
    """Algorithm 5 with exact computations on the clients."""
    lr = 1 / problem.constants().F
    method = Ffgg(part="w.*", lr=lr, solver="exact", start="common")
    return runs.follow(label, problem, method, size.rounds, 1, **settings)


def rate(curve: Curve, rounds: int) -> tuple[float, float]:
    """(factor per round, R²) of a straight line through log ‖F(θ)‖ after the first tenth."""
    x = np.arange(rounds // 10, rounds + 1)
    y = np.log([curve.at(int(r)) for r in x])
    slope, start = np.polyfit(x, y, 1)
    left = y - (start + slope * x)
    return float(np.exp(slope)), float(1 - left.var() / y.var())


def claims(found: dict[str, Curve], size: Size) -> list[Claim]:
    clean, robust = (rate(found[label], size.rounds) for label in (CLEAN, ROBUST))
    linear = robust[1] > 0.99 and robust[0] < 1
    slower = robust[0] >= clean[0]
    end = {label: found[label].at(size.rounds) for label in found}
    stays = end[OWN] > 10 * end[ROBUST]
    return [
        Claim(
            "with Byzantine clients FFGG still converges linearly to the optimum",
            f"times {robust[0]:.5f} per round, a straight line in the logarithm "
            f"(R² {robust[1]:.4f}), {end[ROBUST]:.2g} after {size.rounds} rounds",
            "agrees" if linear else "differs",
            "" if linear else "not found",
        ),
        Claim(
            "slightly slower than without Byzantine clients",
            f"times {robust[0]:.5f} against {clean[0]:.5f} per round; by the plain mean "
            f"{end[MEAN]:.2g} after {size.rounds} rounds",
            "agrees" if slower else "differs",
            "" if slower else "not found",
        ),
        Claim(
            "(Theorem 8) needs a θ* that is optimal for every client (Assumption 2)",
            f"with targets of each client's own, ‖F(θ)‖ stays at {end[OWN]:.2g}"
            if stays
            else f"with targets of each client's own, ‖F(θ)‖ is at {end[OWN]:.2g}",
            "agrees" if stays else "differs",
            "" if stays else "the median of buckets is near their mean here",
        ),
    ]


def words(size: Size, problem: Problem) -> str:
    d = size.drawn
    c = problem.constants()
    return f"""\
As printed: {d.clients} clients, {size.malicious} of which flip the sign of what they send;
n = {d.samples:,}, d_θ = {d.shared}, d_w = {d.private}; exact computations on the clients; the
coordinate median of buckets of 2 (`--rule 'bucketing(size=2) + median'
--attack 'scaling(factor=-1)'`), Algorithm 5 with F the mean over the honest clients.

Left open, and chosen here: the targets (one common θ* and no noise, so that Assumption 2 holds, as
in the authors' notebook; beside it targets of each client's own); γ_θ = 1/L_F with L_F = {c.F:.4g},
as there (Theorem 8 asks for a quarter of it or less); buckets of 2; {size.rounds} rounds. Byzantine
clients have data of their own; in the notebook they are copies of honest ones."""
