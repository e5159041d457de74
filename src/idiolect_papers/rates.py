"""Rates of convergence: slopes on logarithmic axes, with intervals, and what is said of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from idiolect.host.scores import interval

from .page import Claim
from .panels import Line


@dataclass(frozen=True)
class Slope:
    """The slope of a line through log y against log x: mean over repetitions and 95 % interval."""

    value: float
    half: float | None  # half the interval; None for one repetition

    @classmethod
    def of(cls, x: Sequence[float], rows: np.ndarray, low: float, high: float = math.inf) -> Slope:
        """Fitted to each repetition (rows[repetitions, len(x)]) where low <= x <= high.

        >>> x = [1.0, 10.0, 100.0]
        >>> Slope.of(x, np.array([[1.0, 0.1, 0.01], [2.0, 0.2, 0.02]]), low=1).text()
        '-1.00 ± 0.00'
        """
        at = np.asarray(x, dtype=float)
        inside = (at >= low) & (at <= high)
        fits = np.polyfit(np.log(at[inside]), np.log(np.asarray(rows)[:, inside]).T, 1)[0]
        return cls(float(fits.mean()), interval(fits.tolist()))

    def text(self) -> str:
        return f"{self.value:.2f}" + ("" if self.half is None else f" ± {self.half:.2f}")

    def near(self, expected: float, room: float) -> bool:
        """Whether it is `expected` up to `room`, and known as well as that."""
        return abs(self.value - expected) <= room and (self.half or 0.0) <= 2 * room


def spaced(first: int, last: int, count: int) -> list[int]:
    """About `count` rounds from `first` to `last`, evenly on a logarithmic axis.

    >>> spaced(1, 100, 5)
    [1, 3, 10, 32, 100]
    """
    return sorted({round(t) for t in np.geomspace(first, last, count).tolist()})


def guide(x: Sequence[float], last: float, power: float, label: str) -> Line:
    """A line of this power that ends at `last`, thin and dashed, from 1/30 of the last x on."""
    late = [at for at in x if at >= x[-1] / 30]
    return Line(label, late, [last * (at / x[-1]) ** power for at in late], formula=True, style=6)


def checked(paper: str, ours: str, agrees: bool) -> Claim:
    """A claim that the figures bear out, or do not."""
    return Claim(paper, ours, "agrees" if agrees else "differs", "" if agrees else "see the tables")
