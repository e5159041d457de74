"""Where FedAvg and Local cross, and how that place depends on m and N."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from idiolect.host.scores import interval

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


def exponents(found: Mapping[tuple[int, int], Sequence[float]]) -> Exponents | None:
    """From R_cross by (m, n) and seed; None where a place has no crossing."""
    places = list(found)
    R = np.array([found[place] for place in places])  # [places, seeds]
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
