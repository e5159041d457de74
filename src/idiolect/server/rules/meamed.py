"""The mean around the median."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .geometry import around
from .rule import Rule, Withstands


@dataclass(frozen=True)
class Meamed(Withstands, Rule):
    """The mean of every coordinate's n - f values nearest to its median: drops f values, where the trimmed mean drops 2 f.

    n >= 2 f + 1. Of two values as near the smaller is kept. Weights are ignored: a liar could claim a large one. Cost n log n a coordinate.

    >>> import torch
    >>> Meamed(f=1)(torch.tensor([[0.0], [1.0], [2.0], [900.0]]), torch.ones(4)).tolist()
    [1.0]

    Xie, Koyejo and Gupta, Generalized Byzantine-tolerant SGD, 2018.
    """

    title = "meamed"

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        n = len(rows)
        return around(rows, n - self.liars(n)).to(rows.dtype)
