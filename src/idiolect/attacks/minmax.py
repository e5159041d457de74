"""Min-max and min-sum: as far along a harmful direction as distances to honest messages allow.

Both send mean + gamma p with the largest gamma that keeps a distance bound. With p a unit vector,
c_i = x_i - mean and ||mean + gamma p - x_i||^2 = ||c_i||^2 - 2 gamma p.c_i + gamma^2, the bounds
are quadratics in gamma: no search is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.streams import Keys
from .attack import Collusion, change, unit


@dataclass(frozen=True)
class _DistanceBounded(Collusion):
    direction: str = knob(
        "std",
        "where to push: against the mean change, down each coordinate's spread, "
        "or against its sign",
        choices=("unit", "std", "sign"),
    )

    def agree(
        self, seen: Tensor, reference: Tensor | None, keys: Keys, malicious: int, clients: int
    ) -> Tensor:
        mean = seen.mean(0)
        c = seen - mean
        scale = c.abs().max()  # squares of c / scale neither overflow nor vanish
        if not scale > 0:
            return mean  # all honest messages are equal: any other would stand out
        p = -unit(self._towards(seen, change(mean, reference)))
        return mean + scale * self.gamma(c / scale, p) * p

    def _towards(self, rows: Tensor, mean_change: Tensor) -> Tensor:
        """The opposite of the direction to push in, of any length."""
        if self.direction == "std":
            return rows.std(0, correction=0)
        return mean_change.sign() if self.direction == "sign" else mean_change

    def gamma(self, c: Tensor, p: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class MinMax(_DistanceBounded):
    """mean + gamma p, the largest gamma with max_i ||message - x_i|| <= max_ij ||x_i - x_j||.

    i and j are honest. p: "unit" -(mean change), "std" -(standard deviation), "sign" -sign(mean
    change), each divided by its length, which changes gamma and not the message. Shejwalkar and
    Houmansadr 2021 search for gamma by halving steps; this is the exact root.

    >>> import numpy as np
    >>> rows = torch.tensor([[0.0], [2.0], [9.0]])
    >>> malicious = torch.tensor([False, False, True])
    >>> MinMax()(rows, malicious, None, np.zeros(3, dtype=np.uint64)).tolist()
    [[0.0], [2.0], [0.0]]
    """

    def gamma(self, c: Tensor, p: Tensor) -> Tensor:
        gram = c @ c.T
        square = gram.diag()
        along = c @ p
        widest = (square[:, None] + square - 2 * gram).max()
        return (along + (along.square() + (widest - square).clamp_min(0)).sqrt()).min()


@dataclass(frozen=True)
class MinSum(_DistanceBounded):
    """mean + gamma p, the largest gamma within the bound on sums of squared distances.

    The bound is sum_i ||message - x_i||^2 <= max_i sum_j ||x_i - x_j||^2 over honest i, j. Since
    sum_j ||y - x_j||^2 = H ||y - mean||^2 + const, gamma is the largest distance of an honest
    message from the mean. Shejwalkar and Houmansadr 2021; p as in min-max.

    >>> import numpy as np
    >>> rows = torch.tensor([[0.0], [2.0], [9.0]])
    >>> malicious = torch.tensor([False, False, True])
    >>> MinSum()(rows, malicious, None, np.zeros(3, dtype=np.uint64)).tolist()
    [[0.0], [2.0], [0.0]]
    """

    def gamma(self, c: Tensor, p: Tensor) -> Tensor:
        return torch.linalg.vector_norm(c, dim=1).max()
