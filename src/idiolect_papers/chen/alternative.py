"""Where FedAvg and Local cross, and how that place depends on m and N."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from idiolect.host.scores import interval

from ..closed_forms import logistic
from ..page import Claim, Row, judged
from ..panels import Line, Panel
from ..theory import theory_page, train
from .runs import (
    INNER_STEPS,
    LOCAL_STEPS,
    ROUNDS,
    AlternativeSize,
    Descent,
    LogisticCell,
    instance,
    slope,
)

Risks = Sequence[float] | np.ndarray  # one per R


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


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with half its 95 % interval (Student's t); None for one seed."""

    mean: float
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        return cls(float(np.mean(values)), interval(list(values)))

    def holds(self, value: float) -> bool:
        """Whether the interval holds this value."""
        return self.half is not None and abs(self.mean - value) <= self.half

    def text(self, digits: int = 3) -> str:
        half = "" if self.half is None else f" ± {self.half:.{digits}f}"
        return f"{self.mean:.{digits}f}{half}"


@dataclass(frozen=True)
class Exponents:
    """R²_cross ∝ (m/N)^one, and ∝ m^of_m N^-of_total where both are free; fitted seed by seed."""

    one: Estimate
    of_m: Estimate
    of_total: Estimate


def exponents(crossings: Mapping[tuple[int, int], Sequence[float]]) -> Exponents | None:
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
    return Exponents(Estimate.of(tied[0]), Estimate.of(free[0]), Estimate.of(free[1]))


# -- the page -------------------------------------------------------------------------------------

NAME = "chen-alternative"
WIDE = 0.2  # an exponent with half an interval above this is not known
METHODS = {
    "fedavg": "FedAvg",
    "local": "Local",
    "fedprox 4.4": "FedProx, λ of Thm 4.4",
    "fedprox": "FedProx, λ validated",
    "lp-proj": "lp-proj-2, λ validated",
}


@dataclass(frozen=True)
class AlternativeResults:
    """All results, by place (m, n, R), method and figure, over seeds."""

    sizes: AlternativeSize
    cells: Mapping[LogisticCell, dict[str, Any]]
    gaps: np.ndarray  # [seeds, T] of `Descent`

    @cached_property
    def by_place(self) -> dict[tuple[int, int, float], list[dict[str, Any]]]:
        out: dict[tuple[int, int, float], list[dict[str, Any]]] = {}
        for cell, result in self.cells.items():
            out.setdefault(cell.place, []).append(result)
        return out

    @property
    def configurations(self) -> list[tuple[int, int]]:
        return [(m, n) for m in self.sizes.clients for n in self.sizes.samples]

    def over_seeds(
        self, m: int, n: int, R: float, method: str, key: str = "aer", beside: str = "fedavg"
    ) -> list[float]:
        """One figure per seed; of the seeds that have the method `beside` it too."""
        results = self.by_place[m, n, R]
        return [r[method][key] for r in results if method in r and beside in r]

    def mean(
        self, m: int, n: int, R: float, method: str, key: str = "aer", beside: str = "fedavg"
    ) -> float:
        return float(np.mean(self.over_seeds(m, n, R, method, key, beside)))

    def crossings(self, key: str = "aer") -> dict[tuple[int, int], list[float]]:
        """R_cross of every seed, by (m, n)."""
        radii = self.sizes.radii
        out = {}
        for m, n in self.configurations:
            risks = {
                method: np.array([self.over_seeds(m, n, R, method, key) for R in radii])
                for method in ("fedavg", "local")
            }
            out[m, n] = [
                crossing(radii, risks["fedavg"][:, seed], risks["local"][:, seed])
                for seed in range(self.sizes.seeds)
            ]
        return out

    def rate(self, m: int, n: int, R: float) -> float:
        return logistic.rate(self.sizes.features, m, m * n, R)

    def best(self, m: int, n: int, R: float, key: str = "aer", beside: str = "fedavg") -> float:
        """The better of FedAvg and Local, by their means over seeds."""
        return min(self.mean(m, n, R, method, key, beside) for method in ("fedavg", "local"))

    def ratios(self, of: Callable[[int, int, float], float]) -> dict[tuple[int, int], list[float]]:
        return {c: [of(*c, R) for R in self.sizes.radii] for c in self.configurations}

    def deviation(self) -> float:
        """How far the AER of a run is from that of the exact minimiser, at most, relatively."""
        return max(
            abs(row["aer"] / row["exact"] - 1)
            for result in self.cells.values()
            for row in result.values()
            if "exact" in row
        )


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
    results = train([runs, cells], folder, NAME, workers)
    gaps = np.array([results[run]["gaps"] for run in runs])
    outcome = AlternativeResults(sizes, {cell: results[cell] for cell in cells}, gaps)
    crossings = {key: outcome.crossings(key) for key in ("aer", "ier90")}
    fits = {key: exponents(c) for key, c in crossings.items()}
    large = {p: c for p, c in crossings["aer"].items() if p[1] > min(sizes.samples)}
    return theory_page(
        NAME,
        facts={
            "sizes": sizes,
            "run": runs[0],
            "clients": _listed(sizes.clients),
            "samples": _listed(sizes.samples),
            "radii": _listed(sizes.radii),
            "lams": _listed(sizes.lams),
            "rounds": ROUNDS,
            "local_steps": LOCAL_STEPS,
            "inner_steps": INNER_STEPS,
            "percent": 100 * outcome.deviation(),
        },
        verdicts={},
        more_claims=_claims(outcome, fits, exponents(large)),
        tables={
            "Where FedAvg and Local are equally good: R² of the crossing, ± half the 95 % interval "
            "over seeds": _crossing_rows(outcome, crossings),
            "Average excess risk × 10⁴, mean over seeds (λ: median of those chosen)": _risk_rows(
                outcome, "aer"
            ),
            "Individual excess risk × 10⁴, 90th percentile over clients, mean over seeds": (
                _risk_rows(outcome, "ier90")
            ),
        },
        figures=_figures(outcome, crossings, fits),
        panels=_panels(outcome, crossings["aer"]),
        seconds=time.perf_counter() - began,
    ).write(folder)


# -- the claims -----------------------------------------------------------------------------------
def _claims(
    results: AlternativeResults, fits: dict[str, Exponents | None], large: Exponents | None
) -> list[Claim]:
    d = results.sizes.features
    local = _range(results.ratios(lambda m, n, R: results.mean(m, n, R, "local") / (d / n)))
    fedavg = _range(
        results.ratios(lambda m, n, R: results.mean(m, n, R, "fedavg") / (d / (m * n) + R**2))
    )
    best = _range(results.ratios(lambda m, n, R: results.best(m, n, R) / results.rate(m, n, R)))
    best90 = _range(
        results.ratios(lambda m, n, R: results.best(m, n, R, "ier90") / results.rate(m, n, R))
    )
    claims = [
        Claim(
            "Local has AER and IER O(m/N), whatever R is (3.4), (3.6)",
            f"AER / (d m/N) is {_span(local)} over all R, m and N (1/2 for N → ∞)",
            "agrees" if local[1] <= 4 * local[0] else "same order",
        ),
        Claim(
            "FedAvg has AER O(1/N + R²) (3.3)",
            f"AER / (d/N + R²) is {_span(fedavg)}",
            "agrees" if fedavg[1] <= 1 else "same order",
        ),
        _exponent_claim(
            results, "R² ≍ m/N divides the two by AER (Theorem 3.3)", fits["aer"], large
        ),
        _exponent_claim(results, "and by IER (Theorem 3.3)", fits["ier90"], None),
        Claim(
            "the better of both has AER ≍ min(m/N, R²) + 1/N, which nothing improves on (Theorem "
            "3.1, Corollary 3.1)",
            f"measured / (min(d m/N, R²) + d/N) is {_span(best)}: constant up to a factor "
            f"{best[1] / best[0]:.1f}, while the formula itself changes by a factor "
            f"{_formula_span(results):.0f}; by the 90th percentile of the IER {_span(best90)}",
            "agrees" if best[1] <= 6 * best[0] else "same order",
        ),
    ]
    if results.sizes.tuned:
        claims += _fedprox_claims(results)
    return [*claims, _descent_claim(results)]


def _fedprox_claims(results: AlternativeResults) -> list[Claim]:
    places = [(m, n, R) for m, n in results.sizes.tuned for R in results.sizes.radii]

    def against(method: str, of: Callable[[int, int, float], float]) -> tuple[float, float]:
        ratios = [results.mean(*place, method) / of(*place) for place in places]
        return min(ratios), max(ratios)

    def bound(m: int, n: int, R: float) -> float:  # (3.8)
        return min(1 / n, R / n**0.5) + 1 / (m * n)

    upper = against("fedprox 4.4", bound)

    def better(m: int, n: int, R: float) -> float:
        return results.best(m, n, R, beside="fedprox")

    lag = against("fedprox 4.4", better)
    tuned = against("fedprox", better)
    lpproj = against("lp-proj", better)
    worst = max(places, key=lambda p: results.mean(p[0], p[1], p[2], "fedprox") / better(*p))
    total = worst[0] * worst[1]
    lam = np.median(results.over_seeds(*worst, "fedprox", "lam"))
    lags = "" if lag[1] <= 1.05 else f", up to {lag[1]:.1f} times that of the better baseline"
    return [
        Claim(
            "FedProx with the λ of its proof has AER O(min(m/N, R √(m/N)) + 1/N), which is above "
            "the lower bound for 1/(mN) ≪ R² ≪ m/N (3.8)",
            f"AER / (min(m/N, R √(m/N)) + 1/N) is {_span(upper)}{lags}",
            "agrees" if upper[1] <= 4 * results.sizes.features else "same order",
        ),
        Claim(
            "conjecture: FedProx is minimax optimal too (Section 3.4)",
            f"with λ chosen on validation data its AER is {_span(tuned)} times that of the better "
            f"baseline; worst at N = {total}, R = {worst[2]:g}, with λ = {lam:g} of "
            f"{_listed(results.sizes.lams)}",
            "agrees" if tuned[1] <= 3 else "same order",
        ),
        Claim(
            "–",
            f"lp-proj-2 in {results.sizes.dim} of {results.sizes.features} dimensions, λ chosen on "
            f"validation data: AER {_span(lpproj)} times that of the better baseline; the "
            "untied dimensions keep Local's risk",
            "not stated by the paper",
        ),
    ]


def _exponent_claim(
    results: AlternativeResults, paper: str, fit: Exponents | None, large: Exponents | None
) -> Claim:
    if fit is None:
        return Claim(paper, "FedAvg and Local do not cross within the measured R", "differs", "R")
    ours = (
        f"R²_cross ∝ (m/N)^b with b = {fit.one.text()} (95 % interval over seeds); with both "
        f"exponents free m^{fit.of_m.text()} N^-{fit.of_total.text()}"
    )
    if large is not None:
        ours += f"; without the smallest n, b = {large.one.text()}"
    if fit.one.half is None or fit.one.half > WIDE:
        return Claim(paper, ours, "same order", "the interval is too wide to tell")
    if fit.one.holds(1.0):
        return Claim(paper, ours, "agrees")
    least = min(results.sizes.samples)
    places = [(m, least, R) for m in results.sizes.clients for R in results.sizes.radii]
    above = np.mean(
        [results.mean(*p, "local") * 2 * least / results.sizes.features for p in places]
    )
    reason = (
        f"the interval excludes 1: at n = {least} Local's AER is {above:.2f} times its limit "
        "d/(2n), and at the larger R of its crossing FedAvg's grows more slowly than R²"
    )
    return Claim(paper, ours, "same order", reason)


def _descent_claim(results: AlternativeResults) -> Claim:
    fitted = Estimate.of([slope(gaps) for gaps in results.gaps])
    mean = slope(results.gaps.mean(0))
    return judged(
        "with the steps of Theorem 4.4, E‖w_t − w̃‖² = O(1/t) (Lemma B.2)",
        f"slope of log E‖w_t − w̃‖² in log t from round 8 on: {mean:.2f} (by seed {fitted.text(2)})",
        mean <= -0.9,
    )


def _range(ratios: dict[tuple[int, int], list[float]]) -> tuple[float, float]:
    values = [v for row in ratios.values() for v in row]
    return min(values), max(values)


def _span(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.2f} to {ends[1]:.2f}"


def _formula_span(results: AlternativeResults) -> float:
    low, high = _range(results.ratios(results.rate))
    return high / low


# -- tables and pictures --------------------------------------------------------------------------
def _first_order(results: AlternativeResults, m: int, n: int) -> float:
    """R² of the crossing by `theory.logistic.crossing`."""
    s = instance(m, n, results.sizes.radii[0], 0, results.sizes.features)
    _, truth = s.draw()
    return logistic.crossing(s, truth, n) ** 2


def _crossing_rows(
    results: AlternativeResults, crossings: dict[str, dict[tuple[int, int], list[float]]]
) -> list[Row]:
    rows = []
    for m, n in results.configurations:
        squares = {k: Estimate.of([R**2 for R in c[m, n]]) for k, c in crossings.items()}
        ratio = [results.best(m, n, R) / results.rate(m, n, R) for R in results.sizes.radii]
        rows.append(
            {
                "m": m,
                "N": m * n,
                "m/N": f"1/{n}",
                "R² by AER": squares["aer"].text(4),
                "R² by IER": squares["ier90"].text(4),
                "R² for n → ∞": _first_order(results, m, n),
                "R² N/m": squares["aer"].mean * n,
                "best / formula": f"{min(ratio):.2f} to {max(ratio):.2f}",
            }
        )
    return rows


def _risk_rows(results: AlternativeResults, key: str) -> list[Row]:
    rows = []
    for m, n in results.sizes.tuned:
        for R in results.sizes.radii:
            row: Row = {"m": m, "N": m * n, "R": R}
            for method, title in METHODS.items():
                value = f"{1e4 * results.mean(m, n, R, method, key, 'fedprox'):.1f}"
                if method not in ("fedavg", "local") and key == "aer":
                    lam = np.median(results.over_seeds(m, n, R, method, "lam"))
                    value += f" (λ {lam:.2g})"
                row[title] = value
            row["FedProx, λ of Thm 4.5"] = f"{1e4 * results.mean(m, n, R, 'fedprox 4.5', key):.1f}"
            if key == "aer":
                row["formula"] = f"{1e4 * results.rate(m, n, R):.1f}"
            rows.append(row)
    return rows


def _figures(
    results: AlternativeResults,
    crossings: dict[str, dict[tuple[int, int], list[float]]],
    fits: dict[str, Exponents | None],
) -> dict[str, Any]:
    def rounded(value: float) -> float:
        return float(f"{value:.5g}")

    risks = [
        {
            "m": m,
            "n": n,
            "R": R,
            **{
                f"{method} {key}": [rounded(v) for v in results.over_seeds(m, n, R, method, key)]
                for method in ("fedavg", "local")
                for key in ("aer", "ier90")
            },
        }
        for m, n in results.configurations
        for R in results.sizes.radii
    ]
    return {
        "risks": risks,
        "crossings": {
            key: [{"m": m, "n": n, "R": [rounded(v) for v in R]} for (m, n), R in c.items()]
            for key, c in crossings.items()
        },
        "exponents": {
            key: None if fit is None else [fit.one.mean, fit.one.half] for key, fit in fits.items()
        },
        "gaps": [[rounded(v) for v in row] for row in results.gaps],
        "deviation": results.deviation(),
    }


def _panels(
    results: AlternativeResults, crossings: dict[tuple[int, int], list[float]]
) -> list[Panel]:
    radii = list(results.sizes.radii)
    shown = results.sizes.tuned or tuple(results.configurations[:1])
    panels = []
    for m, n in shown:
        lines = []
        for number, (method, title) in enumerate(METHODS.items()):
            if not results.over_seeds(m, n, radii[0], method):
                continue
            values = [results.over_seeds(m, n, R, method) for R in radii]
            mean = [float(np.mean(v)) for v in values]
            low, high = [min(v) for v in values], [max(v) for v in values]
            lines.append(Line(title, radii, mean, low, high, style=number, points=True))
        formula = [results.rate(m, n, R) / 2 for R in radii]
        lines.append(Line("(min(d m/N, R²) + d/N) / 2", radii, formula, style=6, formula=True))
        title = f"m = {m}, N = {m * n}"
        panels.append(Panel(title, "heterogeneity R", "average excess risk", lines, log="xy"))
    panels.append(_crossing_panel(results, crossings))
    panels.append(_ratio_panel(results))
    panels.append(_descent_panel(results))
    return panels


def _crossing_panel(
    results: AlternativeResults, crossings: dict[tuple[int, int], list[float]]
) -> Panel:
    lines = []
    shares = [1 / n for n in results.sizes.samples]
    for number, m in enumerate(results.sizes.clients):
        squares = [[R**2 for R in crossings[m, n]] for n in results.sizes.samples]
        mean = [float(np.mean(v)) for v in squares]
        low, high = [min(v) for v in squares], [max(v) for v in squares]
        lines.append(Line(f"m = {m}", shares, mean, low, high, style=number, points=True))
    m = results.sizes.clients[-1]
    first = [_first_order(results, m, n) for n in results.sizes.samples]
    lines.append(Line("first order: slope 1", shares, first, style=6, formula=True))
    return Panel("where FedAvg = Local", "m/N", "R² of the crossing", lines, log="xy")


def _ratio_panel(results: AlternativeResults) -> Panel:
    m = results.sizes.clients[len(results.sizes.clients) // 2]
    d = results.sizes.features
    lines = []
    for number, n in enumerate(results.sizes.samples):
        across = [R**2 * n / d for R in results.sizes.radii]
        ratio = [results.best(m, n, R) / results.rate(m, n, R) for R in results.sizes.radii]
        lines.append(Line(f"N = {m * n}", across, ratio, style=number, points=True))
    title = f"better of both / formula, m = {m}"
    up = "AER / (min(d m/N, R²) + d/N)"
    return Panel(title, "R² / (d m/N)", up, lines, log="x")


def _descent_panel(results: AlternativeResults) -> Panel:
    rounds = list(range(1, results.gaps.shape[1] + 1))
    mean = results.gaps.mean(0)
    line = mean[-1] * len(rounds) / np.array(rounds)
    return Panel(
        "FedProx by Theorem 4.4's steps",
        "round t",
        "‖w_t − w̃‖²",
        [
            Line(
                f"mean of {len(results.gaps)} seeds",
                rounds,
                mean.tolist(),
                results.gaps.min(0).tolist(),
                results.gaps.max(0).tolist(),
            ),
            Line("1/t", rounds, line.tolist(), style=6, formula=True),
        ],
        log="xy",
    )


def _listed(values: Iterable[float]) -> str:
    return ", ".join(f"{v:g}" for v in values)
