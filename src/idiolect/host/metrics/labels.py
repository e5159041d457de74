"""Metrics of predicted labels: counts of (class, predicted class), read by scikit-learn.

All clients go through scikit-learn in one call: class c of client k is label k * C + c there.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .metric import MOST_CLASSES, Form, Metric, Samples


class Labels(Metric):
    """A metric of a confusion matrix."""

    whole = True

    def refusal(self, form: Form) -> str:
        if form.classes > MOST_CLASSES:
            return f"there are {form.classes} classes, and it takes at most {MOST_CLASSES}"
        return super().refusal(form)

    def width(self, form: Form) -> int:
        return 1

    def shape(self, form: Form) -> Sequence[int]:
        return (form.classes, form.classes)

    def add(self, rows: Tensor, counts: Tensor, samples: Samples) -> None:
        from sklearn.metrics import precision_recall_fscore_support

        classes = samples.form.classes
        cell = samples.labels * classes + samples.predicted
        counts += torch.bincount(cell, minlength=classes**2).view(classes, classes)
        cells, times = torch.unique(
            samples.owners * classes**2 + cell, return_counts=True
        )  # one entry per client, class and predicted class
        rows[samples.owner.unique()] = torch.nan
        if not len(cells):
            return
        client, cell = (cells // classes**2).numpy(), (cells % classes**2).numpy()
        true, predicted = client * classes + cell // classes, client * classes + cell % classes
        _, recall, f1, support = precision_recall_fscore_support(
            true, predicted, average=None, sample_weight=times.numpy(), zero_division=0.0
        )
        labels = np.union1d(true, predicted)
        use = self.used(labels % classes, support, classes)
        owner = labels[use] // classes
        total = np.bincount(owner, self.figure(recall, f1)[use], minlength=len(rows))
        number = np.bincount(owner, minlength=len(rows))
        found = number > 0
        rows[torch.from_numpy(found), 0] = torch.from_numpy(total[found] / number[found])

    def used(self, label: np.ndarray, support: np.ndarray, classes: int) -> np.ndarray:
        """Which classes of a client the mean is over."""
        raise NotImplementedError

    def figure(self, recall: np.ndarray, f1: np.ndarray) -> np.ndarray:
        """What the mean is of."""
        raise NotImplementedError

    def pooled(self, rows: Tensor, counts: Tensor, sizes: Tensor) -> float:
        true, predicted = counts.nonzero(as_tuple=True)
        if not len(true):
            return float("nan")
        with warnings.catch_warnings():  # of classes that are predicted and never true
            warnings.simplefilter("ignore")
            return self.score(
                true.numpy(), predicted.numpy(), counts[true, predicted].numpy(), len(counts)
            )

    def score(
        self, true: np.ndarray, predicted: np.ndarray, times: np.ndarray, classes: int
    ) -> float:
        """By scikit-learn."""
        raise NotImplementedError


class BalancedAccuracy(Labels):
    """The mean over classes of how often the class is predicted where it is true."""

    name = "balanced_accuracy"

    def used(self, label: np.ndarray, support: np.ndarray, classes: int) -> np.ndarray:
        return support > 0

    def figure(self, recall: np.ndarray, f1: np.ndarray) -> np.ndarray:
        return recall

    def score(
        self, true: np.ndarray, predicted: np.ndarray, times: np.ndarray, classes: int
    ) -> float:
        from sklearn.metrics import balanced_accuracy_score

        return float(balanced_accuracy_score(true, predicted, sample_weight=times))


class F1(Labels):
    """F1 of class 1 of two classes; of more, the mean over the classes that are there (macro).

    A client that neither has nor predicts class 1 of two has no value.
    """

    name = "f1"

    def used(self, label: np.ndarray, support: np.ndarray, classes: int) -> np.ndarray:
        return label == 1 if classes == 2 else np.ones(len(label), dtype=bool)

    def figure(self, recall: np.ndarray, f1: np.ndarray) -> np.ndarray:
        return f1

    def score(
        self, true: np.ndarray, predicted: np.ndarray, times: np.ndarray, classes: int
    ) -> float:
        from sklearn.metrics import f1_score

        if classes == 2 and not (true.any() or predicted.any()):
            return float("nan")
        average = "binary" if classes == 2 else "macro"
        return float(
            f1_score(true, predicted, average=average, sample_weight=times, zero_division=0.0)
        )
