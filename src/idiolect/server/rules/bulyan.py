"""Bulyan: Krum again and again, then the middle of what it chose."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .geometry import mean_around_median, squared_distances
from .krum import ranked
from .rule import Resilient, Rule


@dataclass(frozen=True)
class Bulyan(Resilient, Rule):
    """Krum chooses n - 2 f rows one after another, and the middle values of every coordinate are
    averaged; for many clients, few of them malicious.

    theta = n - 2 f rows, each the Krum choice of those left; then, per coordinate, the mean of the
    theta - 2 f values nearest to their median. n >= 4 f + 3. Near the end Krum's n' - f - 2
    neighbours would be none; one is kept. Weights are ignored: a malicious client could claim a
    large one. Cost n² m + n³ log n.

    >>> rows = torch.tensor([[0.0], [1.0], [1.0], [1.0], [1.0], [2.0], [900.0]])
    >>> Bulyan(f=1)(rows, torch.ones(7)).tolist()
    [1.0]

    El Mhamdi, Guerraoui and Rouault, The hidden vulnerability of distributed learning in Byzantium,
    ICML 2018.
    """

    title = "bulyan"
    slope = 4
    offset = 3

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        f = self.malicious(len(rows))
        distances = squared_distances(rows)
        candidates = torch.arange(len(rows), device=rows.device)
        picks = []
        for _ in range(len(rows) - 2 * f):
            best = ranked(distances[candidates][:, candidates], f)[0]
            picks.append(candidates[best])
            candidates = candidates[candidates != candidates[best]]
        return mean_around_median(rows[torch.stack(picks)], len(picks) - 2 * f).to(rows.dtype)
