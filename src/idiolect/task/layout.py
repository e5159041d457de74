"""Where each parameter of a module lies in the flat vector of R^d."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from ..core.parts import Parts


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the trained parameters, in the order in which the vector holds them.

    >>> shapes = (torch.Size([2, 3]), torch.Size([2]))
    >>> layout = Layout(("w", "b"), shapes, starts=(0, 6, 8), device=torch.device("cpu"))
    >>> {name: tuple(part.shape) for name, part in layout.unflatten(torch.zeros(5, 8)).items()}
    {'w': (5, 2, 3), 'b': (5, 2)}
    >>> layout.span("b")
    (6, 8)
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    starts: tuple[int, ...]  # one more than names: the last is d
    device: torch.device
    parts: Parts = field(default=Parts(), compare=False)  # what words stand for

    def unflatten(self, x: Tensor) -> dict[str, Tensor]:
        """Views of x[..., d] by parameter name."""
        pieces = x.split([b - a for a, b in pairwise(self.starts)], dim=-1)
        return {
            n: p.view(x.shape[:-1] + s)
            for n, s, p in zip(self.names, self.shapes, pieces, strict=True)
        }

    def span(self, name: str) -> tuple[int, int]:
        """The first coordinate of a parameter, and the one after its last."""
        at = self.names.index(name)
        return self.starts[at], self.starts[at + 1]
