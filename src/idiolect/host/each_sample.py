"""Scores of single samples, where sums over a client's samples do not tell enough."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.types import Tree
from ..data.federation import Federation
from ..task.losses import Loss, joined


class EachSample:
    """Hits and loss of every sample of a split, as an `Evaluator` comes by them."""

    def __init__(self, criterion: Loss, data: Federation, split: str):
        self.criterion = criterion
        self.starts = data.offsets[split][:-1] - data.offsets[split][0]
        samples = int(data.sizes(split).sum())
        self.hits = torch.full((samples,), torch.nan, dtype=torch.float64)
        self.loss = torch.full((samples,), torch.nan, dtype=torch.float64)
        self._next = 0

    def add(self, owner: Tensor, outputs: Tree, targets: Tree) -> None:
        """The next samples of the split, in their order."""
        at = torch.arange(self._next, self._next + len(owner))
        self._next += len(owner)
        self._set(at, outputs, targets)

    def add_padded(self, rows: Tensor, outputs: Tree, targets: Tree, exists: Tensor) -> None:
        """All samples of the clients at these rows: [K, longest, ...], of which some exist."""
        at = self.starts[rows].unsqueeze(1) + torch.arange(exists.shape[1])
        self._set(at, joined(outputs), joined(targets), exists.flatten())

    def _set(self, at: Tensor, outputs: Tree, targets: Tree, exists: Tensor | None = None) -> None:
        hits, loss = (found.cpu() for found in self.criterion.scores(outputs, targets))
        keep = slice(None) if exists is None else exists
        self.hits[at.flatten()[keep]] = hits[keep]
        self.loss[at.flatten()[keep]] = loss[keep]
