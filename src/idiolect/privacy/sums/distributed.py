"""Noise that clients add to their messages in whole steps: each its share of the sum's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from ...core.streams import Keys
from .grid import Grid


class GridNoise(Protocol):
    """Noise of standard deviation σC / √least per client, so that the sum has σC or more."""

    @property
    def multiplier(self) -> float:
        """σ, of the sum of `least` clients."""

    @property
    def least(self) -> int:
        """How many clients must count."""

    def steps(self, rows: int, grid: Grid, keys: Callable[[], Keys]) -> Tensor:  # -> int64[rows, m]
        """The noise of so many clients in steps of the grid, rounded; `keys`: of the round."""
