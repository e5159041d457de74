"""Projections P of R^d onto R^dim: made from a seed on every side, never sent; and the table of them."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

from ..fields import nearest
from .gaussian import Gaussian
from .identity import Identity


class Projection(Protocol):
    dim: int

    def down(self, x: Tensor) -> Tensor: ...  # P x: x[K, d] -> [K, dim]

    def up(self, u: Tensor) -> Tensor: ...  # P^T u: u[K, dim] -> [K, d]


PROJECTIONS: dict[str, type] = {"gaussian": Gaussian, "identity": Identity}


@lru_cache(maxsize=8)
def make(name: str, dim: int, d: int, seed: int, dtype: torch.dtype, device: torch.device) -> Projection:
    """The projection of this name; the same arguments give the same numbers everywhere."""
    if name not in PROJECTIONS:
        raise nearest(name, PROJECTIONS, "projection")
    return PROJECTIONS[name](dim, d, seed, dtype, device)
