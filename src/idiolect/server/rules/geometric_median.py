"""The geometric median by smoothed Weiszfeld steps (RFA)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.knobs import knob
from . import geometry
from .rule import Rule


@dataclass(frozen=True)
class GeometricMedian(Rule):
    """The point with the least weighted sum of distances to the rows; withstands fewer than half of
    the weight, whatever the dimension.

    argmin_z sum_k weights_k |z - x_k|, by z <- sum_k b_k x_k / sum_k b_k with
    b_k = weights_k / max(nu, |z - x_k|). Clients are weighted as in the paper, whose guarantee
    counts malicious clients by weight: one of them may claim as much as the largest client has;
    `weighted=False` gives all the same weight. Starts from the coordinate median, so that few steps
    suffice however far away malicious rows are. Cost n m per step.

    >>> rows = torch.tensor([[0.0], [1.0], [1.5], [900.0]])
    >>> GeometricMedian()(rows, torch.tensor([1.0, 3.0, 1.0, 1.0])).round(decimals=3).tolist()
    [1.0]

    Pillutla, Kakade and Harchaoui, Robust aggregation for federated learning, IEEE Transactions on
    Signal Processing 70, 2022.
    """

    title = "geometric-median"
    steps: int = knob(8, "Weiszfeld steps", low=1)
    nu: float = knob(1e-6, "smoothing: distances below it count as it", above=0)
    weighted: bool = knob(True, "by the clients' weights; false = every client counts the same")

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        start = geometry.median(rows)
        x = geometry.wide(rows) - start  # relative to the start: equal rows give exactly that row
        z = torch.zeros_like(start)
        share = weights.to(x) if self.weighted else torch.ones_like(weights).to(x)
        for _ in range(self.steps):
            b = share / torch.linalg.vector_norm(x - z, dim=1).clamp(min=self.nu)
            z = (b / b.sum()) @ x
        return (start + z).to(rows.dtype)
