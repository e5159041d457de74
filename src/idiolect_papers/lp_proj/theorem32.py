"""Runs and formulas behind Theorem 32 of the lp-proj paper: variances over clients, by seed.

The theorem is about losses averaged over the noise of training and test data. For runs this means:
the same true parameters with several draws of the noise, the mean loss of each client, and an
unbiased estimate of the variance of these means. By (45) the noise adds the same to every client's
loss, so runs on data without noise have this variance exactly.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect import Federation, Method
from idiolect.data.sets.regression import LinearRegression

from ..closed_forms import linear_regression as linear
from ..closed_forms.problems import matrix_of
from ..page import Row, page_from_text
from ..panels import Line, Panel
from ..runs import Work, train_all
from ..theory import Mean, banded
from . import regression
from .regression import FEDAVG, LOCAL, LPPROJ, PFEDME, models_of, play

NAME = "lp-proj-theorem32"
TIED = (PFEDME, LPPROJ)


@dataclass(frozen=True)
class Theorem32Size:
    """The sizes of the experiment; those of the paper's Figure 1 as defaults."""

    setting: LinearRegression = LinearRegression()
    dim: int = 10
    lams: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    seeds: int = 8  # draws of the true parameters, features and P
    draws: int = 6  # of the noise, for each of them
    dims: tuple[int, ...] = (5, 10, 25, 50, 100)
    dims_lam: float = 1.0
    correlations: tuple[float, ...] = (0.0, 0.9)  # of any two coefficients of a w_k


def covariance(size: Theorem32Size, rho: float = 0.0) -> Tensor:  # -> [d, d]
    """Σ_w with the same variance everywhere, and the same correlation."""
    d = size.setting.features
    one = torch.eye(d, dtype=torch.float64)
    return size.setting.heterogeneity * ((1 - rho) * one + rho * torch.ones_like(one))


def drawn(
    size: Theorem32Size, seed: int, rho: float = 0.0
) -> tuple[Tensor, Tensor]:  # xi[N, n, d], w[N, d]
    """Features and true parameters of a seed; w_k ~ N(0, Σ_w)."""
    s = size.setting
    federation, w = LinearRegression(**{**s.as_dict(), "seed": seed}).draw()
    xi = torch.stack([federation.part(k, "train")[0] for k in range(s.clients)])
    common = np.random.default_rng([seed, 1]).standard_normal((s.clients, 1))
    shared = s.heterogeneity**0.5 * torch.from_numpy(common)
    return xi, (1 - rho) ** 0.5 * w + rho**0.5 * shared


def observed(
    size: Theorem32Size, xi: Tensor, w: Tensor, key: list[int] | None = None
) -> Federation:
    """Training data with noise of their own; without a key, with none."""
    s = size.setting
    y = (xi @ w.unsqueeze(-1)).squeeze(-1)
    if key is not None:
        rng = np.random.default_rng(key)
        y = y + s.noise * torch.from_numpy(rng.standard_normal((s.clients, s.samples)))
    owner = np.repeat(np.arange(s.clients), s.samples)
    flat = xi.reshape(-1, s.features)
    return Federation.from_arrays(flat, y.reshape(-1), owner, valid=0, test=0)


def losses_by_draw(
    size: Theorem32Size, method: Method, federations: list[Federation], w: Tensor, seed: int
) -> Tensor:
    """Losses [draws, N] of the personal models that runs end with, averaged over test noise.

    Exactly: σ²/2 + b/2 ||x_k - w_k||², since the features of the test data are the same.
    """
    s = size.setting
    losses = []
    for federation in federations:
        x = models_of(play(method, federation, seed, 2, eval_every=0), s.clients)
        losses.append(s.noise**2 / 2 + s.b / 2 * (x - w).square().sum(1))
    return torch.stack(losses)


def of_expected(loss: Tensor) -> float:  # loss[M, N]
    """Unbiased estimate of the variance over clients of the expected losses.

    With D the losses minus their mean over clients in each draw: E (mean over draws of D_k)² =
    (E D_k)² + var(D_k) / M, and the second part is estimated from the spread over draws.
    """
    M = len(loss)
    D = loss - loss.mean(1, keepdim=True)
    return float((D.mean(0).square() - D.var(0, correction=1) / M).mean())


def of_realised(loss: Tensor) -> float:
    """The variance over clients of the losses of one run, mean over draws."""
    return float(loss.var(1, correction=0).mean())


@dataclass(frozen=True)
class LamRuns(Work):
    """V of every method, by λ, for the true parameters of one seed."""

    size: Theorem32Size
    seed: int

    def cost(self) -> float:
        return len(self.size.lams) * (self.size.draws + 1)

    def train(self) -> dict[str, Any]:
        size, s = self.size, self.size.setting
        xi, w = drawn(size, self.seed)
        noisy = [observed(size, xi, w, [self.seed, 2, m]) for m in range(size.draws)]
        clean = [observed(size, xi, w)]
        P = matrix_of("orthogonal", size.dim, s.features, self.seed)

        def measured(method: Method) -> dict[str, float]:
            losses = losses_by_draw(size, method, noisy, w, self.seed)
            return {
                "averaged": of_expected(losses),
                "realised": of_realised(losses),
                "clean": of_realised(losses_by_draw(size, method, clean, w, self.seed)),
            }

        outcome: dict[str, Any] = {
            LOCAL: measured(regression.local(s)),
            FEDAVG: measured(regression.fedavg(s)) | {"formula": linear.variance(s, math.inf, w)},
            PFEDME: [],
            LPPROJ: [],
            "apart": 0.0,  # pFedMe and Ditto, relative
        }
        for lam in size.lams:
            for name, projection in ((PFEDME, None), (LPPROJ, P)):
                formula = {"formula": linear.variance(s, lam, w, projection)}
                method = regression.tied(name, s, lam, size.dim)
                outcome[name].append(measured(method) | formula)
            if self.seed == 0:
                twin, pfedme = measured(regression.ditto(s, lam)), outcome[PFEDME][-1]
                apart = max(abs(twin[k] / pfedme[k] - 1) for k in ("clean", "realised"))
                outcome["apart"] = max(outcome["apart"], apart)
        return outcome


@dataclass(frozen=True)
class DimRuns(Work):
    """V of lp-proj by d_sub, for true parameters whose coefficients correlate."""

    size: Theorem32Size
    rho: float
    seed: int

    def train(self) -> dict[str, dict[str, float]]:
        size, s, lam = self.size, self.size.setting, self.size.dims_lam
        xi, w = drawn(size, self.seed, self.rho)
        clean = [observed(size, xi, w)]
        outcome = {}
        for dim in size.dims:
            P = matrix_of("orthogonal", dim, s.features, self.seed)
            method = regression.lpproj(s, lam, dim)
            outcome[str(dim)] = {
                "clean": of_realised(losses_by_draw(size, method, clean, w, self.seed)),
                "formula": linear.variance(s, lam, w, P),
                "mean_formula": linear.expected_variance(s, lam, covariance(size, self.rho), P),
            }
        return outcome


# -- the page -------------------------------------------------------------------------------------


def write(folder: Path, size: Theorem32Size | None = None, workers: int = 2) -> list[Path]:
    """Run everything and write the page."""
    began = time.perf_counter()
    size = size or Theorem32Size()
    seeds = range(size.seeds)
    over_lams = [LamRuns(size, seed) for seed in seeds]
    over_dims = {rho: [DimRuns(size, rho, seed) for seed in seeds] for rho in size.correlations}
    results = train_all([over_lams, over_dims], folder, NAME, workers)
    by_seed = [results[job] for job in over_lams]
    by_dim = {rho: [results[job] for job in jobs] for rho, jobs in over_dims.items()}
    lam = size.lams[-1]
    averaged, formula = against_formula(by_seed, "averaged")
    inside = [Mean.of(row).holds_zero for row in averaged - formula]
    clean, formula = against_formula(by_seed, "clean")
    exact = float(np.abs(clean / formula - 1).max())
    alone = max(seed[LOCAL]["clean"] for seed in by_seed)
    apart = max(seed["apart"] for seed in by_seed)
    V = {name: by_lam(by_seed, name, "clean").mean(1).tolist() for name in TIED}
    fedavg = Mean.of([seed[FEDAVG]["clean"] for seed in by_seed])
    less = sum(a < b for a, b in zip(V[LPPROJ], V[PFEDME], strict=True))
    printed = 2 * expected(size, PFEDME, lam)
    ratio = Mean.of(by_lam(by_seed, PFEDME, "clean")[-1] / printed)
    gaps = by_lam(by_seed, LPPROJ, "realised") - by_lam(by_seed, PFEDME, "realised")
    gap_at = {f"{lam:g}": Mean.of(row) for lam, row in zip(size.lams, gaps, strict=True)}
    less_uniform = [lam for lam, gap in gap_at.items() if gap.value - gap.half > 0]
    more_uniform = [lam for lam, gap in gap_at.items() if gap.value + gap.half < 0]
    return page_from_text(
        NAME,
        facts={
            "size": size,
            "largest_correlation": size.correlations[-1],
            "exact": exact,
            "inside": sum(inside),
            "places": len(inside),
            "alone": alone,
            "alone_noisy": Mean.of([seed[LOCAL]["averaged"] for seed in by_seed]).text(2),
            "apart": apart,
            "less": less,
            "lams": len(size.lams),
            "fedavg": fedavg.text(2),
            "ratio": ratio.text(2),
            "first_lam": size.lams[0],
            "lam": lam,
            "powers": "; ".join(
                f"correlation {rho:g}: d_sub to the {exponent(size, seeds):.2f}"
                for rho, seeds in by_dim.items()
            ),
            "V_first": V[PFEDME][0],
            "V_last": V[PFEDME][-1],
            "less_uniform": ", ".join(less_uniform) or "none",
            "more_uniform": ", ".join(more_uniform) or "none",
            "threshold": linear.lpproj_wins_from(size.setting, size.setting.heterogeneity),
        },
        verdicts={
            "formula": "agrees"
            if exact < 1e-8 and sum(inside) >= 0.8 * len(inside)
            else "same order",
            "local": alone < 1e-12,
            "ditto": apart < 1e-8,
            "order": less == len(size.lams) and V[PFEDME][-1] < fedavg.value,
            "printed": "agrees" if abs(ratio.value - 1) <= ratio.half else "differs",
            "dims": "agrees",
            "fairness": V[PFEDME] != sorted(V[PFEDME]),
            "realised": not less_uniform,
        },
        tables={"lams": rows(size, by_seed), "dims": dim_rows(size, by_dim)},
        figures={"by_seed": by_seed, "by_dim": {f"{r:g}": v for r, v in by_dim.items()}},
        panels=panels(size, by_seed, by_dim),
        seconds=time.perf_counter() - began,
    ).write(folder)


# -- what came out --------------------------------------------------------------------------------
def by_lam(by_seed: list[Any], name: str, kind: str) -> np.ndarray:  # [λ, seed]
    return np.array([[cell[kind] for cell in one[name]] for one in by_seed]).T


def by_size(outcome: list[Any], kind: str) -> np.ndarray:  # [d_sub, seed]
    return np.array([[cell[kind] for cell in one.values()] for one in outcome]).T


def expected(size: Theorem32Size, name: str, lam: float) -> float:
    """E V over w_k ~ N(0, Σ_w): eqs. (46) to (48), corrected by the factor 1/2."""
    S = covariance(size)
    P = torch.eye(size.setting.features, dtype=torch.float64)[: size.dim]
    return linear.expected_variance(size.setting, lam, S, P if name == LPPROJ else None)


def rows(size: Theorem32Size, by_seed: list[Any]) -> list[Row]:
    table: list[Row] = [{"λ": f"{lam:g}"} for lam in size.lams]
    for name in TIED:
        clean, averaged = (by_lam(by_seed, name, kind) for kind in ("clean", "averaged"))
        for i, (row, lam) in enumerate(zip(table, size.lams, strict=True)):
            row[f"{name}, as printed"] = f"{2 * expected(size, name, lam):.3g}"
            row[f"{name}, formula"] = f"{expected(size, name, lam):.3g}"
            row[f"{name}, runs"] = Mean.of(clean[i]).text()
            row[f"{name}, runs with noise"] = Mean.of(averaged[i]).text()
    return table


def dim_rows(size: Theorem32Size, by_dim: dict[float, list[Any]]) -> list[Row]:
    table: list[Row] = [{"d_sub": dim} for dim in size.dims]
    for rho, outcome in by_dim.items():
        formula, runs = (by_size(outcome, kind) for kind in ("mean_formula", "clean"))
        for i, row in enumerate(table):
            row[f"correlation {rho:g}: formula"] = f"{formula[i].mean():.3g}"
            row[f"correlation {rho:g}: runs"] = Mean.of(runs[i]).text()
    return table


def exponent(size: Theorem32Size, outcome: list[Any]) -> float:
    """Of V as a power of d_sub, by least squares on logarithms of the means of runs."""
    V = by_size(outcome, "clean").mean(1)
    return float(np.polyfit(np.log(size.dims), np.log(V), 1)[0])


def against_formula(by_seed: list[Any], kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Runs and (45) at the true parameters of each seed: [place, seed].

    Places are pFedMe and lp-proj at every λ, then FedAvg.
    """
    runs, formula = (
        np.vstack(
            [*(by_lam(by_seed, name, key) for name in TIED), [one[FEDAVG][key] for one in by_seed]]
        )
        for key in (kind, "formula")
    )
    return runs, formula


def panels(size: Theorem32Size, by_seed: list[Any], by_dim: dict[float, list[Any]]) -> list[Panel]:
    lams = list(size.lams)
    grid = np.geomspace(lams[0], lams[-1], 40).tolist()
    first: list[Line] = []
    third: list[Line] = []
    S = covariance(size)
    P = torch.eye(size.setting.features, dtype=torch.float64)[: size.dim]

    def points(name: str, kind: str, style: int) -> Line:
        means = [Mean.of(row) for row in by_lam(by_seed, name, kind)]
        return banded(f"{name}, runs", lams, means, style, log=True)

    for style, name in enumerate(TIED):
        formula = [expected(size, name, lam) for lam in grid]
        first.append(Line(f"{name}, formula", grid, formula, style=style, formula=True))
        first.append(points(name, "clean", style))
        projection = P if name == LPPROJ else None
        variances = [linear.realised_variance(size.setting, lam, S, projection) for lam in grid]
        third.append(Line(f"{name}, formula", grid, variances, style=style, formula=True))
        third.append(points(name, "realised", style))
    everyone = linear.expected_variance(size.setting, math.inf, S)
    ends = [lams[0], lams[-1]]
    first.append(Line("FedAvg, formula", ends, [everyone] * 2, style=2, formula=True))
    alone = linear.realised_variance(size.setting, 0.0, S)
    third.append(Line("Local, formula", ends, [alone] * 2, style=3, formula=True))
    second: list[Line] = []
    for style, (rho, outcome) in enumerate(by_dim.items()):
        dims = list(map(float, size.dims))
        formula = by_size(outcome, "mean_formula").mean(1).tolist()
        second.append(
            Line(f"correlation {rho:g}, formula", dims, formula, style=style + 3, formula=True)
        )
        means = [Mean.of(row) for row in by_size(outcome, "clean")]
        second.append(banded(f"correlation {rho:g}, runs", dims, means, style + 3, log=True))
    threshold = linear.lpproj_wins_from(size.setting, size.setting.heterogeneity)
    return [
        Panel("V of expected losses", "λ", "variance over clients", first, log="xy"),
        Panel(f"lp-proj at λ = {size.dims_lam:g}", "d_sub", "variance over clients", second, "xy"),
        Panel(
            "V of the losses of a run (realised)",
            "λ",
            "variance over clients",
            third,
            log="xy",
            vertical=[(threshold, "threshold")] if lams[0] < threshold < lams[-1] else (),
        ),
    ]
