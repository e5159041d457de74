"""The coefficient of determination."""

from __future__ import annotations

import torch
from torch import Tensor

from .metric import Form, Metric, Samples


class R2(Metric):
    """1 - squared error / squared distance from the mean, of several targets the mean over them.

    The mean is that of the client's own samples; pooled, that of all samples. A client with fewer
    than two samples, or whose targets are all equal, has no value.
    """

    name = "r2"
    needs = "values"
    whole = True

    def width(self, form: Form) -> int:
        return 1 + 3 * form.targets  # samples; mean, squared distance from it, squared error

    def add(self, rows: Tensor, counts: Tensor, samples: Samples) -> None:
        owner = samples.owner
        predicted, targets = samples.values

        def summed(terms: Tensor) -> Tensor:
            return torch.zeros(len(rows), terms.shape[1], dtype=torch.float64).index_add_(
                0, owner, terms
            )

        n = summed(torch.ones_like(targets[:, :1]))
        mean = summed(targets) / n.clamp(min=1)
        spread = summed((targets - mean[owner]).square())
        error = summed((predicted - targets).square())
        given = n[:, 0] > 0
        rows[given] = torch.cat([n, mean, spread, error], 1)[given]

    def each(self, rows: Tensor) -> Tensor:
        n = rows[:, :1]
        _, spread, error = rows[:, 1:].chunk(3, 1)
        known = (n > 1) & (spread > 0)
        return torch.where(known, 1 - error / spread, torch.nan).nanmean(1)

    def pooled(self, rows: Tensor, counts: Tensor, sizes: Tensor) -> float:
        n = rows[:, :1]
        mean, spread, error = rows[:, 1:].chunk(3, 1)
        middle = (n * mean).sum(0) / n.sum()
        spread = (spread + n * (mean - middle).square()).sum(0)
        total = torch.cat([n.sum(0), middle, spread, error.sum(0)])
        return float(self.each(total.unsqueeze(0))[0])
