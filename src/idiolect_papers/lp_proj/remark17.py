"""The role of d_sub under attack: Remark 17 of the lp-proj paper (in detail its Remark 31).

`idiolect reproduce lp-proj-remark17`. At the best λ the test loss falls linearly in d_sub; at any λ
its slope in λ is proportional to d_sub. Formulas beside runs of lp-proj, under the same-value
attack of Figure 1.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..closed_forms import linear_regression as linear
from ..page import Claim
from ..panels import Line, Panel
from ..theory import theory_page
from . import regression
from .figure1 import Figure1Size, prepare, settings
from .regression import Mean, play, tested

ATTACK = "same-value"


@dataclass(frozen=True)
class Remark17Size:
    """The sizes of the experiment; those of the paper's Figure 1 as defaults."""

    figure: Figure1Size = Figure1Size()  # setting, attack, seeds and plays
    dims: tuple[int, ...] = (10, 25, 50, 75, 100)
    slope_at: tuple[float, ...] = (0.01, 0.1)  # λ
    step: float = 0.1  # of the finite difference, relative


def write(folder: Path, size: Remark17Size | None = None) -> list[Path]:
    """Run everything and write the page."""
    began = time.perf_counter()
    size = size or Remark17Size()
    results = measure(size)
    return theory_page(
        "lp-proj-remark17",
        facts={
            "size": size,
            "figure": size.figure,
            "best": results["best"],
            "largest_dim": size.dims[-1],
            "percent": 100 * size.step,
        },
        verdicts={},
        more_claims=claims(size, results),
        tables={
            f"Same-value attack, mean over {size.figure.seeds} seeds ± 95 % interval": rows(
                size, results
            )
        },
        figures={k: np.asarray(v).tolist() for k, v in results.items()},
        panels=panels(size, results),
        seconds=time.perf_counter() - began,
    ).write(folder)


def measure(size: Remark17Size) -> dict[str, Any]:
    """gain[dim, seed]: loss at λ* minus Local's; slope[λ, dim, seed]: dL/dλ by differences."""
    f = size.figure
    s = f.setting
    spread = linear.attacked_spread(s, f.around, f.malicious, f.tau**2)
    best = linear.best_lam(s, spread)
    gain = np.zeros((len(size.dims), f.seeds))
    slope = np.zeros((len(size.slope_at), len(size.dims), f.seeds))
    formula_gain, formula_slope = (
        gain.copy(),
        slope.copy(),
    )  # the formulas at each seed's parameters
    run_settings = settings(ATTACK, f) | {"eval_every": 1}
    alone = linear.local_loss(s)
    with regression.progress("lp-proj-remark17", len(size.dims) * f.seeds) as step:
        for j in range(f.seeds):
            for i, dim in enumerate(size.dims):
                one = prepare(ATTACK, f.with_dim(dim), j)

                def loss(lam: float, dim: int = dim, one: Any = one, j: int = j) -> float:
                    method = regression.lpproj(s, lam, dim)
                    return tested(
                        play(method, one.federation, j, f.plays + 1, **run_settings)
                    ).mean()

                gain[i, j] = loss(best) - one.alone
                formula_gain[i, j] = linear.lpproj_loss(s, best, dim, one.spread_seen) - alone
                for k, lam in enumerate(size.slope_at):
                    low, high = lam * (1 - size.step), lam * (1 + size.step)
                    slope[k, i, j] = (loss(high) - loss(low)) / (high - low)
                    rise = [linear.lpproj_loss(s, at, dim, one.spread_seen) for at in (low, high)]
                    formula_slope[k, i, j] = (rise[1] - rise[0]) / (high - low)
                step()
    return {
        "best": best,
        "spread": spread,
        "gain": gain,
        "slope": slope,
        "said_gain": formula_gain,
        "said_slope": formula_slope,
    }


def per_dimension(size: Remark17Size, results: dict[str, Any]) -> float:
    """The coefficient of d_sub in L* (Remark 31): σ² λ* (1/N - 1) / (2 n (b + λ*))."""
    s = size.figure.setting
    best = results["best"]
    return s.noise**2 * best / (2 * s.samples * (s.b + best)) * (1 / s.clients - 1)


def claims(size: Remark17Size, results: dict[str, Any]) -> list[Claim]:
    dims = np.array(size.dims, float)
    # least squares through the origin: without a shared dimension lp-proj is Local
    fits = Mean.of((dims @ results["gain"]) / (dims @ dims))
    predicted = per_dimension(size, results)
    errors = [Mean.of(row) for row in results["gain"] - results["said_gain"]]
    inside = sum(m.holds_zero for m in errors)
    out = [
        Claim(
            "at λ* the loss is linear in d_sub with a negative coefficient, "
            f"σ² λ* (1/N - 1) / (2 n (b + λ*)) = {predicted:.3g}",
            f"{fits.text(2)} per dimension in runs; runs and formula agree within the 95 % "
            f"interval at {inside} of {len(errors)} d_sub",
            "agrees" if abs(fits.value - predicted) <= fits.half else "same order",
        )
    ]
    for k, lam in enumerate(size.slope_at):
        slope = results["slope"][k]
        off = [Mean.of(row) for row in slope - results["said_slope"][k]]
        ratio = Mean.of(slope[-1] / slope[0])
        power = Mean.of(np.polyfit(np.log(dims), np.log(np.abs(slope)), 1)[0])
        out.append(
            Claim(
                f"the slope of the loss in λ is proportional to d_sub (at λ = {lam:g})",
                f"d_sub to the {power.text(3)} in runs (d_sub = {size.dims[-1]} against "
                f"{size.dims[0]}: {ratio.text(3)} times); formula and runs agree within the "
                f"interval at {sum(m.holds_zero for m in off)} of {len(off)} d_sub",
                "agrees" if abs(power.value - 1) <= max(power.half, 0.05) else "same order",
            )
        )
    s = size.figure.setting
    alone = linear.local_loss(s)
    damage = linear.lpproj_loss(s, size.slope_at[-1], size.dims[0], results["spread"]) - alone
    out.append(
        Claim(
            "as d_sub increases the performance would be better",
            f"at λ*, by {-predicted * size.dims[-1]:.1e} of a loss of {alone:.3g} for all "
            f"{size.dims[-1]} dimensions; at λ = {size.slope_at[-1]:g} every "
            f"{size.dims[0]} dimensions cost {damage:.2g} instead",
            "agrees" if fits.value < 0 else "differs",
            "true at λ* alone, which is not known in practice; above the threshold of Figure 1 "
            "fewer shared dimensions are better, and none (Local) is best",
        )
    )
    return out


def rows(size: Remark17Size, results: dict[str, Any]) -> list[dict[str, Any]]:
    out = []
    for i, dim in enumerate(size.dims):
        row: dict[str, Any] = {
            "d_sub": dim,
            "L(λ*) - Local, formula": f"{results['said_gain'][i].mean():.2e}",
            "L(λ*) - Local, runs": Mean.of(results["gain"][i]).text(2),
        }
        for k, lam in enumerate(size.slope_at):
            row[f"dL/dλ at {lam:g}, formula"] = f"{results['said_slope'][k, i].mean():.3g}"
            row[f"dL/dλ at {lam:g}, runs"] = Mean.of(results["slope"][k, i]).text()
        out.append(row)
    return out


def panels(size: Remark17Size, results: dict[str, Any]) -> list[Panel]:
    dims = list(map(float, size.dims))
    scale = 1e5
    predicted = [scale * per_dimension(size, results) * d for d in dims]
    means = [Mean.of(scale * row) for row in results["gain"]]
    first = [
        Line("Remark 31", dims, predicted, style=0, formula=True),
        _band("lp-proj-2, runs", dims, means, 0),
    ]
    second: list[Line] = []
    for k, lam in enumerate(size.slope_at):
        formula = results["said_slope"][k].mean(1).tolist()
        second.append(Line(f"λ = {lam:g}, formula", dims, formula, style=k + 1, formula=True))
        measured = [Mean.of(row) for row in results["slope"][k]]
        second.append(_band(f"λ = {lam:g}, runs", dims, measured, k + 1))
    return [
        Panel("Loss at λ*, against Local's", "d_sub", "(L(λ*) - Local's) × 10⁵", first),
        Panel("Slope of the loss in λ", "d_sub", "dL/dλ", second, log="xy"),
    ]


def _band(label: str, x: list[float], means: list[Mean], style: int) -> Line:
    low = [m.value - m.half for m in means]
    high = [m.value + m.half for m in means]
    return Line(label, x, [m.value for m in means], low, high, style=style, points=True)
