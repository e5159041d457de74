"""FFGG under heterogeneity ζ: Figure 2 of its paper. `idiolect reproduce ffgg-figure2`."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from ..closed_forms.quadratic import NORMS, Problem, Quadratic
from ..panels import Panel
from ..theory import theory_page
from . import runs as methods
from .runs import FFGG, JOINT, L2GD, LOCAL, SCAFFOLD, FollowedRuns, NormCurve, exact

EXACT, STATEFUL = "FFGG, exact", "FFGG, w kept"
NAMES = {"spectral": "spectral", "frobenius": "Frobenius"}  # of the norms, in words


@dataclass(frozen=True)
class Figure2Size:
    """The sizes of the experiment; those of the paper as defaults."""

    drawn: Quadratic = Quadratic(samples=1000, zeta=20.0)  # d_θ = 100, d_w = 50, 32 clients
    zetas: tuple[float, ...] = (20.0, 40.0, 80.0)
    tau: int = 20
    rounds: int = 150


def write(folder: Path, size: Figure2Size | None = None) -> list[Path]:
    """Run everything and write the page."""
    began = time.process_time()
    size = size or Figure2Size()
    cases = [(norm, zeta) for norm in NORMS for zeta in size.zetas]
    with FollowedRuns("ffgg-figure2", 5 * len(cases) * (10 + size.tau) * size.rounds) as runs:
        curves = {
            (norm, zeta): compare(
                runs, replace(size.drawn, norm=norm, zeta=zeta).draw(), zeta, size
            )
            for norm, zeta in cases
        }
    printed = [curves[NORMS[0], zeta] for zeta in size.zetas]
    start = [group[FFGG].norms[0] for group in printed]

    def ends(label: str) -> list[float]:
        return [group[label].at(size.rounds) for group in printed]

    def shares(label: str) -> list[float]:  # of ‖F(θ⁰)‖
        return [end / first for end, first in zip(ends(label), start, strict=True)]

    floors = {label: ends(label) for label in (SCAFFOLD, LOCAL, L2GD)}
    spread = max(shares(FFGG)) / min(shares(FFGG))
    titles = {(norm, zeta): f"ζ = {zeta:g}, {NAMES[norm]} norm" for norm, zeta in cases}
    shown = sorted({0, size.rounds // 15, size.rounds // 3, size.rounds})
    return theory_page(
        "ffgg-figure2",
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
            f"‖F(θ)‖ after so many rounds; matrices of {NAMES[norm]} norm 1": [
                {"ζ": f"{zeta:g}", "method": label} | curve.row(shown)
                for zeta in size.zetas
                for label, curve in curves[norm, zeta].items()
            ]
            for norm in NORMS
        },
        figures={
            titles[case]: {label: curve.line().y for label, curve in group.items()}
            for case, group in curves.items()
        },
        panels=[
            Panel(
                titles[case],
                "communication round",
                "‖F(θ)‖",
                [  # as far as they are above rounding
                    curve.down_to(1e-13 * curve.norms[0]).line(formula=label in (EXACT, JOINT))
                    for label, curve in group.items()
                ],
                "y",
            )
            for case, group in curves.items()
        ],
        seconds=time.process_time() - began,
    ).write(folder)


def text(values: list[float]) -> str:
    return ", ".join(f"{value:.2g}" for value in values)


def compare(
    runs: FollowedRuns, problem: Problem, zeta: float, size: Figure2Size
) -> dict[str, NormCurve]:
    """All methods with τ local steps; FFGG also with exact solutions, and with w kept."""
    constants = problem.constants()
    ffgg = methods.ffgg(constants, size.tau)
    compared = {
        FFGG: ffgg,
        STATEFUL: replace(ffgg, start="kept"),
        **methods.baselines(constants, size.tau),
    }
    return {
        label: runs.follow(label, problem, method, size.rounds, 10 + size.tau, case=f"ζ = {zeta:g}")
        for label, method in compared.items()
    } | {
        EXACT: exact(EXACT, problem, ffgg.lr, size.rounds),
        JOINT: methods.joint(problem, size.rounds),
    }
