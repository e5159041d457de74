"""The names of the built-in metrics: each is entered where it is defined."""

from __future__ import annotations

from typing import TypeVar

from .metric import Metric


class RunFigure(Metric):
    """Accuracy or loss: every run has it, so that nothing more is counted."""

    counted = False
    weighs = True

    def __init__(self, name: str, higher: bool, needs: str):
        self.name = name
        self.higher = higher
        self.needs = needs


ALWAYS = {
    "accuracy": RunFigure("accuracy", True, "classes"),
    "loss": RunFigure("loss", False, "any"),
}
# in the order in which users are shown them
BUILT_IN: dict[str, Metric] = {"accuracy": ALWAYS["accuracy"]}
Kind = TypeVar("Kind", bound=type[Metric])


def built_in(kind: Kind) -> Kind:
    """Offer a metric by its name."""
    metric = kind()
    BUILT_IN[metric.name] = metric
    return kind
