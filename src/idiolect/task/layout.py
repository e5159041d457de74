"""Where each parameter lies in the flat vector of R^d."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Names, shapes and places of a model's trainable parameters."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    starts: tuple[int, ...]  # one more than names: the last is d
    device: torch.device

    def unflatten(self, x: Tensor) -> dict[str, Tensor]:
        """Views of x[..., d] by parameter name."""
        pieces = x.split([b - a for a, b in pairwise(self.starts)], dim=-1)
        named = zip(self.names, self.shapes, pieces, strict=True)
        return {n: p.view(*x.shape[:-1], *s) for n, s, p in named}

    def span(self, name: str) -> tuple[int, int]:
        """First and last + 1 coordinate of a parameter."""
        at = self.names.index(name)
        return self.starts[at], self.starts[at + 1]
