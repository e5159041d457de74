"""Metrics as a host counts them, while its clients' models are evaluated."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...core.types import Tree, leaves, map_tree
from .metric import Form, Measured, Metric, Samples


class Tally:
    """What is counted of some metrics, for the clients of a host that are asked for."""

    def __init__(self, metrics: Sequence[Metric], form: Form, clients: int, wanted: Tensor):
        self.metrics = metrics
        self.form = form
        self.wanted = torch.zeros(clients, dtype=torch.bool)
        self.wanted[wanted] = True
        self.rows = [torch.zeros(clients, m.width(form), dtype=torch.float64) for m in self.metrics]
        self.counts = [torch.zeros(*m.shape(form), dtype=torch.int64) for m in self.metrics]
        self._waiting: list[tuple[Tensor, Tree, Tree]] = []  # of a client that is not complete

    def add(self, owner: Tensor, outputs: Tree, targets: Tree) -> None:
        """A piece of the samples of all clients, in their order; clients may go on in the next."""
        keep = self.wanted[owner]
        if not bool(keep.all()):
            owner, outputs, targets = _chosen(keep, owner, outputs, targets)
        outputs, targets = map_tree(_plain, outputs), map_tree(_plain, targets)
        if not len(owner):
            return
        self._count(Samples(owner, outputs, targets, self.form), whole=False)
        if not any(m.whole for m in self.metrics):
            return
        last = owner == owner[-1]
        if self._waiting and int(self._waiting[0][0][0]) != int(owner[0]):
            self._complete()
        if bool(last.all()):
            self._waiting.append((owner, outputs, targets))
            return
        self._waiting.append(_chosen(~last, owner, outputs, targets))
        self._complete()
        self._waiting.append(_chosen(last, owner, outputs, targets))

    def add_padded(self, rows: Tensor, outputs: Tree, targets: Tree, exists: Tensor) -> None:
        """All samples of the clients at these rows: [K, longest, ...], of which some exist."""
        at = exists.flatten().nonzero().squeeze(1)
        owner = rows.repeat_interleave(exists.sum(1))

        def flat(t: Tensor) -> Tensor:
            return _plain(t.flatten(0, 1)[at.to(t.device)])

        samples = Samples(owner, map_tree(flat, outputs), map_tree(flat, targets), self.form)
        self._count(samples, whole=False)
        self._count(samples, whole=True)

    def measured(self, rows: Tensor) -> dict[str, Measured]:
        """What was counted, of the clients at these rows: all that are wanted."""
        self._complete()
        return {
            m.name: Measured(m, kept[rows], counts)
            for m, kept, counts in zip(self.metrics, self.rows, self.counts, strict=True)
        }

    def _complete(self) -> None:
        """Count the clients that were waiting for their last sample."""
        if not self._waiting:
            return
        owners, outputs, targets = zip(*self._waiting, strict=True)
        self._waiting.clear()
        samples = Samples(torch.cat(owners), _joined(outputs), _joined(targets), self.form)
        self._count(samples, whole=True)

    def _count(self, samples: Samples, whole: bool) -> None:
        for m, rows, counts in zip(self.metrics, self.rows, self.counts, strict=True):
            if m.whole == whole:
                m.add(rows, counts, samples)


def _plain(t: Tensor) -> Tensor:
    return t.detach().cpu()


def _chosen(keep: Tensor, owner: Tensor, outputs: Tree, targets: Tree) -> tuple[Tensor, Tree, Tree]:
    at = keep.nonzero().squeeze(1)

    def cut(t: Tensor) -> Tensor:
        return t[at.to(t.device)]

    return owner[at], map_tree(cut, outputs), map_tree(cut, targets)


def _joined(trees: Sequence[Tree]) -> Tree:
    if len(trees) == 1:
        return trees[0]
    parts = [leaves(tree) for tree in trees]
    together = iter([torch.cat(same) for same in zip(*parts, strict=True)])
    return map_tree(lambda _: next(together), trees[0])
