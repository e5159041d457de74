"""A bound on how far any row may lie from the middle."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.knobs import knob
from . import geometry
from .rule import Wrapper


@dataclass(frozen=True)
class NormBound(Wrapper):
    """Every row is pulled to within `bound` of the coordinate median; cheap, and with `mean`
    already a defence against messages of large norm.

    x_k <- c + (x_k - c) min(1, bound / |x_k - c|) with c the coordinate median (the paper bounds
    changes, c = 0: the median serves models as well as changes). bound = 0 takes the median of
    these distances. Weights pass unchanged and are not used. Cost n log n per coordinate.

    >>> rows = torch.tensor([[0.0], [1.0], [2.0], [1.0], [900.0]])
    >>> NormBound(bound=2.0)(rows, torch.ones(5))[0][:, 0].tolist()
    [0.0, 1.0, 2.0, 1.0, 3.0]

    Sun et al., Can you really backdoor federated learning?, 2019.
    """

    title = "norm-bound"
    bound: float = knob(
        0.0, "largest distance from the coordinate median; 0 = the median of the distances", low=0
    )

    def __call__(self, rows: Tensor, weights: Tensor, *, key: int = 0) -> tuple[Tensor, Tensor]:
        centre = geometry.median(rows)
        x = geometry.wide(rows) - centre
        bound = self.bound or geometry.median(torch.linalg.vector_norm(x, dim=1))
        return (geometry.clipped(x, bound) + centre).to(rows.dtype), weights
