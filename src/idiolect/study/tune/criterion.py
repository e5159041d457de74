"""What settings are chosen by: a figure on validation data, and how uncertain it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.knobs import SettingError, nearest
from ...data.federation import Federation
from ...host.metrics import direction
from ...run.settings import Settings

CRITERIA = {  # -> what a summary calls it
    "pooled": "mean",  # over all validation samples
    "clients": "mean_of_clients",
    "worst10": "worst10",  # the mean over the worst tenth of the clients
}
Figures = np.ndarray  # of clients, float64[N]; NaN for a client that has none


@dataclass(frozen=True)
class Criterion:
    """A way to sum up a figure of all clients."""

    kind: str  # of `CRITERIA`
    measure: str  # accuracy, loss or a metric
    higher: bool  # whether more is better

    def __str__(self) -> str:
        how = {"pooled": "pooled", "clients": "mean over clients of", "worst10": "worst tenth of"}
        return f"{how[self.kind]} validation {self.measure}"

    def figure(self, summary: Mapping[str, Any]) -> float | None:
        """The figure of a run; None where it is not finite."""
        return summary["valid"][self.measure][CRITERIA[self.kind]]

    def better(self, figure: float | None) -> float:
        """A number that is larger for a better figure; least for none at all."""
        if figure is None or not math.isfinite(figure):
            return -math.inf
        return figure if self.higher else -figure

    def influence(self, each: Figures, samples: np.ndarray) -> Figures:
        """What each client adds to the deviation of the figure from its expectation.

        Pooled: n_i (a_i - a) / n; over clients: (a_i - a) / N; worst tenth, with q its boundary:
        (a_i - q) / k for those in it. The figure's variance over draws of clients is about
        N / (N - 1) times the sum of squares of these.
        """
        known = ~np.isnan(each) & (samples > 0)
        a = np.where(known, each, 0.0)
        if self.kind == "worst10":
            sign = 1.0 if self.higher else -1.0
            order = np.argsort(np.where(known, sign * each, np.inf), kind="stable")
            k = math.ceil(0.1 * known.sum())
            worst = np.zeros(len(each), dtype=bool)
            worst[order[:k]] = True
            boundary = a[order[k - 1]] if k else 0.0
            return np.where(worst, (a - boundary) / max(k, 1), 0.0)
        weights = np.where(known, samples if self.kind == "pooled" else 1.0, 0.0)
        weights = weights / max(weights.sum(), 1.0)
        return weights * (a - (weights * a).sum())


def error_over_clients(one: Figures, other: Figures) -> float:
    """The standard error of the difference of two figures of the same clients, paired.

    >>> round(error_over_clients(np.array([0.1, -0.1, 0.0]), np.zeros(3)), 4)
    0.1732
    """
    z = one - other
    if len(z) < 2:
        return math.nan
    return math.sqrt(len(z) / (len(z) - 1) * float(((z - z.mean()) ** 2).sum()))


def error_over_seeds(one: Sequence[float], other: Sequence[float]) -> float:
    """The standard error of the mean difference of two figures under the same seeds, paired.

    >>> round(error_over_seeds([0.8, 0.9], [0.7, 0.7]), 4)
    0.05
    """
    z = np.array(one) - np.array(other)
    return float(z.std(ddof=1) / math.sqrt(len(z))) if len(z) > 1 else math.nan


def read_criterion(given: str, settings: Settings, federation: Federation) -> Criterion:
    """A criterion by name. Test data are none.

    >>> import idiolect as il
    >>> federation = il.data.load("synthetic", clients=4, samples=60)
    >>> str(read_criterion("worst10", il.Settings(), federation))
    'worst tenth of validation accuracy'
    """
    if "test" in str(given).lower().replace("-", "_").split("_"):
        raise SettingError(
            f"criterion: {given!r} is not accepted; settings are chosen on validation data alone, "
            f"by one of {', '.join(CRITERIA)}. Test data are for the final run: chosen by them, "
            "its figures would flatter"
        )
    if given not in CRITERIA:
        raise nearest(str(given), CRITERIA, "criterion")
    measure = settings.metric or ("accuracy" if federation.classes else "loss")
    return Criterion(given, measure, direction(measure, settings.metrics))
