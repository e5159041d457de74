"""The mean around the median."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .geometry import mean_around_median
from .rule import Resilient, Rule


@dataclass(frozen=True)
class Meamed(Resilient, Rule):
    """The mean of every coordinate's n - f values nearest to its median: drops f values, where the
    trimmed mean drops 2 f.

    n >= 2 f + 1. Of two values as near the smaller is kept. Weights are ignored: a malicious client
    could claim a large one. Cost n log n per coordinate.

    >>> import torch
    >>> Meamed(f=1)(torch.tensor([[0.0], [1.0], [2.0], [900.0]]), torch.ones(4)).tolist()
    [1.0]

    Xie, Koyejo and Gupta, Generalized Byzantine-tolerant SGD, 2018.
    """

    title = "meamed"
    by_coordinate = True

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        n = len(rows)
        return mean_around_median(rows, n - self.malicious(n)).to(rows.dtype)
