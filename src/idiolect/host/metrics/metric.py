"""What a metric is: figures per client that a host counts, and the numbers made of them.

A host gives out, for each client, a few figures (`rows`), and whole numbers summed over its clients
(`counts`). Figures of several hosts merge: rows by client, counts by adding them up. So no number
depends on how clients are shared out among hosts, and no sample leaves a host.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.knobs import SettingError
from ...core.types import Tree, leaves, map_tree
from ...task.losses import logits
from .positive import PositiveClass


@dataclass(frozen=True)
class TargetForm:
    """What the targets are like: all that a metric may depend on before the first sample."""

    classes: int  # 0 = real targets
    targets: int = 1  # real targets per sample
    odds: bool = True  # outputs are logits; else they are probabilities
    special: tuple[int, ...] = ()  # classes that are no words


@dataclass(frozen=True)
class EvaluatedSamples:
    """Evaluated samples of some clients, in the order of clients."""

    owner: Tensor  # int64[n]: the row of the client that each belongs to
    outputs: Tree  # [n, ...] of the model, as it gave them
    targets: Tree  # [n, ...]
    form: TargetForm

    @cached_property
    def _flat(self) -> tuple[Tensor, Tensor, Tensor]:
        """(owner[m], outputs[m, C], classes[m]) of every target that counts.

        A sample may have several targets (a sentence, an image); those that are no class number
        (an ignored index) are left out. Outputs have their classes in the last axis, or as torch's
        losses want them in the second.
        """
        outputs, targets = prediction(self.outputs), prediction(self.targets)
        if outputs.dim() == targets.dim():
            outputs = outputs.unsqueeze(-1) if outputs.shape == targets.shape else outputs
        if outputs.shape[:-1] != targets.shape and outputs.dim() == targets.dim() + 1:
            outputs = outputs.movedim(1, -1)
        flat = targets.reshape(-1).long()
        owner = self.owner.repeat_interleave(max(1, targets[:1].numel()))
        outputs = outputs.reshape(len(flat), -1).double()
        if not self.form.odds:
            outputs = outputs.logit(1e-12) if outputs.shape[1] == 1 else outputs.log()
        counts = (flat >= 0) & (flat < self.form.classes)
        if not bool(counts.all()):
            owner, outputs, flat = owner[counts], outputs[counts], flat[counts]
        return owner, outputs, flat

    @property
    def owners(self) -> Tensor:
        """int64[m]: the client of each target."""
        return self._flat[0]

    @property
    def labels(self) -> Tensor:
        """int64[m]: the class of each target."""
        return self._flat[2]

    @cached_property
    def log_probabilities(self) -> Tensor:
        """float64[m, classes]: outputs are logits (or log-probabilities), one output a log-odds."""
        z = self._flat[1]
        if z.shape[1] == 1:
            return torch.cat([F.logsigmoid(-z), F.logsigmoid(z)], 1)
        return F.log_softmax(z, 1)[:, : self.form.classes]

    @cached_property
    def predicted(self) -> Tensor:
        """int64[m]: the class that is predicted."""
        return self.log_probabilities.argmax(1)

    @cached_property
    def values(self) -> tuple[Tensor, Tensor]:
        """(predicted, target), float64[n, T] each, of a regression."""
        targets = prediction(self.targets).double()
        n = len(targets)
        return prediction(self.outputs).double().reshape(n, -1), targets.reshape(n, -1)


def prediction(tree: Tree) -> Tensor:
    """The tensor that is the prediction: the only one, or the one called "logits"."""
    try:
        return logits(tree)
    except SettingError:
        raise SettingError(
            "metrics: the model gives several tensors, and none of them is called 'logits'; "
            "give a function of your own that takes them"
        ) from None


class Metric:
    """A figure of every client, and one of all samples together ("pooled")."""

    name: str = ""
    higher: bool = True  # whether a higher value is better
    needs: str = "classes"  # or "values": real targets; or "any"
    whole: bool = False  # whether all samples of a client must be given at once
    over: str = "samples"  # what "pooled" means: over samples, or "clients": a weighted mean
    undefined: str = "it gave no number"  # why a client may have no value
    counted: bool = True  # whether a host keeps figures for it
    of_positive: bool = False  # whether it is about one of two classes, the positive one
    positive: PositiveClass | None = None  # that class; None: class 1

    @classmethod
    def named(cls, name: str) -> Metric | None:
        """The metric of such a name, where names have numbers in them: top_3; None: another's."""
        return None

    def about(self, positive: PositiveClass | None) -> Metric:
        """The same metric, about this positive class where it is about one."""
        if not self.of_positive or positive is None:
            return self
        bound = copy.copy(self)
        bound.positive = positive
        return bound

    @property
    def positive_index(self) -> int:
        """The number of the positive class of two."""
        return 1 if self.positive is None else self.positive.index

    def facts(self, classes: int) -> dict[str, Any]:
        """What a record says of it, for data of so many classes."""
        facts: dict[str, Any] = {
            "higher_is_better": self.higher,
            "pooled_over": self.over,
            "undefined": self.undefined,
        }
        if self.positive is not None:
            facts["positive"] = {"class": self.positive.name, "reason": self.positive.reason}
        return facts

    def refusal(self, form: TargetForm) -> str:
        """Why it makes no sense for such data; "" where it does."""
        if self.needs == "classes" and not form.classes:
            return "it is about classes, and these data have real targets"
        if self.needs == "values" and form.classes:
            return "it is about real targets, and these data have classes"
        return ""

    def width(self, form: TargetForm) -> int:
        """How many figures a host keeps per client."""
        raise NotImplementedError

    def shape(self, form: TargetForm) -> Sequence[int]:
        """The shape of the whole numbers that are summed over clients."""
        return (0,)

    def add(self, rows: Tensor, counts: Tensor, samples: EvaluatedSamples) -> None:
        """Count these samples into rows[N, width] and counts."""
        raise NotImplementedError

    def each(self, rows: Tensor) -> Tensor:  # -> float64[n]
        """The value of every client; NaN where it has none."""
        return rows[:, 0].clone()

    def pooled(self, rows: Tensor, counts: Tensor, sizes: Tensor) -> float:
        """The value of all clients together; `sizes`: the samples of each.

        Here of figures that are sums over samples.
        """
        return float(self.each(rows.sum(0, keepdim=True))[0])

    def check(self, trials: Sequence[EvaluatedSamples]) -> None:
        """Refuse outputs that are no scores of classes, and no values of targets."""
        if not trials:
            return
        samples = trials[0]
        outputs, targets = prediction(samples.outputs), prediction(samples.targets)
        try:
            if self.needs == "values":
                fits = samples.values[0].shape == samples.values[1].shape
            else:
                fits = samples.log_probabilities.shape[1] == samples.form.classes
        except (RuntimeError, IndexError, ValueError):
            fits = False
        if not fits:
            wanted = "one value per target" if self.needs == "values" else "one score per class"
            raise SettingError(
                f"metrics must fit the model, got {self.name!r}: it needs {wanted}, and outputs of "
                f"shape {tuple(outputs.shape[1:])} for targets of shape {tuple(targets.shape[1:])} "
                "are not that"
            )

    def __repr__(self) -> str:
        return f"Metric({self.name!r})"


@dataclass(frozen=True)
class MetricCounts:
    """What was counted of one metric for some clients."""

    metric: Metric
    rows: Tensor  # float64[n, width]
    counts: Tensor  # int64, summed over those clients

    def each(self) -> Tensor:
        """The value of every client; NaN where it has none."""
        return self.metric.each(self.rows)

    @staticmethod
    def merge(parts: Sequence[MetricCounts], order: Tensor) -> MetricCounts:
        """Of several hosts: clients in the order of wire ids, whole numbers summed."""
        rows = torch.cat([p.rows for p in parts])[order]
        counts = torch.stack([p.counts for p in parts]).sum(0)
        return MetricCounts(parts[0].metric, rows, counts)


class Tally:
    """What is counted of some metrics, for the clients of a host that are asked for."""

    def __init__(self, metrics: Sequence[Metric], form: TargetForm, clients: int, wanted: Tensor):
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
            owner, outputs, targets = chosen(keep, owner, outputs, targets)
        outputs, targets = map_tree(plain, outputs), map_tree(plain, targets)
        if not len(owner):
            return
        self._count(EvaluatedSamples(owner, outputs, targets, self.form), whole=False)
        if not any(m.whole for m in self.metrics):
            return
        last = owner == owner[-1]
        if self._waiting and int(self._waiting[0][0][0]) != int(owner[0]):
            self._complete()
        if bool(last.all()):
            self._waiting.append((owner, outputs, targets))
            return
        self._waiting.append(chosen(~last, owner, outputs, targets))
        self._complete()
        self._waiting.append(chosen(last, owner, outputs, targets))

    def add_padded(self, rows: Tensor, outputs: Tree, targets: Tree, exists: Tensor) -> None:
        """All samples of the clients at these rows: [K, longest, ...], of which some exist."""
        at = exists.flatten().nonzero().squeeze(1)
        owner = rows.repeat_interleave(exists.sum(1))

        def flat(t: Tensor) -> Tensor:
            return plain(t.flatten(0, 1)[at.to(t.device)])

        samples = EvaluatedSamples(
            owner, map_tree(flat, outputs), map_tree(flat, targets), self.form
        )
        self._count(samples, whole=False)
        self._count(samples, whole=True)

    def measured(self, rows: Tensor) -> dict[str, MetricCounts]:
        """What was counted, of the clients at these rows: all that are wanted."""
        self._complete()
        return {
            m.name: MetricCounts(m, metric_rows[rows], counts)
            for m, metric_rows, counts in zip(self.metrics, self.rows, self.counts, strict=True)
        }

    def _complete(self) -> None:
        """Count the clients that were waiting for their last sample."""
        if not self._waiting:
            return
        owners, outputs, targets = zip(*self._waiting, strict=True)
        self._waiting.clear()
        samples = EvaluatedSamples(torch.cat(owners), _joined(outputs), _joined(targets), self.form)
        self._count(samples, whole=True)

    def _count(self, samples: EvaluatedSamples, whole: bool) -> None:
        for m, rows, counts in zip(self.metrics, self.rows, self.counts, strict=True):
            if m.whole == whole:
                m.add(rows, counts, samples)


def plain(t: Tensor) -> Tensor:
    """Numbers without a graph, on the CPU."""
    return t.detach().cpu()


def chosen(keep: Tensor, owner: Tensor, outputs: Tree, targets: Tree) -> tuple[Tensor, Tree, Tree]:
    """The samples at which keep[n] holds."""
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
