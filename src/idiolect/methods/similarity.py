"""How alike models are, for methods whose server compares those of its clients."""

from __future__ import annotations

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
