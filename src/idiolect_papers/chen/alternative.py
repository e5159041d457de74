"""Where FedAvg and Local cross, and how that place depends on m and N."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from idiolect import interval

from ..closed_forms import logistic
from ..marks import Figure
from ..page import NOT_STATED, ORDER, Row, Verdict, page_from_text
from ..panels import Line, Panel
from ..runs import train_all
from .runs import (
    INNER_STEPS,
    LOCAL_STEPS,
    ROUNDS,
    AlternativeSize,
    Descent,
    LogisticCell,
    Place,
    instance,
    slope,
)

NAME = "chen-alternative"
WIDE = 0.2  # an exponent with half an interval above this is not known
BASELINES = ("fedavg", "local")
METHODS = {
    "fedavg": "FedAvg",
    "local": "Local",
    "fedprox 4.4": "FedProx, λ of Thm 4.4",
    "fedprox": "FedProx, λ validated",
    "lp-proj": "lp-proj-2, λ validated",
}
Risks = Sequence[float] | np.ndarray  # one per R
Crossings = Mapping[tuple[int, int], Sequence[float]]  # R_cross by (m, n) and seed


def crossing(radii: Risks, fedavg: Risks, local: Risks) -> float:
    """The R at which FedAvg begins to have the larger risk, between the R that were measured.

    By a straight line in log R and log risk; nan where one of them is better at every R.

    >>> round(crossing([0.1, 1.0], [0.001, 0.1], [0.01, 0.01]), 3)
    0.316
    """
    gap = np.log(np.asarray(fedavg)) - np.log(np.asarray(local))
    at = np.log(np.asarray(radii))
    change = np.flatnonzero((gap[:-1] <= 0) & (gap[1:] > 0))
    if not len(change):
        return float("nan")
    k = change[0]
    return float(np.exp(at[k] + (at[k + 1] - at[k]) * -gap[k] / (gap[k + 1] - gap[k])))


def estimate(values: Sequence[float], digits: int = 3) -> Figure:
    """The mean over seeds with half its 95 % interval (Student's t), also where one is nan."""
    return Figure(float(np.mean(values)), interval(list(values)), digits)


@dataclass(frozen=True)
class Exponents:
    """R²_cross ∝ (m/N)^one, and ∝ m^of_m N^-of_total where both are free; fitted seed by seed."""

    one: Figure
    of_m: Figure
    of_total: Figure


def exponents(crossings: Crossings) -> Exponents | None:
    """From R_cross by (m, n) and seed; None where a place has no crossing."""
    places = list(crossings)
    R = np.array([crossings[place] for place in places])  # [places, seeds]
    if len(places) < 3 or not np.isfinite(R).all():
        return None
    m = np.log([p[0] for p in places])
    total = np.log([p[0] * p[1] for p in places])
    y = 2 * np.log(R)
    both = np.stack([m, -total, np.ones_like(m)], axis=1)
    one = np.stack([m - total, np.ones_like(m)], axis=1)
    free, *_ = np.linalg.lstsq(both, y, rcond=None)
    tied, *_ = np.linalg.lstsq(one, y, rcond=None)
    return Exponents(estimate(tied[0]), estimate(free[0]), estimate(free[1]))


@dataclass(frozen=True)
class Span:
    """The least and the largest of some ratios."""

    low: float
    high: float

    @classmethod
    def of(cls, ratios: Iterable[float]) -> Span:
        values = list(ratios)
        return cls(min(values), max(values))

    @property
    def factor(self) -> float:
        return self.high / self.low

    def __str__(self) -> str:
        return f"{self.low:.2f} to {self.high:.2f}"


@dataclass(frozen=True)
class AlternativeResults:
    """All results, by place (m, n, R), method and figure, over seeds."""

    sizes: AlternativeSize
    cells: Mapping[LogisticCell, dict[str, Any]]
    gaps: np.ndarray  # [seeds, T] of `Descent`

    @cached_property
    def by_place(self) -> dict[Place, list[dict[str, Any]]]:
        out: dict[Place, list[dict[str, Any]]] = {}
        for cell, result in self.cells.items():
            out.setdefault(cell.place, []).append(result)
        return out

    @property
    def configurations(self) -> list[tuple[int, int]]:
        return [(m, n) for m in self.sizes.clients for n in self.sizes.samples]

    def places(self, configurations: Iterable[tuple[int, int]] = ()) -> list[Place]:
        """Every R at some (m, n); at all of them by default."""
        some = configurations or self.configurations
        return [(m, n, R) for m, n in some for R in self.sizes.radii]

    def over_seeds(
        self, place: Place, method: str, key: str = "aer", beside: str = "fedavg"
    ) -> list[float]:
        """One figure per seed; of the seeds that have the method `beside` it too."""
        results = self.by_place[place]
        return [r[method][key] for r in results if method in r and beside in r]

    def mean(self, place: Place, method: str, key: str = "aer", beside: str = "fedavg") -> float:
        return float(np.mean(self.over_seeds(place, method, key, beside)))

    def best(self, place: Place, key: str = "aer", beside: str = "fedavg") -> float:
        """The better of FedAvg and Local, by their means over seeds."""
        return min(self.mean(place, method, key, beside) for method in BASELINES)

    def rate(self, place: Place) -> float:
        m, n, R = place
        return logistic.rate(self.sizes.features, m, m * n, R)

    def of_rate(self, m: int, n: int, key: str = "aer") -> list[float]:
        """The better of both over the formula, for every R."""
        return [self.best(p, key) / self.rate(p) for p in self.places([(m, n)])]

    def crossings(self, key: str = "aer") -> dict[tuple[int, int], list[float]]:
        """R_cross of every seed, by (m, n)."""
        out = {}
        for m, n in self.configurations:
            fedavg, local = (
                np.array([self.over_seeds(p, method, key) for p in self.places([(m, n)])])
                for method in BASELINES
            )
            out[m, n] = [
                crossing(self.sizes.radii, fedavg[:, seed], local[:, seed])
                for seed in range(self.sizes.seeds)
            ]
        return out

    def first_order(self, m: int, n: int) -> float:
        """R² of the crossing by `closed_forms.logistic.crossing`."""
        s = instance(m, n, self.sizes.radii[0], 0, self.sizes.features)
        _, truth = s.draw()
        return logistic.crossing(s, truth, n) ** 2

    def deviation(self) -> float:
        """How far the AER of a run is from that of the exact minimiser, at most, relatively."""
        return max(
            abs(row["aer"] / row["exact"] - 1)
            for result in self.cells.values()
            for row in result.values()
            if "exact" in row
        )


# -- the page -------------------------------------------------------------------------------------
def write(
    folder: Path,
    sizes: AlternativeSize | None = None,
    descents: int = 4,
    workers: int = 2,
    **changes: Any,
) -> list[Path]:
    """Run everything (about four minutes on two cores) and write the page."""
    began = time.perf_counter()
    sizes = sizes or AlternativeSize()
    cells = list(sizes.cells())
    runs = [Descent(seed, **changes) for seed in range(descents)]
    stored = train_all([runs, cells], folder, NAME, workers)
    gaps = np.array([stored[run]["gaps"] for run in runs])
    results = AlternativeResults(sizes, {cell: stored[cell] for cell in cells}, gaps)
    crossings = {key: results.crossings(key) for key in ("aer", "ier90")}
    fits = {key: exponents(c) for key, c in crossings.items()}
    facts: dict[str, Any] = {
        "sizes": sizes,
        "run": runs[0],
        "clients": _listed(sizes.clients),
        "samples": _listed(sizes.samples),
        "radii": _listed(sizes.radii),
        "lams": _listed(sizes.lams),
        "rounds": ROUNDS,
        "local_steps": LOCAL_STEPS,
        "inner_steps": INNER_STEPS,
        "percent": 100 * results.deviation(),
    }
    large = exponents({p: c for p, c in crossings["aer"].items() if p[1] > min(sizes.samples)})
    verdicts: dict[str, Verdict] = {}
    for key, fit, without in (("aer", fits["aer"], large), ("ier", fits["ier90"], None)):
        verdicts[key], *facts[key] = _exponent(results, fit, without)
    for statements in (_alternative(results), _fedprox(results), _descent(results)):
        facts |= statements[0]
        verdicts |= statements[1]
    return page_from_text(
        NAME,
        facts,
        verdicts,
        tables={
            "Where FedAvg and Local are equally good: R² of the crossing, ± half the 95 % interval "
            "over seeds": _crossing_rows(results, crossings),
            "Average excess risk × 10⁴, mean over seeds (λ: median of those chosen)": _risk_rows(
                results, "aer"
            ),
            "Individual excess risk × 10⁴, 90th percentile over clients, mean over seeds": (
                _risk_rows(results, "ier90")
            ),
        },
        figures=_figures(results, crossings, fits),
        panels=_panels(results, crossings["aer"]),
        seconds=time.perf_counter() - began,
    ).write(folder)


# -- the claims: facts and verdicts ---------------------------------------------------------------
Statements = tuple[dict[str, Any], dict[str, Verdict]]


def _alternative(results: AlternativeResults) -> Statements:
    d = results.sizes.features
    places = results.places()
    local = Span.of(results.mean(p, "local") / (d / p[1]) for p in places)
    fedavg = Span.of(results.mean(p, "fedavg") / (d / (p[0] * p[1]) + p[2] ** 2) for p in places)
    best = Span.of(results.best(p) / results.rate(p) for p in places)
    facts = {
        "local": local,
        "fedavg": fedavg,
        "best": best,
        "best90": Span.of(results.best(p, "ier90") / results.rate(p) for p in places),
        "formula": Span.of(map(results.rate, places)),
    }
    return facts, {
        "local": local.factor <= 4 or ORDER,
        "fedavg": fedavg.high <= 1 or ORDER,
        "best": best.factor <= 6 or ORDER,
    }


def _fedprox(results: AlternativeResults) -> Statements:
    sizes = results.sizes
    if not sizes.tuned:
        return {}, dict.fromkeys(("fedprox", "conjecture", "lp_proj"))
    places = results.places(sizes.tuned)

    def bound(place: Place) -> float:  # (3.8)
        m, n, R = place
        return min(1 / n, R / n**0.5) + 1 / (m * n)

    def better(place: Place) -> float:
        return results.best(place, beside="fedprox")

    def ratios(method: str, of: Callable[[Place], float] = better) -> Span:
        return Span.of(results.mean(place, method) / of(place) for place in places)

    upper, lag, tuned = ratios("fedprox 4.4", bound), ratios("fedprox 4.4"), ratios("fedprox")
    worst = max(places, key=lambda p: results.mean(p, "fedprox") / better(p))
    facts = {
        "upper": upper,
        "lag": ""
        if lag.high <= 1.05
        else f", up to {lag.high:.1f} times that of the better baseline",
        "tuned": tuned,
        "worst": worst,
        "worst_total": worst[0] * worst[1],
        "worst_lam": np.median(results.over_seeds(worst, "fedprox", "lam")),
        "lp_proj": ratios("lp-proj"),
    }
    return facts, {
        "fedprox": upper.high <= 4 * sizes.features or ORDER,
        "conjecture": tuned.high <= 3 or ORDER,
        "lp_proj": NOT_STATED,
    }


def _exponent(
    results: AlternativeResults, fit: Exponents | None, large: Exponents | None
) -> tuple[bool | str, str, str]:
    """The verdict on an exponent of 1, what was fitted, and the reason if it is another one."""
    if fit is None:
        return False, "FedAvg and Local do not cross within the measured R", "R"
    ours = (
        f"R²_cross ∝ (m/N)^b with b = {fit.one} (95 % interval over seeds); with both "
        f"exponents free m^{fit.of_m} N^-{fit.of_total}"
    )
    if large is not None:
        ours += f"; without the smallest n, b = {large.one}"
    if fit.one.half is None or fit.one.half > WIDE:
        return ORDER, ours, "the interval is too wide to tell"
    if abs((fit.one.mean or 0.0) - 1) <= fit.one.half:
        return True, ours, ""
    least = min(results.sizes.samples)
    places = results.places((m, least) for m in results.sizes.clients)
    above = np.mean([results.mean(p, "local") * 2 * least / results.sizes.features for p in places])
    return (
        ORDER,
        ours,
        f"the interval excludes 1: at n = {least} Local's AER is {above:.2f} times its limit "
        "d/(2n), and at the larger R of its crossing FedAvg's grows more slowly than R²",
    )


def _descent(results: AlternativeResults) -> Statements:
    fitted = slope(results.gaps.mean(0))
    by_seed = estimate([slope(gaps) for gaps in results.gaps], 2)
    return {"descent": fitted, "by_seed": by_seed}, {"descent": fitted <= -0.9}


# -- tables and pictures --------------------------------------------------------------------------
def _crossing_rows(results: AlternativeResults, crossings: Mapping[str, Crossings]) -> list[Row]:
    rows = []
    for m, n in results.configurations:
        by_aer, by_ier = (estimate([R**2 for R in c[m, n]], 4) for c in crossings.values())
        rows.append(
            {
                "m": m,
                "N": m * n,
                "m/N": f"1/{n}",
                "R² by AER": str(by_aer),
                "R² by IER": str(by_ier),
                "R² for n → ∞": results.first_order(m, n),
                "R² N/m": (by_aer.mean or 0.0) * n,
                "best / formula": str(Span.of(results.of_rate(m, n))),
            }
        )
    return rows


def _risk_rows(results: AlternativeResults, key: str) -> list[Row]:
    rows = []
    for place in results.places(results.sizes.tuned) if results.sizes.tuned else ():
        m, n, R = place
        row: Row = {"m": m, "N": m * n, "R": R}
        for method, title in METHODS.items():
            row[title] = f"{1e4 * results.mean(place, method, key, 'fedprox'):.1f}"
            if method not in BASELINES and key == "aer":
                row[title] += f" (λ {np.median(results.over_seeds(place, method, 'lam')):.2g})"
        row["FedProx, λ of Thm 4.5"] = f"{1e4 * results.mean(place, 'fedprox 4.5', key):.1f}"
        if key == "aer":
            row["formula"] = f"{1e4 * results.rate(place):.1f}"
        rows.append(row)
    return rows


def _figures(
    results: AlternativeResults,
    crossings: Mapping[str, Crossings],
    fits: Mapping[str, Exponents | None],
) -> dict[str, Any]:
    def rounded(values: Iterable[float]) -> list[float]:
        return [float(f"{value:.5g}") for value in values]

    return {
        "risks": [
            dict(zip("mnR", place, strict=True))
            | {
                f"{method} {key}": rounded(results.over_seeds(place, method, key))
                for method in BASELINES
                for key in ("aer", "ier90")
            }
            for place in results.places()
        ],
        "crossings": {
            key: [{"m": m, "n": n, "R": rounded(R)} for (m, n), R in c.items()]
            for key, c in crossings.items()
        },
        "exponents": {
            key: None if fit is None else [fit.one.mean, fit.one.half] for key, fit in fits.items()
        },
        "gaps": [rounded(row) for row in results.gaps],
        "deviation": results.deviation(),
    }


def _band(label: str, x: Sequence[float], by_seed: Sequence[Sequence[float]], style: int) -> Line:
    """Means over seeds, with a band from the least to the largest."""
    means = [float(np.mean(values)) for values in by_seed]
    low, high = ([end(values) for values in by_seed] for end in (min, max))
    return Line(label, x, means, low, high, style=style, points=True)


def _panels(results: AlternativeResults, crossings: Crossings) -> list[Panel]:
    sizes = results.sizes
    panels = []
    for m, n in sizes.tuned or results.configurations[:1]:
        places = results.places([(m, n)])
        lines = [
            _band(title, sizes.radii, [results.over_seeds(p, method) for p in places], number)
            for number, (method, title) in enumerate(METHODS.items())
            if results.over_seeds(places[0], method)
        ]
        rate = [results.rate(p) / 2 for p in places]
        formula = Line("(min(d m/N, R²) + d/N) / 2", sizes.radii, rate, style=6, formula=True)
        title = f"m = {m}, N = {m * n}"
        across, up = "heterogeneity R", "average excess risk"
        panels.append(Panel(title, across, up, [*lines, formula], log="xy"))
    shares = [1 / n for n in sizes.samples]
    squares = {m: [[R**2 for R in crossings[m, n]] for n in sizes.samples] for m in sizes.clients}
    first = [results.first_order(sizes.clients[-1], n) for n in sizes.samples]
    middle = sizes.clients[len(sizes.clients) // 2]
    rounds = list(range(1, results.gaps.shape[1] + 1))
    mean, low, high = (f(results.gaps, axis=0) for f in (np.mean, np.min, np.max))
    return [
        *panels,
        Panel(
            "where FedAvg = Local",
            "m/N",
            "R² of the crossing",
            [
                *(_band(f"m = {m}", shares, squares[m], i) for i, m in enumerate(squares)),
                Line("first order: slope 1", shares, first, style=6, formula=True),
            ],
            log="xy",
        ),
        Panel(
            f"better of both / formula, m = {middle}",
            "R² / (d m/N)",
            "AER / (min(d m/N, R²) + d/N)",
            [
                Line(
                    f"N = {middle * n}",
                    [R**2 * n / sizes.features for R in sizes.radii],
                    results.of_rate(middle, n),
                    points=True,
                )
                for n in sizes.samples
            ],
            log="x",
        ),
        Panel(
            "FedProx by Theorem 4.4's steps",
            "round t",
            "‖w_t − w̃‖²",
            [
                Line(
                    f"mean of {len(results.gaps)} seeds",
                    rounds,
                    mean.tolist(),
                    low.tolist(),
                    high.tolist(),
                ),
                Line(
                    "1/t",
                    rounds,
                    [float(mean[-1]) * len(rounds) / t for t in rounds],
                    style=6,
                    formula=True,
                ),
            ],
            log="xy",
        ),
    ]


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{v:g}" for v in values)
