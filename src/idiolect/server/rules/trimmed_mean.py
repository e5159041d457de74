"""The coordinate trimmed mean."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .geometry import sorted_columns, wide
from .rule import Resilient, Rule


@dataclass(frozen=True)
class TrimmedMean(Resilient, Rule):
    """The mean of every coordinate without its f largest and f smallest values; the first to try
    when f is known.

    Coordinate j: the mean of the middle n - 2 f of rows[:, j] in order, n >= 2 f + 1. With f = -1
    one or two values stay: that is the median, so give f where it is known. Weights are ignored: a
    malicious client could claim a large one. Cost n log n per coordinate.

    >>> import torch
    >>> TrimmedMean(f=1)(torch.tensor([[0.0], [1.0], [2.0], [900.0]]), torch.ones(4)).tolist()
    [1.5]

    Yin et al., Byzantine-robust distributed learning: towards optimal statistical rates, ICML 2018.
    """

    title = "trimmed-mean"
    by_coordinate = True

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        n = len(rows)
        f = self.malicious(n)
        return wide(sorted_columns(rows)[f : n - f]).mean(0).to(rows.dtype)
