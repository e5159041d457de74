"""What pages of theorems show: curves over repetitions, slopes and means with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from idiolect import interval

from .panels import Line
from .runs import Work

W = TypeVar("W", bound=Work)
Results = Mapping[W, Mapping[str, Any]]


@dataclass(frozen=True)
class Mean:
    """A mean over seeds with its 95 % interval."""

    value: float
    half: float

    @classmethod
    def of(cls, by_seed: Sequence[float] | np.ndarray) -> Mean:
        half = interval(list(map(float, by_seed)))
        return cls(float(np.mean(by_seed)), math.nan if half is None else half)

    @property
    def holds_zero(self) -> bool:
        return abs(self.value) <= self.half

    def scaled(self, factor: float) -> Mean:
        return Mean(factor * self.value, factor * self.half)

    def text(self, digits: int = 3) -> str:
        """As in the tables.

        >>> Mean(0.0123456, 0.0004).text()
        '0.0123 ± 0.0004'
        """
        return f"{self.value:.{digits}g} ± {self.half:.2g}"


def banded(
    label: str, x: Sequence[float], means: Sequence[Mean], style: int, log: bool = False
) -> Line:
    """Markers with the interval as a band.

    On a logarithmic axis an estimate that is not positive is left out, and a band ends at a tenth
    of the mean.
    """
    positive = [m if m.value > 0 or not log else Mean(math.nan, math.nan) for m in means]
    low = [max(m.value - m.half, m.value / 10) if log else m.value - m.half for m in positive]
    high = [m.value + m.half for m in means]
    return Line(label, x, [m.value for m in positive], low, high, style=style, points=True)


# -- rates of convergence -------------------------------------------------------------------------
@dataclass(frozen=True)
class Slope:
    """The slope of a line through log y against log x: mean over repetitions and 95 % interval."""

    value: float
    half: float | None  # half the interval; None for one repetition

    @classmethod
    def of(
        cls, x: Sequence[float], rows: np.ndarray, low: float = 0, high: float = math.inf
    ) -> Slope:
        """Fitted to each repetition (rows[repetitions, len(x)]) where low <= x <= high.

        >>> x = [1.0, 10.0, 100.0]
        >>> str(Slope.of(x, np.array([[1.0, 0.1, 0.01], [2.0, 0.2, 0.02]])))
        '-1.00 ± 0.00'
        """
        at = np.asarray(x, dtype=float)
        inside = (at >= low) & (at <= high)
        fits = np.polyfit(np.log(at[inside]), np.log(np.asarray(rows)[:, inside]).T, 1)[0]
        return cls(float(fits.mean()), interval(fits.tolist()))

    def __str__(self) -> str:
        return f"{self.value:.2f}" + ("" if self.half is None else f" ± {self.half:.2f}")

    def near(self, expected: float, room: float) -> bool:
        """Whether it is `expected` up to `room`, and positive as well as that."""
        return abs(self.value - expected) <= room and (self.half or 0.0) <= 2 * room


@dataclass(frozen=True)
class ConvergenceRun(Work):
    """A run of so many rounds: one of several repetitions."""

    rounds: int
    repetition: int = 0
    own: bool = False  # with the theorem's own step sizes, or with practical ones

    def cost(self) -> float:
        return self.rounds


@dataclass(frozen=True)
class Curve(Generic[W]):
    """What repetitions of a run measured, over x."""

    x: Sequence[float]
    jobs: Sequence[W]  # one repetition for each x, or one for all x
    rows: Mapping[str, np.ndarray]  # by what was measured: [repetitions, len(x)]

    @classmethod
    def over_runs(cls, group: Mapping[Any, Sequence[W]], results: Results[W]) -> Curve[W]:
        """A run for each x and repetition, which measures numbers."""
        runs = [[results[job] for job in jobs] for jobs in group.values()]
        rows = {key: np.array([[run[key] for run in x] for x in runs]).T for key in runs[0][0]}
        return cls(list(group), [jobs[0] for jobs in group.values()], rows)

    @classmethod
    def over_rounds(cls, x: Sequence[float], jobs: Sequence[W], results: Results[W]) -> Curve[W]:
        """A run for each repetition, which measures lists of numbers."""
        runs = [results[job] for job in jobs]
        return cls(x, jobs, {key: np.array([run[key] for run in runs]) for key in runs[0]})

    def mean(self, key: str) -> list[float]:
        return self.rows[key].mean(0).tolist()

    def last(self, key: str) -> float:
        return float(self.rows[key][:, -1].mean())

    def slope(self, key: str, low: float = 0, shift: float = 0) -> Slope:
        """Against x + shift."""
        return Slope.of([x + shift for x in self.x], self.rows[key], low)

    def line(self, label: str, key: str, **options: Any) -> Line:
        return Line(label, self.x, self.mean(key), **options)


def spaced(first: int, last: int, count: int) -> list[int]:
    """About `count` rounds from `first` to `last`, evenly on a logarithmic axis.

    >>> spaced(1, 100, 5)
    [1, 3, 10, 32, 100]
    """
    return sorted({round(t) for t in np.geomspace(first, last, count).tolist()})


def guide(x: Sequence[float], last: float, power: float, label: str) -> Line:
    """A thin dashed line of this power that ends at `last`, over the x above 1/30 of the last."""
    late = [at for at in x if at >= x[-1] / 30]
    return Line(label, late, [last * (at / x[-1]) ** power for at in late], formula=True, style=6)


def log_slope(x: Sequence[float], power: float) -> float:
    """The slope of ln(x) / x^power on logarithmic axes."""
    at = np.array(x, dtype=float)
    return float(np.polyfit(np.log(at), np.log(np.log(at) / at**power), 1)[0])
