"""FFGG under heterogeneity ζ: Figure 2 of its paper. `idiolect reproduce ffgg-figure2`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..closed_forms.quadratic import NORMS, Quadratic
from ..page import page_from_text
from .runs import (
    FFGG,
    JOINT,
    L2GD,
    LOCAL,
    SCAFFOLD,
    NormRun,
    baselines,
    exact,
    ffgg,
    joint,
    norm_panel,
    problem_of,
    stored_curves,
    train_curves,
)

NAME = "ffgg-figure2"
EXACT, STATEFUL = "FFGG, exact", "FFGG, w kept"
NORM_WORDS = {"spectral": "spectral", "frobenius": "Frobenius"}


@dataclass(frozen=True)
class Figure2Size:
    """The sizes of the experiment; those of the paper as defaults."""

    drawn: Quadratic = Quadratic(samples=1000, zeta=20.0)  # d_θ = 100, d_w = 50, 32 clients
    zetas: tuple[float, ...] = (20.0, 40.0, 80.0)
    tau: int = 20
    rounds: int = 150

    def runs(self, drawn: Quadratic) -> dict[str, NormRun]:
        """All methods with τ local steps; FFGG also with w kept."""
        constants = problem_of(drawn).constants()
        method = ffgg(constants, self.tau)
        methods = {FFGG: method, STATEFUL: replace(method, start="kept")}
        return {
            label: NormRun(label, drawn, method, self.rounds, 10 + self.tau)
            for label, method in (methods | baselines(constants, self.tau)).items()
        }


def write(folder: Path, size: Figure2Size | None = None, workers: int = 2) -> list[Path]:
    """Run everything and write the page."""
    began = time.monotonic()
    size = size or Figure2Size()
    cases = {
        (norm, zeta): replace(size.drawn, norm=norm, zeta=zeta)
        for norm in NORMS
        for zeta in size.zetas
    }
    jobs = {case: size.runs(drawn) for case, drawn in cases.items()}
    curves = train_curves(jobs, folder, NAME, workers)
    for case, drawn in cases.items():
        problem = problem_of(drawn)
        lr = 1 / problem.constants().example1
        curves[case][EXACT] = exact(EXACT, problem, lr, size.rounds)
        curves[case][JOINT] = joint(problem, size.rounds)
    printed = [curves[NORMS[0], zeta] for zeta in size.zetas]
    start = [group[FFGG].norms[0] for group in printed]

    def ends(label: str) -> list[float]:
        return [group[label].at(size.rounds) for group in printed]

    def shares(label: str) -> list[float]:  # of ‖F(θ⁰)‖
        return [end / first for end, first in zip(ends(label), start, strict=True)]

    floors = {label: ends(label) for label in (SCAFFOLD, LOCAL, L2GD)}
    spread = max(shares(FFGG)) / min(shares(FFGG))
    titles = {(norm, zeta): f"ζ = {zeta:g}, {NORM_WORDS[norm]} norm" for norm, zeta in cases}
    shown = sorted({0, size.rounds // 15, size.rounds // 3, size.rounds})
    return page_from_text(
        NAME,
        facts={
            "size": size,
            "drawn": size.drawn,
            "zetas": ", ".join(f"{zeta:g}" for zeta in size.zetas),
            "ends": text(ends(FFGG)),
            "shares": text(shares(FFGG)),
            "level": [group[EXACT].first_below(1e-6) for group in printed],
            "stateful": text(ends(STATEFUL)),
            "spread": spread,
            "floors": "; ".join(f"{label} {text(values)}" for label, values in floors.items()),
            "scaffold": text(shares(SCAFFOLD)),
        },
        verdicts={
            "order": max(ends(FFGG)) < 1e-5,
            "impact": spread < 3,
            "others": all(values[0] < values[-1] for values in floors.values())
            and max(values[-1] / values[0] for values in floors.values()) > 2,
        },
        tables={
            f"‖F(θ)‖ after so many rounds; matrices of {NORM_WORDS[norm]} norm 1": [
                {"ζ": f"{zeta:g}", "method": label} | curve.row(shown)
                for zeta in size.zetas
                for label, curve in curves[norm, zeta].items()
            ]
            for norm in NORMS
        },
        figures={titles[case]: stored_curves(group) for case, group in curves.items()},
        panels=[
            norm_panel(
                titles[case],
                [  # as far as they are above rounding
                    curve.down_to(1e-13 * curve.norms[0]).line(formula=label in (EXACT, JOINT))
                    for label, curve in group.items()
                ],
            )
            for case, group in curves.items()
        ],
        seconds=time.monotonic() - began,
    ).write(folder)


def text(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2g}" for value in values)
