"""What a metric is: figures per client that a host counts, and the numbers made of them.

A host gives out, for each client, a few figures (`rows`), and whole numbers summed over its clients
(`counts`). Figures of several hosts merge: rows by client, counts by adding them up. So no number
depends on how clients are shared out among hosts, and no sample leaves a host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.knobs import SettingError
from ...core.types import Tree
from ...task.losses import logits

MOST_CLASSES = 1000  # of metrics that count by pairs of classes or by class and score


@dataclass(frozen=True)
class Form:
    """What the data are like: all that a metric may depend on before the first sample."""

    classes: int  # 0 = real targets
    targets: int = 1  # real targets per sample
    odds: bool = True  # outputs are logits; else they are probabilities
    special: tuple[int, ...] = ()  # classes that are no words


@dataclass(frozen=True)
class Samples:
    """Evaluated samples of some clients, in the order of clients."""

    owner: Tensor  # int64[n]: the row of the client that each belongs to
    outputs: Tree  # [n, ...] of the model, as it gave them
    targets: Tree  # [n, ...]
    form: Form

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

    def refusal(self, form: Form) -> str:
        """Why it makes no sense for such data; "" where it does."""
        if self.needs == "classes" and not form.classes:
            return "it is about classes, and these data have real targets"
        if self.needs == "values" and form.classes:
            return "it is about real targets, and these data have classes"
        return ""

    def width(self, form: Form) -> int:
        """How many figures a host keeps per client."""
        raise NotImplementedError

    def shape(self, form: Form) -> Sequence[int]:
        """The shape of the whole numbers that are summed over clients."""
        return (0,)

    def add(self, rows: Tensor, counts: Tensor, samples: Samples) -> None:
        """Count these samples into rows[N, width] and counts."""
        raise NotImplementedError

    def each(self, rows: Tensor) -> Tensor:  # -> float64[n]
        """The value of every client; NaN where it has none."""
        return rows[:, 0].clone()

    def pooled(self, rows: Tensor, counts: Tensor, sizes: Tensor) -> float:
        """The value of all clients together, which have so many samples each."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"Metric({self.name!r})"


@dataclass(frozen=True)
class Measured:
    """What was counted of one metric for some clients."""

    metric: Any  # Metric
    rows: Tensor  # float64[n, width]
    counts: Tensor  # int64, summed over those clients

    def each(self) -> Tensor:
        """The value of every client; NaN where it has none."""
        return self.metric.each(self.rows)

    @staticmethod
    def merge(parts: Sequence[Measured], order: Tensor) -> Measured:
        """Of several hosts: clients in the order of wire ids, whole numbers summed."""
        rows = torch.cat([p.rows for p in parts])[order]
        counts = torch.stack([p.counts for p in parts]).sum(0)
        return Measured(parts[0].metric, rows, counts)
