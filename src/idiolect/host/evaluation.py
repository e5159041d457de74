"""Personal models on their own clients' data, many clients at once.

One shared model is an ordinary forward pass over the split's slice of the data. Personal models are run as rows: clients of like
size are padded to a common length and go through the kernel together. What is padded is prepared once and kept while it is small.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..data.federation import Federation
from ..task.task import Task
from .scores import Scores

_KEEP = 512 << 20  # bytes of padded data kept between rounds
_PIECE = 4096  # samples a forward pass of one model takes at once
_AT_ONCE = 65536  # samples that go through the kernel together, over all rows


class Evaluator:
    """Scores of personal models on one split."""

    def __init__(self, task: Task, data: Federation, split: str):
        self.task, self.data, self.split = task, data, split
        self.offsets, self.sizes = data.offsets[split], data.sizes(split)
        self.low, self.high = int(self.offsets[0]), int(self.offsets[-1])
        self._plans: dict[bytes, list[Tensor]] = {}
        self._ready: dict[bytes, tuple[Tensor, Tensor, Tensor]] = {}
        self._kept = 0
        self._owner = torch.repeat_interleave(torch.arange(data.clients), self.sizes)

    def blank(self) -> Scores:
        n = self.data.clients
        return Scores(
            torch.zeros(n, dtype=torch.float64),
            torch.zeros(n, dtype=torch.float64),
            self.sizes.clone(),
        )

    def shared(self, w: Tensor) -> Scores:
        """One model w[d] for all clients."""
        scores = self.blank()
        for a in range(self.low, self.high, _PIECE):
            b = min(a + _PIECE, self.high)
            y = self.data.targets[a:b]
            hits, loss = self._score(self.task.outputs_of_one(w, self.data.inputs[a:b]), y)
            owner = self._owner[a - self.low : b - self.low]
            scores.hits.index_add_(0, owner, hits)
            scores.loss.index_add_(0, owner, loss)
        return scores

    def personal(self, x: Tensor, clients: Tensor, into: Scores) -> None:
        """Models x[K, d] of these clients; their scores are written into `into`."""
        for rows in self._groups(clients):
            inputs, targets, exists = self._padded(clients[rows])
            hits, loss = self._score(self.task.outputs(x[rows.to(x.device)], inputs), targets)
            into.hits[clients[rows]] = torch.where(exists, hits, 0).sum(1)
            into.loss[clients[rows]] = torch.where(exists, loss, 0).sum(1)

    def _groups(self, clients: Tensor) -> list[Tensor]:
        """Positions in `clients`, in groups of like size: at most a fifth of a group is padding. Found once."""
        key = clients.numpy().tobytes()
        if key not in self._plans:
            if len(self._plans) >= 64:  # ever new cohorts: forget the old ones
                self._plans.clear()
                self._ready.clear()
                self._kept = 0
            sizes = self.sizes[clients].numpy()
            order = np.flatnonzero(sizes)[sizes[np.flatnonzero(sizes)].argsort(kind="stable")]
            groups: list[Tensor] = []
            while len(order):
                least = sizes[order[0]]
                most = int(
                    np.searchsorted(sizes[order], max(least + 8, int(1.25 * least)), side="right")
                )
                piece = order[: max(1, min(most, _AT_ONCE // int(least)))]
                groups.append(torch.from_numpy(np.sort(piece)))
                order = order[len(piece) :]
            self._plans[key] = groups
        return self._plans[key]

    def _score(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(hits, loss) of each sample, float64; a sample with several targets counts their mean."""
        hits = self.task.criterion.hits(outputs, targets).double()
        loss = self.task.criterion.each(outputs, targets).double()
        inner = self.data.targets.dim() - 1
        if inner:
            hits, loss = hits.flatten(-inner).mean(-1), loss.flatten(-inner).mean(-1)
        return hits.cpu(), loss.cpu()

    def _padded(self, clients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        key = clients.numpy().tobytes()
        if key in self._ready:
            return self._ready[key]
        sizes, device = self.sizes[clients], self.data.inputs.device
        place = torch.arange(int(sizes.max()))
        exists = place < sizes.unsqueeze(1)
        index = torch.where(exists, self.offsets[clients].unsqueeze(1) + place, self.low)
        first = int(index[0, 0])
        if bool(exists.all()) and torch.equal(
            index.flatten(), torch.arange(first, first + index.numel())
        ):
            flat = slice(first, first + index.numel())  # equal clients side by side: no copy at all
            inputs, targets = self.data.inputs[flat], self.data.targets[flat]
        else:
            inputs, targets = (
                t.index_select(0, index.flatten().to(device))
                for t in (self.data.inputs, self.data.targets)
            )
            self._kept += inputs.numel() * inputs.element_size()
        group = (
            inputs.view(*index.shape, *inputs.shape[1:]),
            targets.view(*index.shape, *targets.shape[1:]),
            exists,
        )
        if self._kept <= _KEEP:
            self._ready[key] = group
        return group
