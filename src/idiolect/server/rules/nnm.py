"""Nearest-neighbour mixing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .geometry import squared_distances, wide
from .rule import Resilient, Wrapper


@dataclass(frozen=True)
class NNM(Resilient, Wrapper):
    """Every row becomes the mean of the n - f rows nearest to it, itself among them; gives most
    rules the best possible order of error.

    y_i = mean of the n - f rows x_j of least |x_i - x_j|; of rows as near, the first. n >= 2 f + 1.
    Weights pass unchanged and are not used. Cost n² m, twice.

    >>> rows, _ = NNM(f=1)(torch.tensor([[0.0], [1.0], [2.0], [900.0]]), torch.ones(4))
    >>> [round(x, 3) for x in rows[:, 0].tolist()]
    [1.0, 1.0, 1.0, 301.0]

    Allouah et al., Fixing by mixing: a recipe for optimal Byzantine ML under heterogeneity,
    AISTATS 2023.
    """

    title = "nnm"

    def __call__(self, rows: Tensor, weights: Tensor, *, key: int = 0) -> tuple[Tensor, Tensor]:
        n = len(rows)
        keep = n - self.malicious(n)
        distances = squared_distances(rows)
        near = distances.argsort(dim=1, stable=True)[:, :keep]
        mixing = torch.zeros_like(distances).scatter_(1, near, 1 / keep)
        return (mixing @ wide(rows)).to(rows.dtype), weights
