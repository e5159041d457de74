"""Bulyan: Krum again and again, then the middle of what it chose."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .geometry import around, squared_distances
from .krum import ranked
from .rule import Rule, Withstands


@dataclass(frozen=True)
class Bulyan(Withstands, Rule):
    """Krum chooses n - 2 f rows one after another, of which every coordinate's middle is averaged; for many clients and few liars.

    theta = n - 2 f rows, each the Krum choice of those left; then, coordinate by coordinate, the mean of the theta - 2 f values nearest
    to their median. n >= 4 f + 3. Near the end Krum's n' - f - 2 neighbours would be none; one is kept. Weights are ignored: a liar
    could claim a large one. Cost n² m + n³ log n.

    >>> Bulyan(f=1)(torch.tensor([[0.0], [1.0], [1.0], [1.0], [1.0], [2.0], [900.0]]), torch.ones(7)).tolist()
    [1.0]

    El Mhamdi, Guerraoui and Rouault, The hidden vulnerability of distributed learning in Byzantium, ICML 2018.
    """

    title, slope, offset = "bulyan", 4, 3

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        f, distances = self.liars(len(rows)), squared_distances(rows)
        left, chosen = torch.arange(len(rows), device=rows.device), []
        for _ in range(len(rows) - 2 * f):
            best = ranked(distances[left][:, left], f)[0]
            chosen.append(left[best])
            left = left[left != left[best]]
        return around(rows[torch.stack(chosen)], len(chosen) - 2 * f).to(rows.dtype)
