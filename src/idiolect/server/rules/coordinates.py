"""Rules that treat every coordinate by itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.knobs import knob
from .geometry import mean_around_median, median, sorted_columns, wide
from .rule import Resilient, Rule


@dataclass(frozen=True)
class Mean(Rule):
    """The mean of all rows; best when all clients are honest, and withstands no malicious one.

    sum_k weights_k rows_k / sum_k weights_k. Cost n m.

    >>> Mean()(torch.tensor([[0.0], [3.0]]), torch.tensor([2.0, 1.0])).tolist()
    [1.0]

    McMahan et al., Communication-efficient learning of deep networks from decentralized data,
    AISTATS 2017.
    """

    title = "mean"
    by_coordinate = True
    streams = True
    weighted: bool = knob(True, "by the clients' weights; false = every client counts the same")

    @property
    def weighs(self) -> bool:  # type: ignore[override]
        return self.weighted

    def sum_weights(self, weights: Tensor) -> Tensor:
        return weights if self.weighted else torch.ones_like(weights)

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        weights = self.sum_weights(weights)
        share = (weights / weights.sum()).to(rows.dtype)
        return share @ rows


@dataclass(frozen=True)
class Median(Rule):
    """The median of every coordinate; withstands malicious clients while they are fewer than half,
    but misses the mean of clients that differ.

    Coordinate j: the middle of rows[:, j] in order; for even n the mean of the two middle values.
    Weights are ignored: a malicious client could claim a large one. Cost n log n per coordinate.

    >>> Median()(torch.tensor([[0.0], [1.0], [2.0], [900.0]]), torch.ones(4)).tolist()
    [1.5]

    Yin et al., Byzantine-robust distributed learning: towards optimal statistical rates, ICML 2018.
    """

    title = "median"
    by_coordinate = True

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        return median(rows).to(rows.dtype)


@dataclass(frozen=True)
class TrimmedMean(Resilient, Rule):
    """The mean of every coordinate without its f largest and f smallest values; the first to try
    when f is known.

    Coordinate j: the mean of the middle n - 2 f of rows[:, j] in order, n >= 2 f + 1. With f = -1
    one or two values stay: that is the median, so give f where it is known. Weights are ignored: a
    malicious client could claim a large one. Cost n log n per coordinate.

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


@dataclass(frozen=True)
class Meamed(Resilient, Rule):
    """The mean of every coordinate's n - f values nearest to its median: drops f values, where the
    trimmed mean drops 2 f.

    n >= 2 f + 1. Of two values as near the smaller is kept. Weights are ignored: a malicious client
    could claim a large one. Cost n log n per coordinate.

    >>> Meamed(f=1)(torch.tensor([[0.0], [1.0], [2.0], [900.0]]), torch.ones(4)).tolist()
    [1.0]

    Xie, Koyejo and Gupta, Generalized Byzantine-tolerant SGD, 2018.
    """

    title = "meamed"
    by_coordinate = True

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        n = len(rows)
        return mean_around_median(rows, n - self.malicious(n)).to(rows.dtype)
