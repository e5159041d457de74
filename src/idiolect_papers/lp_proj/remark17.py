"""The role of d_sub under attack: Remark 17 of the lp-proj paper (in detail its Remark 31).

`idiolect reproduce lp-proj-remark17`. At the best λ the test loss falls linearly in d_sub; at any λ
its slope in λ is proportional to d_sub. Formulas beside runs of lp-proj, under the same-value
attack of Figure 1.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..closed_forms import linear_regression as linear
from ..page import Row, page_from_text
from ..panels import Line, Panel
from ..runs import train_all
from ..theory import Mean, banded
from .figure1 import AloneRun, AttackedSize, TiedRuns
from .regression import LPPROJ

NAME = "lp-proj-remark17"
ATTACK = "same-value"


@dataclass(frozen=True)
class Remark17Size:
    """The sizes of the experiment; those of the paper's Figure 1 as defaults."""

    figure: AttackedSize = AttackedSize()  # setting, attack, seeds and plays
    dims: tuple[int, ...] = (10, 25, 50, 75, 100)
    slope_at: tuple[float, ...] = (0.01, 0.1)  # λ
    step: float = 0.1  # of the finite difference, relative

    @property
    def spread(self) -> float:
        f = self.figure
        return linear.attacked_spread(f.setting, f.around, f.malicious, f.tau**2)

    @property
    def best(self) -> float:
        """λ*."""
        return linear.best_lam(self.figure.setting, self.spread)

    @property
    def per_dimension(self) -> float:
        """The coefficient of d_sub in L* (Remark 31): σ² λ* (1/N - 1) / (2 n (b + λ*))."""
        s = self.figure.setting
        best = self.best
        return s.noise**2 * best / (2 * s.samples * (s.b + best)) * (1 / s.clients - 1)

    @property
    def lams(self) -> tuple[float, ...]:
        """λ*, and for each slope a λ below and one above."""
        around = [(lam * (1 - self.step), lam * (1 + self.step)) for lam in self.slope_at]
        return (self.best, *(lam for pair in around for lam in pair))


@dataclass(frozen=True)
class DimensionOutcome:
    """Runs and formulas at each seed's parameters."""

    gain: np.ndarray  # [dim, seed]: loss at λ* minus Local's
    slope: np.ndarray  # [λ, dim, seed]: dL/dλ by differences
    formula_gain: np.ndarray
    formula_slope: np.ndarray


def measure(size: Remark17Size, folder: Path, workers: int) -> DimensionOutcome:
    """All d_sub and λ of a seed have the same data and the same draws of the attack."""
    f = size.figure
    jobs = {}
    for dim in size.dims:
        figure = replace(f, dim=dim)
        for j in range(f.seeds):
            runs = TiedRuns(ATTACK, figure, j, size.lams, (LPPROJ,))
            jobs[dim, j] = (AloneRun(ATTACK, figure, j), runs)
    results = train_all(jobs, folder, NAME, workers)
    alone = linear.local_loss(f.setting)
    losses = np.zeros((len(size.lams), len(size.dims), f.seeds))
    formulas = losses.copy()
    for (dim, j), (local, runs) in jobs.items():
        i = size.dims.index(dim)
        spread = results[local]["spread_seen"]
        losses[:, i, j] = np.mean(results[runs][LPPROJ], 1)
        formulas[:, i, j] = [linear.lpproj_loss(f.setting, lam, dim, spread) for lam in size.lams]
    local_losses = np.array(
        [[results[jobs[dim, j][0]]["loss"] for j in range(f.seeds)] for dim in size.dims]
    )
    width = np.array(size.lams[2::2]) - np.array(size.lams[1::2])

    def slopes(at: np.ndarray) -> np.ndarray:
        return (at[2::2] - at[1::2]) / width[:, None, None]

    return DimensionOutcome(
        losses[0] - local_losses, slopes(losses), formulas[0] - alone, slopes(formulas)
    )


def write(folder: Path, size: Remark17Size | None = None, workers: int = 2) -> list[Path]:
    """Run everything and write the page."""
    began = time.perf_counter()
    size = size or Remark17Size()
    outcome = measure(size, folder, workers)
    s = size.figure.setting
    dims = np.array(size.dims, float)
    # least squares through the origin: without a shared dimension lp-proj is Local
    coefficient = Mean.of((dims @ outcome.gain) / (dims @ dims))
    predicted = size.per_dimension
    inside = [Mean.of(row).holds_zero for row in outcome.gain - outcome.formula_gain]
    slopes = []
    for lam, slope, formula in zip(
        size.slope_at, outcome.slope, outcome.formula_slope, strict=True
    ):
        power = Mean.of(np.polyfit(np.log(dims), np.log(np.abs(slope)), 1)[0])
        facts = {
            "lam": lam,
            "power": power.text(3),
            "ratio": Mean.of(slope[-1] / slope[0]).text(3),
            "inside": sum(Mean.of(row).holds_zero for row in slope - formula),
        }
        linear_in_dim = abs(power.value - 1) <= max(power.half, 0.05)
        slopes.append(("agrees" if linear_in_dim else "same order", facts))
    alone = linear.local_loss(s)
    largest_lam = size.slope_at[-1]
    return page_from_text(
        NAME,
        facts={
            "size": size,
            "figure": size.figure,
            "best": size.best,
            "largest_dim": size.dims[-1],
            "percent": 100 * size.step,
            "predicted": predicted,
            "coefficient": coefficient.text(2),
            "inside": sum(inside),
            "places": len(inside),
            "gain": -predicted * size.dims[-1],
            "alone": alone,
            "largest_lam": largest_lam,
            "damage": linear.lpproj_loss(s, largest_lam, size.dims[0], size.spread) - alone,
        },
        verdicts={
            "linear": "agrees"
            if abs(coefficient.value - predicted) <= coefficient.half
            else "same order",
            "slope": slopes,
            "better": "agrees" if coefficient.value < 0 else "differs",
        },
        tables={
            f"Same-value attack, mean over {size.figure.seeds} seeds ± 95 % interval": rows(
                size, outcome
            )
        },
        figures={
            "best": size.best,
            "spread": size.spread,
            "gain": outcome.gain.tolist(),
            "slope": outcome.slope.tolist(),
            "said_gain": outcome.formula_gain.tolist(),
            "said_slope": outcome.formula_slope.tolist(),
        },
        panels=panels(size, outcome),
        seconds=time.perf_counter() - began,
    ).write(folder)


def rows(size: Remark17Size, outcome: DimensionOutcome) -> list[Row]:
    table = []
    for i, dim in enumerate(size.dims):
        row: Row = {
            "d_sub": dim,
            "L(λ*) - Local, formula": f"{outcome.formula_gain[i].mean():.2e}",
            "L(λ*) - Local, runs": Mean.of(outcome.gain[i]).text(2),
        }
        for k, lam in enumerate(size.slope_at):
            row[f"dL/dλ at {lam:g}, formula"] = f"{outcome.formula_slope[k, i].mean():.3g}"
            row[f"dL/dλ at {lam:g}, runs"] = Mean.of(outcome.slope[k, i]).text()
        table.append(row)
    return table


def panels(size: Remark17Size, outcome: DimensionOutcome) -> list[Panel]:
    dims = list(map(float, size.dims))
    scale = 1e5
    predicted = [scale * size.per_dimension * d for d in dims]
    first = [
        Line("Remark 31", dims, predicted, style=0, formula=True),
        banded("lp-proj-2, runs", dims, [Mean.of(scale * row) for row in outcome.gain], 0),
    ]
    second: list[Line] = []
    for k, lam in enumerate(size.slope_at):
        formula = outcome.formula_slope[k].mean(1).tolist()
        second.append(Line(f"λ = {lam:g}, formula", dims, formula, style=k + 1, formula=True))
        means = [Mean.of(row) for row in outcome.slope[k]]
        second.append(banded(f"λ = {lam:g}, runs", dims, means, k + 1))
    return [
        Panel("Loss at λ*, against Local's", "d_sub", "(L(λ*) - Local's) × 10⁵", first),
        Panel("Slope of the loss in λ", "d_sub", "dL/dλ", second, log="xy"),
    ]
