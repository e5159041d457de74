"""Federations that differ in kind, on which defaults are chosen; none needs a download."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np

from idiolect import data, models
from idiolect.data.federation import Federation
from idiolect.task.task import Task

HIDDEN = "32"  # units of the models with a hidden layer

# Where a form begins among scikit-learn's digits. They are stored as they were scanned, and the
# labels repeat a form of about 130 digits that the writers filled in.
FORMS = (0, 130, 256, 386, 516, 646, 776, 906, 1029, 1157, 1287, 1415, 1545, 1667)


def digits_by_form(seed: int) -> Federation:
    """Scikit-learn's digits, a client for every form that was filled in by hand.

    >>> federation = digits_by_form(0)
    >>> federation.clients, federation.classes
    (14, 10)
    """
    from sklearn.datasets import load_digits  # here, because it takes seconds to import

    pixels, labels = load_digits(return_X_y=True)
    form = np.searchsorted(FORMS, np.arange(len(labels)), side="right") - 1
    x = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    return Federation.from_arrays(
        x, labels, form, classes=10, valid=0.2, test=0.2, seed=seed, name="digits by form"
    )


@dataclass(frozen=True)
class Kind:
    """A federation of the grid: its data, its model, and how many clients are heard per round."""

    text: str  # how it differs from the others
    heard: int
    make: Callable[[int], Federation] | None = None  # seed -> data
    name: str = ""  # or a data set by name
    options: dict[str, Any] = field(default_factory=dict)
    linear: bool = False  # a linear model, where the method needs no parts

    def load(self, seed: int) -> Federation:
        """Another seed is another draw of the data, and another split."""
        if self.make is not None:
            return self.make(seed)
        return data.load(self.name, **self.options, seed=seed)

    def task(self, shape: tuple[int, ...], parts: bool) -> Task:
        """`parts`: a method for parts of a model, hence one with a hidden layer in any case."""
        if self.linear and not parts:
            return Task(partial(models.make, "linear", shape, 10))
        return Task(partial(models.make, "mlp", shape, 10, hidden=HIDDEN))


def _digits(text: str, heard: int, **options: Any) -> Kind:
    return Kind(text, heard, name="digits", options=options)


def _synthetic(text: str, **options: Any) -> Kind:
    return Kind(text, 10, name="synthetic", options={"clients": 50, **options}, linear=True)


KINDS = {
    "digits, iid": _digits("alike, 29 training samples each", 10, clients=40, partition="iid"),
    "digits, 2 classes": _digits("labels unlike", 5, clients=20, classes_per_client=2),
    "digits, 5 classes": _digits("labels partly alike", 5, clients=20, classes_per_client=5),
    "digits, by form": Kind("natural: one form filled in by hand each", 5, digits_by_form),
    "Synthetic(0, 0)": _synthetic("models unlike", alpha=0.0, beta=0.0),
    "Synthetic(1, 1)": _synthetic("models and inputs unlike", alpha=1.0, beta=1.0),
}


@lru_cache(maxsize=8)
def loaded(title: str, seed: int) -> Federation:
    """The data of a federation."""
    return KINDS[title].load(seed)


@lru_cache(maxsize=8)
def task_of(title: str, parts: bool) -> Task:
    """The model of a federation."""
    return KINDS[title].task(tuple(loaded(title, 0).inputs.shape[1:]), parts)
