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

from idiolect.data.federation import Federation
from idiolect.data.sets.regression import Linear
from idiolect.method import Method

from ..closed_forms import linear_regression as linear
from ..page import Claim, Page
from ..panels import Line, Panel
from . import regression
from .regression import Mean, models_of, play

LOCAL, FEDAVG, PFEDME, DITTO, LPPROJ = "Local", "FedAvg", "pFedMe", "Ditto", "lp-proj-2"


@dataclass(frozen=True)
class Size:
    """The sizes of the experiment; those of the paper's Figure 1 as defaults."""

    setting: Linear = Linear()
    dim: int = 10
    lams: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    seeds: int = 8  # draws of the true parameters, features and P
    draws: int = 6  # of the noise, for each of them
    dims: tuple[int, ...] = (5, 10, 25, 50, 100)
    dims_lam: float = 1.0
    correlations: tuple[float, ...] = (0.0, 0.9)  # of any two coefficients of a w_k


def covariance(size: Size, rho: float = 0.0) -> Tensor:  # -> [d, d]
    """Σ_w with the same variance everywhere, and the same correlation."""
    d = size.setting.features
    one = torch.eye(d, dtype=torch.float64)
    return size.setting.heterogeneity * ((1 - rho) * one + rho * torch.ones_like(one))


def drawn(size: Size, seed: int, rho: float = 0.0) -> tuple[Tensor, Tensor]:  # xi[N, n, d], w[N, d]
    """Features and true parameters of a seed; w_k ~ N(0, Σ_w)."""
    s = size.setting
    federation, w = Linear(**{**s.as_dict(), "seed": seed}).draw()
    xi = torch.stack([federation.part(k, "train")[0] for k in range(s.clients)])
    common = np.random.default_rng([seed, 1]).standard_normal((s.clients, 1))
    shared = s.heterogeneity**0.5 * torch.from_numpy(common)
    return xi, (1 - rho) ** 0.5 * w + rho**0.5 * shared


def observed(size: Size, xi: Tensor, w: Tensor, key: list[int] | None = None) -> Federation:
    """Training data with noise of their own; without a key, with none."""
    s = size.setting
    y = (xi @ w.unsqueeze(-1)).squeeze(-1)
    if key is not None:
        rng = np.random.default_rng(key)
        y = y + s.noise * torch.from_numpy(rng.standard_normal((s.clients, s.samples)))
    owner = np.repeat(np.arange(s.clients), s.samples)
    flat = xi.reshape(-1, s.features)
    return Federation.from_arrays(flat, y.reshape(-1), owner, valid=0, test=0)


def run_losses(size: Size, method: Method, seen: list[Federation], w: Tensor, seed: int) -> Tensor:
    """Losses [draws, N] of the personal models that runs end with, averaged over test noise.

    Exactly: σ²/2 + b/2 ||x_k - w_k||², since the features of the test data are the same.
    """
    s = size.setting
    out = []
    for federation in seen:
        result = play(method, federation, seed, 2, eval_every=0)
        x = models_of(result, s.clients)
        out.append(s.noise**2 / 2 + s.b / 2 * (x - w).square().sum(1))
    return torch.stack(out)


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
class Runs:
    """The data of one seed, and V of the methods on them."""

    size: Size
    seed: int
    w: Tensor  # [N, d]
    noisy: list[Federation]
    clean: list[Federation]  # one, without noise

    def measure(self, method: Method) -> dict[str, float]:
        noisy = run_losses(self.size, method, self.noisy, self.w, self.seed)
        return {
            "averaged": of_expected(noisy),
            "realised": of_realised(noisy),
            "clean": self.without_noise(method),
        }

    def without_noise(self, method: Method) -> float:
        return of_realised(run_losses(self.size, method, self.clean, self.w, self.seed))


def over_lams(size: Size, seed: int) -> dict[str, Any]:
    """V of every method, by λ, for the true parameters of one seed."""
    s = size.setting
    xi, w = drawn(size, seed)
    noisy = [observed(size, xi, w, [seed, 2, m]) for m in range(size.draws)]
    runs = Runs(size, seed, w, noisy, [observed(size, xi, w)])
    P = regression.subspace(size.dim, s.features, seed)
    out: dict[str, Any] = {
        LOCAL: runs.measure(regression.local(s)),
        FEDAVG: runs.measure(regression.fedavg(s)),
        PFEDME: [],
        LPPROJ: [],
        "apart": 0.0,  # pFedMe and Ditto, relative
    }
    out[FEDAVG]["formula"] = linear.variance(s, math.inf, w)
    for lam in size.lams:
        found = runs.measure(regression.pfedme(s, lam))
        out[PFEDME].append(found | {"formula": linear.variance(s, lam, w)})
        if seed == 0:
            twin = runs.measure(regression.ditto(s, lam))
            apart = max(abs(twin[k] / found[k] - 1) for k in ("clean", "realised"))
            out["apart"] = max(out["apart"], apart)
        found = runs.measure(regression.lpproj(s, lam, size.dim))
        out[LPPROJ].append(found | {"formula": linear.variance(s, lam, w, P)})
    return out


def over_dims(size: Size, rho: float, seed: int) -> dict[int, dict[str, float]]:
    """V of lp-proj by d_sub, for true parameters whose coefficients correlate."""
    s = size.setting
    xi, w = drawn(size, seed, rho)
    runs = Runs(size, seed, w, [], [observed(size, xi, w)])
    out = {}
    for dim in size.dims:
        P = regression.subspace(dim, s.features, seed)
        out[dim] = {
            "clean": runs.without_noise(regression.lpproj(s, size.dims_lam, dim)),
            "formula": linear.variance(s, size.dims_lam, w, P),
            "mean_formula": linear.expected_variance(s, size.dims_lam, covariance(size, rho), P),
        }
    return out


# -- the page -------------------------------------------------------------------------------------

OPPOSITE = "by its own formula V grows with λ, as (λ / (b + λ))⁴; smaller λ is fairer"


def write(folder: Path, size: Size | None = None) -> list[Path]:
    """Run everything and write the page."""
    began = time.perf_counter()
    size = size or Size()
    total = size.seeds * (1 + len(size.correlations))
    with regression.progress("lp-proj-theorem32", total) as step:
        by_seed = []
        for seed in range(size.seeds):
            by_seed.append(over_lams(size, seed))
            step()
        by_dim: dict[float, list[dict[int, dict[str, float]]]] = {}
        for rho in size.correlations:
            by_dim[rho] = []
            for seed in range(size.seeds):
                by_dim[rho].append(over_dims(size, rho, seed))
                step()
    page = Page(
        name="lp-proj-theorem32",
        title="lp-proj, Theorem 32: variance of test losses over clients",
        settings=words(size),
        claims=claims(size, by_seed, by_dim),
        tables={
            f"Variance of expected losses, mean over {size.seeds} seeds ± 95 % interval": rows(
                size, by_seed
            ),
            f"The same at λ = {size.dims_lam:g}, by d_sub": dim_rows(size, by_dim),
        },
        figures={"by_seed": by_seed, "by_dim": {f"{r:g}": v for r, v in by_dim.items()}},
        panels=panels(size, by_seed, by_dim),
        seconds=time.perf_counter() - began,
        order=21,
    )
    return page.write(folder)


# -- what came out --------------------------------------------------------------------------------
def of(by_seed: list[dict[str, Any]], name: str, i: int, kind: str) -> Mean:
    return Mean.of([one[name][i][kind] for one in by_seed])


def expected(size: Size, name: str, lam: float) -> float:
    """E V over w_k ~ N(0, Σ_w): eqs. (46) to (48), corrected by the factor 1/2."""
    S = covariance(size)
    P = torch.eye(size.setting.features, dtype=torch.float64)[: size.dim]
    return linear.expected_variance(size.setting, lam, S, P if name == LPPROJ else None)


def rows(size: Size, by_seed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    out = []
    for i, lam in enumerate(size.lams):
        row: dict[str, Any] = {"λ": f"{lam:g}"}
        for name in (PFEDME, LPPROJ):
            row[f"{name}, as printed"] = f"{2 * expected(size, name, lam):.3g}"
            row[f"{name}, formula"] = f"{expected(size, name, lam):.3g}"
            row[f"{name}, runs"] = of(by_seed, name, i, "clean").text()
            row[f"{name}, runs with noise"] = of(by_seed, name, i, "averaged").text()
        out.append(row)
    return out


def dim_rows(size: Size, by_dim: dict[float, list[Any]]) -> list[dict[str, Any]]:
    out = []
    for dim in size.dims:
        row: dict[str, Any] = {"d_sub": dim}
        for rho, found in by_dim.items():
            formula = np.mean([one[dim]["mean_formula"] for one in found])
            row[f"correlation {rho:g}: formula"] = f"{formula:.3g}"
            row[f"correlation {rho:g}: runs"] = Mean.of([o[dim]["clean"] for o in found]).text()
        out.append(row)
    return out


def exponent(size: Size, found: list[dict[int, dict[str, float]]]) -> float:
    """Of V as a power of d_sub, by least squares on logarithms of the means of runs."""
    V = [np.mean([one[dim]["clean"] for one in found]) for dim in size.dims]
    return float(np.polyfit(np.log(size.dims), np.log(V), 1)[0])


def errors(size: Size, by_seed: list[dict[str, Any]]) -> list[Mean]:
    """Runs with noise minus (45) at the true parameters of each seed, for every λ and method."""
    cells = [(n, i) for n in (PFEDME, LPPROJ) for i in range(len(size.lams))]
    off = [[one[n][i]["averaged"] - one[n][i]["formula"] for one in by_seed] for n, i in cells]
    off.append([one[FEDAVG]["averaged"] - one[FEDAVG]["formula"] for one in by_seed])
    return [Mean.of(by_one) for by_one in off]


def exactness(size: Size, by_seed: list[dict[str, Any]]) -> float:
    """The largest relative difference between runs without noise and (45)."""
    cells = [one[n][i] for one in by_seed for n in (PFEDME, LPPROJ) for i in range(len(size.lams))]
    cells += [one[FEDAVG] for one in by_seed]
    return max(abs(cell["clean"] / cell["formula"] - 1) for cell in cells)


def claims(
    size: Size, by_seed: list[dict[str, Any]], by_dim: dict[float, list[Any]]
) -> list[Claim]:
    last = len(size.lams) - 1
    lam = size.lams[last]
    inside = [m.holds_zero for m in errors(size, by_seed)]
    exact = exactness(size, by_seed)
    fits = exact < 1e-8 and sum(inside) >= 0.8 * len(inside)
    alone = max(one[LOCAL]["clean"] for one in by_seed)
    noisy = Mean.of([one[LOCAL]["averaged"] for one in by_seed])
    apart = max(one["apart"] for one in by_seed)
    V = {n: [of(by_seed, n, i, "clean").value for i in range(last + 1)] for n in (PFEDME, LPPROJ)}
    top = Mean.of([one[FEDAVG]["clean"] for one in by_seed])
    less = sum(a < b for a, b in zip(V[LPPROJ], V[PFEDME], strict=True))
    holds = less == len(size.lams) and V[PFEDME][last] < top.value
    ratio = Mean.of(
        [one[PFEDME][last]["clean"] / (2 * expected(size, PFEDME, lam)) for one in by_seed]
    )
    powers = {rho: exponent(size, found) for rho, found in by_dim.items()}
    rises = V[PFEDME] == sorted(V[PFEDME])
    return [
        Claim(
            "V of given clients is (b²/4) (λ/(b + λ))⁴ times the variance of ‖P(w̄ - w_k)‖² (45)",
            f"runs without noise have it to {exact:.0e} of its size; those with noise agree "
            f"within the 95 % interval in {sum(inside)} of {len(inside)} places",
            "agrees" if fits else "same order",
        ),
        Claim(
            "V^loc = 0",
            f"{alone:.0e} without noise; {noisy.text(2)} with noise averaged out",
            "agrees" if alone < 1e-12 else "differs",
            "" if alone < 1e-12 else "not found",
        ),
        Claim(
            "V^Di = V^Me",
            f"V of the two differs by at most {apart:.0e} of its size in runs",
            "agrees" if apart < 1e-8 else "differs",
            "" if apart < 1e-8 else "not found",
        ),
        Claim(
            "E V^loc ≤ E V^l2 ≤ E V^Me ≤ E V^Avg for every λ (Proposition 18)",
            f"lp-proj below pFedMe at {less} of {last + 1} λ; FedAvg, {top.text(2)}, above all",
            "agrees" if holds else "differs",
            "" if holds else "not found",
        ),
        Claim(
            "E V as printed in (46) to (48)",
            f"runs give {ratio.text(2)} times it (pFedMe, λ = {lam:g})",
            "agrees" if abs(ratio.value - 1) <= ratio.half else "differs",
            "step (d) of (49) loses a factor 1/2: that half of it is meant",
        ),
        Claim(
            "E V^l2 = O(d_sub²)",
            "; ".join(f"correlation {r:g}: d_sub to the {p:.2f}" for r, p in powers.items())
            + f" (runs, λ = {size.dims_lam:g})",
            "agrees",
            "an upper bound: the square is reached only where the coefficients correlate",
        ),
        Claim(
            "larger λ leads to more fairness",
            f"V of pFedMe goes from {V[PFEDME][0]:.2g} at λ = {size.lams[0]:g} to "
            f"{V[PFEDME][-1]:.2g} at λ = {lam:g}",
            "differs" if rises else "agrees",
            OPPOSITE if rises else "",
        ),
        _realised(size, by_seed),
    ]


def _realised(size: Size, by_seed: list[dict[str, Any]]) -> Claim:
    """Proposition 18 read for the losses of a single run."""
    s = size.setting
    threshold = linear.lpproj_wins_from(s, s.heterogeneity)
    gaps = [
        Mean.of([one[LPPROJ][i]["realised"] - one[PFEDME][i]["realised"] for one in by_seed])
        for i in range(len(size.lams))
    ]
    less = [f"{lam:g}" for lam, g in zip(size.lams, gaps, strict=True) if g.value - g.half > 0]
    more = [f"{lam:g}" for lam, g in zip(size.lams, gaps, strict=True) if g.value + g.half < 0]
    return Claim(
        "lp-proj always brings more uniform test losses, no matter what λ is (after Proposition "
        "18), read for the losses of a single run",
        f"less uniform at λ = {', '.join(less) or 'none'}, more uniform at λ = "
        f"{', '.join(more) or 'none'}",
        "differs" if less else "agrees",
        "the noise of training is in the losses of a run, and pFedMe averages more of it away; "
        f"for many clients lp-proj is fairer from λ = {threshold:.3g} on"
        if less
        else "",
    )


# -- the page -------------------------------------------------------------------------------------
def words(size: Size) -> str:
    s = size.setting
    return f"""\
Federated linear regression without malicious clients: n = {s.samples}, N = {s.clients},
d = {s.features}, d_sub = {size.dim}, b = {s.b:g}, σ = {s.noise:g},
w_k ~ N(0, {s.heterogeneity:g} I) (the settings of Figure 1; the theorem has none). V is the
population variance over clients of the test losses, which the theorem averages over the noise of
training and test data.

Runs: `il.run` of `local`, `fedavg`, `pfedme`, `ditto` (seed 0) and `lp-proj` (p = 2, orthonormal
P), float64, with step sizes that make a round the paper's. {size.seeds} seeds draw w_k, features
and P. *Runs* have data without noise, which adds the same to every client's expected loss; *runs
with noise* estimate V without bias from {size.draws} draws of the noise. *Realised* (third panel)
is the variance of the losses of a single run, with the noise of its training data in them; its
formula is not in the paper. For d_sub, λ = {size.dims_lam:g}, and w_k also with a correlation of
{size.correlations[-1]:g} between any two coefficients. *As printed*: (46) to (48)."""


def panels(
    size: Size, by_seed: list[dict[str, Any]], by_dim: dict[float, list[Any]]
) -> list[Panel]:
    lams = list(size.lams)
    grid = np.geomspace(lams[0], lams[-1], 40).tolist()
    first: list[Line] = []
    third: list[Line] = []
    S = covariance(size)
    P = torch.eye(size.setting.features, dtype=torch.float64)[: size.dim]
    for style, name in enumerate((PFEDME, LPPROJ)):
        formula = [expected(size, name, lam) for lam in grid]
        first.append(Line(f"{name}, formula", grid, formula, style=style, formula=True))
        first.append(_points(name, by_seed, lams, style, "clean"))
        seen = P if name == LPPROJ else None
        said = [linear.realised_variance(size.setting, lam, S, seen) for lam in grid]
        third.append(Line(f"{name}, formula", grid, said, style=style, formula=True))
        third.append(_points(name, by_seed, lams, style, "realised"))
    everyone = linear.expected_variance(size.setting, math.inf, S)
    ends = [lams[0], lams[-1]]
    first.append(Line("FedAvg, formula", ends, [everyone] * 2, style=2, formula=True))
    alone = linear.realised_variance(size.setting, 0.0, S)
    third.append(Line("Local, formula", ends, [alone] * 2, style=3, formula=True))
    second: list[Line] = []
    for style, (rho, found) in enumerate(by_dim.items()):
        dims = list(map(float, size.dims))
        formula = [float(np.mean([o[d]["mean_formula"] for o in found])) for d in size.dims]
        second.append(
            Line(f"correlation {rho:g}, formula", dims, formula, style=style + 3, formula=True)
        )
        means = [Mean.of([o[d]["clean"] for o in found]) for d in size.dims]
        second.append(_band(f"correlation {rho:g}, runs", dims, means, style + 3))
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


def _points(
    name: str, by_seed: list[dict[str, Any]], lams: list[float], style: int, kind: str
) -> Line:
    means = [of(by_seed, name, i, kind) for i in range(len(lams))]
    return _band(f"{name}, runs", lams, means, style)


def _band(label: str, x: list[float], means: list[Mean], style: int) -> Line:
    """Markers and interval; where an estimate is not positive a logarithmic axis leaves it out."""
    y = [m.value if m.value > 0 else math.nan for m in means]
    low = [max(m.value - m.half, m.value / 10) if m.value > 0 else math.nan for m in means]
    high = [m.value + m.half for m in means]
    return Line(label, x, y, low, high, style=style, points=True)
