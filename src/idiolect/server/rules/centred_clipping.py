"""Centred clipping."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.knobs import knob
from . import geometry
from .rule import Rule


@dataclass(frozen=True)
class CentredClipping(Rule):
    """The mean of rows that are pulled to within tau of a centre; for clients that differ, when their spread is roughly known.

    v <- v + mean_k (x_k - v) min(1, tau / |x_k - v|). The paper starts from the last round's aggregate; a rule without memory starts
    from the coordinate median, so models and changes are treated alike. A step lets f liars move v by f tau / n: tau should be
    of the size of honest distances from the centre; far above them the rule is the mean. tau = 0 takes the median distance from the
    start, which is ours and not the paper's. Weights are ignored: a liar could claim a large one. Cost n m a step.

    >>> rows = torch.tensor([[0.0], [1.0], [2.0], [1.0], [900.0]], dtype=torch.float64)
    >>> CentredClipping(tau=1.0, steps=1)(rows, torch.ones(5)).tolist()
    [1.2]

    Karimireddy, He and Jaggi, Learning from history for Byzantine robust optimization, ICML 2021.
    """

    title = "centred-clipping"
    tau: float = knob(
        1.0, "largest distance from the centre that counts in full; 0 = the median distance", low=0
    )
    steps: int = knob(3, "clipping steps", low=1)

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        start = geometry.median(rows)
        x, v = geometry.wide(rows) - start, torch.zeros_like(start)
        tau = self.tau or geometry.median(torch.linalg.vector_norm(x, dim=1))
        for _ in range(self.steps):
            v = v + geometry.clipped(x - v, tau).mean(0)
        return (start + v).to(rows.dtype)
