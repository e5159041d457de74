"""How alike models are, and weights that follow: for servers that compare those of clients."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize


def squared_distances(x: Tensor, y: Tensor) -> Tensor:  # [K, d], [H, d] -> [K, H]
    """||x_i - y_j||², by one matrix product around the mean of y."""
    centre = y.mean(0) if len(y) else 0
    x, y = x - centre, y - centre
    squares = x.square().sum(1, keepdim=True) + y.square().sum(1)
    return (squares - 2 * x @ y.T).clamp(min=0)


def cosines(x: Tensor, y: Tensor) -> Tensor:  # [K, d], [H, d] -> [K, H]
    """cos(x_i, y_j); 0 where one of them is zero."""
    return normalize(x, dim=1) @ normalize(y, dim=1).T


def onto_simplex(y: Tensor) -> Tensor:  # [K, H] -> [K, H]
    """The nearest rows with x >= 0 and Σ x = 1.

    >>> onto_simplex(torch.tensor([[0.5, 0.7, -2.0]]))
    tensor([[0.4000, 0.6000, 0.0000]])
    """
    # x = max(y - t, 0), t such that they sum to 1: the least of the excesses of the k largest
    largest = y.sort(dim=1, descending=True).values
    counts = torch.arange(1, y.shape[1] + 1, device=y.device)
    excess = (largest.cumsum(1) - 1) / counts
    return (y - excess.amax(1, keepdim=True)).clamp(min=0)
