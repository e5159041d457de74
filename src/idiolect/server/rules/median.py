"""The coordinate median."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from . import geometry
from .rule import Rule


@dataclass(frozen=True)
class Median(Rule):
    """The median of every coordinate; withstands malicious clients while they are fewer than half,
    but misses the mean of clients that differ.

    Coordinate j: the middle of rows[:, j] in order; for even n the mean of the two middle values.
    Weights are ignored: a malicious client could claim a large one. Cost n log n per coordinate.

    >>> import torch
    >>> Median()(torch.tensor([[0.0], [1.0], [2.0], [900.0]]), torch.ones(4)).tolist()
    [1.5]

    Yin et al., Byzantine-robust distributed learning: towards optimal statistical rates, ICML 2018.
    """

    title = "median"
    by_coordinate = True

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        return geometry.median(rows).to(rows.dtype)
