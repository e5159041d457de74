"""Means, variances and medians of training rows: of every client by itself, or of all together.

Of all together means by sums: each client sends the count and the sum of every column and is sent
the mean; it sends the sum of squared deviations from it and is sent the standard deviation. No
value of a single row leaves a client. The median of all is found by bisection over the 64 bits of a
number, once for each of the two middle ones: a threshold down, the count below it up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NUMBER = 8  # bytes of a count or of a float64
MEDIAN_STEPS = 2 * 64


@dataclass(frozen=True)
class Rows:
    """The training rows of a table: whose each one is."""

    client: np.ndarray  # int64[n], positions of clients
    clients: int
    own: bool  # statistics of every client by itself, not of all together

    def _sum(self, values: np.ndarray, present: np.ndarray) -> np.ndarray:
        """Sums per client, or one sum of the clients' sums."""
        sums = np.bincount(self.client[present], values[present], minlength=self.clients)
        return sums if self.own else sums.sum(keepdims=True)

    def _of_row(self, statistic: np.ndarray) -> np.ndarray:
        return statistic[self.client] if self.own else statistic

    def counts(self, values: np.ndarray) -> np.ndarray:
        """Values that are not missing."""
        return self._sum(np.ones(len(values)), values == values)

    def mean(self, values: np.ndarray) -> np.ndarray:  # -> float64[clients] or float64[1]
        """0 where there is no value."""
        return self._sum(values, values == values) / np.maximum(self.counts(values), 1)

    def deviation(self, values: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """The standard deviation around the mean; 1 where there is none to divide by.

        What rounding alone can make of a constant counts as none, by scikit-learn's bound.
        """
        counts = np.maximum(self.counts(values), 1)
        squares = self._sum((values - self._of_row(mean)) ** 2, values == values)
        variance = squares / counts
        eps = np.finfo(np.float64).eps
        rounding = counts * eps * variance + (counts * mean * eps) ** 2
        return np.where(variance <= rounding, 1.0, np.sqrt(variance))

    def median(self, values: np.ndarray) -> np.ndarray:
        """0 where there is no value."""
        present = values == values
        if not self.own:
            return np.array([np.median(values[present]) if present.any() else 0.0])
        order = np.lexsort((values[present], self.client[present]))
        ordered = values[present][order]
        counts = np.bincount(self.client[present], minlength=self.clients)
        starts = counts.cumsum() - counts
        safe = np.append(ordered, 0.0)  # a client without values reads past the end
        low = safe[np.minimum(starts + (counts - 1).clip(0) // 2, len(ordered))]
        high = safe[np.minimum(starts + counts // 2, len(ordered))]
        return np.where(counts > 0, low / 2 + high / 2, 0.0)


def bytes_of_statistics(columns: int, scale: str, fill: str, flags: bool) -> tuple[int, int]:
    """(up, down) per client, for so many columns of numbers.

    >>> bytes_of_statistics(10, "federated", "", flags=False)
    (240, 160)
    >>> bytes_of_statistics(10, "client", "mean", flags=False)
    (0, 0)
    """
    up = down = 0
    if scale == "federated":  # count and sum, mean; sum of squares, deviation
        up, down = 3, 2
    elif scale == "none" and fill == "mean":
        up, down = 2, 1
    if scale != "client" and fill == "median":
        up, down = up + MEDIAN_STEPS, down + MEDIAN_STEPS
    agreed = 1 if flags else 0  # a byte: whether the column has missing values
    return columns * (NUMBER * up + agreed), columns * (NUMBER * down + agreed)
