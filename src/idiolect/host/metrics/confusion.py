"""Built-in metrics of the confusion matrix: what is predicted how often where what is true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .averaging import ClassAverage
from .catalogue import built_in
from .metric import EvaluatedSamples, Metric, TargetForm


@dataclass(frozen=True)
class ClassCounts:
    """How often the classes of clients are true and predicted: an entry per client and class."""

    owner: np.ndarray  # the client
    label: np.ndarray
    hits: np.ndarray  # times it is true and predicted
    support: np.ndarray  # times it is true
    predictions: np.ndarray  # times it is predicted
    others: np.ndarray  # times another class is true

    @classmethod
    def of_cells(
        cls, cells: np.ndarray, times: np.ndarray, classes: int, wanted: int | None
    ) -> ClassCounts:
        """From cells (client * classes + class) * classes + predicted class, by their frequency.

        An entry for every class that a client has or predicts; or one for every client, of the
        class `wanted`.
        """
        client = cells // classes**2
        true, predicted = cells // classes, client * classes + cells % classes
        if wanted is None:
            entries = np.unique(np.concatenate([true, predicted]))
        else:
            entries = np.unique(client) * classes + wanted

        def count(
            entry: np.ndarray, chosen: np.ndarray | None = None, times: np.ndarray = times
        ) -> np.ndarray:
            """How often each entry occurs, by the frequency of the (chosen) cells."""
            present = np.isin(entry, entries)
            present = present if chosen is None else present & chosen
            at = np.searchsorted(entries, entry[present])
            return np.bincount(at, times[present], minlength=len(entries))

        owner = entries // classes
        every, support = np.bincount(client, times), count(true)
        # a difference of weights may round: whether there are others is asked of whole numbers
        cells_of, ones = np.bincount(client), np.ones(len(cells))
        has_others = cells_of[owner] > count(true, times=ones)
        return cls(
            owner,
            entries % classes,
            count(true, true == predicted),
            support,
            count(predicted),
            np.where(has_others, every[owner] - support, 0.0),
        )


class ConfusionFigure(ClassAverage):
    """A ratio of counts, of each client and of the confusion matrix of all."""

    weighs = True

    def width(self, form: TargetForm) -> int:
        return 1

    def shape(self, form: TargetForm) -> Sequence[int]:
        return (form.classes, form.classes)

    def add(self, rows: Tensor, counts: Tensor, samples: EvaluatedSamples) -> None:
        classes = samples.form.classes
        cell = samples.labels * classes + samples.predicted
        mass = samples.target_masses
        counts += torch.bincount(cell, mass, classes**2).view(classes, classes).to(counts)
        client_cell = samples.owners * classes**2 + cell
        cells, at = torch.unique(client_cell, return_inverse=True)
        times = torch.bincount(at, mass, len(cells))
        values = self._by_client(cells.numpy(), times.numpy(), classes, len(rows))
        clients = samples.owner.unique()
        rows[clients, 0] = torch.from_numpy(values)[clients]

    def pooled(self, rows: Tensor, counts: Tensor, masses: Tensor) -> float:
        cells = counts.flatten().nonzero()[:, 0]
        times = counts.flatten()[cells]
        return float(self._by_client(cells.numpy(), times.numpy(), len(counts), 1)[0])

    def _by_client(
        self, cells: np.ndarray, times: np.ndarray, classes: int, clients: int
    ) -> np.ndarray:
        wanted = self.positive_index if self.of_one_class(classes) else None
        counts = ClassCounts.of_cells(cells, times, classes, wanted)
        numerator, denominator = self.ratio(counts)
        values = np.divide(
            numerator, denominator, out=np.full(len(numerator), np.nan), where=denominator > 0
        )
        if wanted is None and self.undefined_as_zero:
            values = np.nan_to_num(values)
        return self.mean_by_client(counts.owner, values, counts.support, clients)

    # in a mean over classes: whether a class counts as 0 that has no value, as in scikit-learn
    undefined_as_zero: bool = True

    def ratio(self, c: ClassCounts) -> tuple[np.ndarray, np.ndarray]:
        """Numerator and denominator of every class; it has no value where that is 0."""
        raise NotImplementedError


@built_in
class BalancedAccuracy(ConfusionFigure):
    """The mean over classes of how often the class is predicted where it is true."""

    kind = "balanced_accuracy"
    two_sided = True
    undefined_as_zero = False  # a class that is not there does not count

    @classmethod
    def named(cls, name: str) -> Metric | None:
        return None  # it is a macro average

    def ratio(self, c: ClassCounts) -> tuple[np.ndarray, np.ndarray]:
        return c.hits, c.support


@built_in
class F1(ConfusionFigure):
    """The harmonic mean of precision and recall."""

    kind = "f1"
    undefined = "the positive class neither there nor predicted"

    def ratio(self, c: ClassCounts) -> tuple[np.ndarray, np.ndarray]:
        return 2 * c.hits, c.support + c.predictions


@built_in
class Precision(ConfusionFigure):
    """How often the class is true where it is predicted (positive predictive value)."""

    kind = "precision"
    undefined = "the positive class never predicted"

    def ratio(self, c: ClassCounts) -> tuple[np.ndarray, np.ndarray]:
        return c.hits, c.predictions


@built_in
class Recall(ConfusionFigure):
    """How often the class is predicted where it is true."""

    kind = "recall"
    undefined = "no test sample of the positive class"

    def ratio(self, c: ClassCounts) -> tuple[np.ndarray, np.ndarray]:
        return c.hits, c.support


@built_in
class Sensitivity(Recall):
    """Recall, by its name in medicine."""

    kind = "sensitivity"


@built_in
class Specificity(ConfusionFigure):
    """How often the class is not predicted where it is not true."""

    kind = "specificity"
    undefined = "no test sample of another class than the positive one"
    undefined_as_zero = False

    def ratio(self, c: ClassCounts) -> tuple[np.ndarray, np.ndarray]:
        false_alarms = c.predictions - c.hits
        return c.others - false_alarms, c.others
