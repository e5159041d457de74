"""Metrics of one class: of the positive one of two, or averaged over classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from .metric import Metric, TargetForm

MOST_CLASSES = 1000  # of metrics that count by pairs of classes or by class and score
AVERAGES = ("macro", "weighted")  # each class counting once, or by its samples


class ClassAverage(Metric):
    """A figure of the positive class of two classes; of more, the mean over classes (macro).

    Names that end in _macro and _weighted are the mean over all classes, of two too: each class
    counting once, or by its samples.
    """

    kind: str = ""  # its name without the average
    whole = True
    two_sided: bool = False  # whether two classes have the same value, so that none is the positive

    def __init__(self, average: str = ""):
        self.average = average
        self.name = f"{self.kind}_{average}" if average else self.kind
        self.of_positive = not average and not self.two_sided

    @classmethod
    def named(cls, name: str) -> Metric | None:
        kind, _, average = name.rpartition("_")
        return cls(average) if kind == cls.kind and average in AVERAGES else None

    def of_one_class(self, classes: int) -> bool:
        """Whether it is about the positive class alone."""
        return self.of_positive and classes == 2

    def facts(self, classes: int) -> dict[str, Any]:
        facts = super().facts(classes)
        if classes > 2 or self.average:
            facts["average"] = self.average or "macro"
        return facts

    def refusal(self, form: TargetForm) -> str:
        if form.classes > MOST_CLASSES:
            return f"there are {form.classes} classes, and it takes at most {MOST_CLASSES}"
        return super().refusal(form)

    def mean_by_client(
        self, owner: np.ndarray, values: np.ndarray, support: np.ndarray, clients: int
    ) -> np.ndarray:  # -> float64[clients]
        """The average of each client over its classes; NaN where it has no value.

        A class has a client, a value (NaN does not count) and as many samples as `support`.
        """
        has_value = ~np.isnan(values)
        owner, values = owner[has_value], values[has_value]
        weights = support[has_value] if self.average == "weighted" else np.ones(len(values))
        total = np.bincount(owner, weights * values, minlength=clients)
        weight = np.bincount(owner, weights, minlength=clients)
        return np.divide(total, weight, out=np.full(clients, np.nan), where=weight > 0)
