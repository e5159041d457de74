"""FFGG with Byzantine clients: Figure 4 of its paper. `idiolect reproduce ffgg-figure4`."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import idiolect as il

from ..closed_forms.quadratic import Quadratic
from ..page import page_from_text
from .runs import NormCurve, NormRun, norm_panel, problem_of, stored_curves, train_curves

NAME = "ffgg-figure4"
CLEAN, ROBUST, MEAN, OWN = (
    "no Byzantine clients",
    "Byzantine, median of buckets",
    "Byzantine, mean",
    "Byzantine, median of buckets, own targets",
)
BUCKETS = {"rule": "bucketing(size=2) + median"}
REFERENCE: dict[str, dict[int, float]] = {
    CLEAN: {0: 12.80, 1: 1.285, 101: 0.656, 501: 4.57e-2, 1000: 1.65e-3},
    ROBUST: {101: 0.691, 501: 5.9e-2, 1000: 2.9e-3},
    MEAN: {1000: 3.9e-2},
}


@dataclass(frozen=True)
class Figure4Size:
    """The sizes of the experiment; those of the paper as defaults."""

    drawn: Quadratic = Quadratic(clients=42, truth="common", noise=0.0, seed=42)
    malicious: int = 10
    rounds: int = 1000

    def runs(self) -> dict[str, NormRun]:
        """Algorithm 5 with exact computations; malicious clients flip the gradient's sign."""
        attack = {"attack": "scaling(factor=-1)", "malicious": float(self.malicious)}
        own = replace(self.drawn, truth="own", noise=1e-3)
        return {
            CLEAN: self._run(CLEAN, self.drawn),
            ROBUST: self._run(ROBUST, self.drawn, **attack, **BUCKETS),
            MEAN: self._run(MEAN, self.drawn, **attack),
            OWN: self._run(OWN, own, **attack, **BUCKETS),
        }

    def _run(self, label: str, drawn: Quadratic, **settings: Any) -> NormRun:
        lr = 1 / problem_of(drawn).constants().F
        method = il.Ffgg(part="w.*", lr=lr, solver="exact", start="common")
        return NormRun(label, drawn, method, self.rounds, settings=tuple(settings.items()))


def write(folder: Path, size: Figure4Size | None = None, workers: int = 2) -> list[Path]:
    """Run everything and write the page."""
    began = time.monotonic()
    size = size or Figure4Size()
    curves = train_curves({NAME: size.runs()}, folder, NAME, workers)[NAME]
    shown = [r for r in (0, 1, 101, 501, 1000) if r <= size.rounds]
    clean, robust = (rate(curves[label], size.rounds) for label in (CLEAN, ROBUST))
    end = {label: curve.at(size.rounds) for label, curve in curves.items()}
    remains = end[OWN] > 10 * end[ROBUST]
    return page_from_text(
        NAME,
        facts={
            "size": size,
            "drawn": size.drawn,
            "constants": problem_of(size.drawn).constants(),
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
                {"": label} | {f"{r}": reference.get(r) for r in shown}
                for label, reference in REFERENCE.items()
            ],
        },
        figures=stored_curves(curves),
        panels=[
            norm_panel(
                f"{size.malicious} of {size.drawn.clients} clients flip the sign",
                [curve.line() for curve in curves.values()],
                "round",
            )
        ],
        seconds=time.monotonic() - began,
    ).write(folder)


def rate(curve: NormCurve, rounds: int) -> tuple[float, float]:
    """(factor per round, R²) of a straight line through log ‖F(θ)‖ after the first tenth."""
    x = np.arange(rounds // 10, rounds + 1)
    y = np.log([curve.at(int(r)) for r in x])
    slope, start = np.polyfit(x, y, 1)
    residuals = y - (start + slope * x)
    return float(np.exp(slope)), float(1 - residuals.var() / y.var())
