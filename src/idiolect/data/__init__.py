"""Federated data: your own (`Federation.from_arrays`, `from_frame`, `from_datasets`) or built in (`load`).

>>> federation = load("synthetic", alpha=1.0, beta=1.0, clients=5)
>>> federation.clients, federation.classes
(5, 10)
"""

from __future__ import annotations

from typing import Any

from ..core.knobs import Knobs, build, nearest
from .digits import Digits
from .federation import Federation
from .fetch import get, where
from .images import Cifar10, FashionMnist, Mnist
from .picture import picture, table
from .regression import Linear, Logistic
from .synthetic import Synthetic
from .tables import Table
from .text import Chitchat, Sotu

DATASETS: dict[str, type[Knobs]] = {
    "synthetic": Synthetic,
    "linear": Linear,
    "logistic": Logistic,
    "digits": Digits,
    "mnist": Mnist,
    "fashion-mnist": FashionMnist,
    "cifar10": Cifar10,
    "sotu": Sotu,
    "chitchat": Chitchat,
    "table": Table,
}


def load(name: str, **options: Any) -> Federation:
    """A built-in data set by name; the options are its fields.

    >>> load("mnits")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    idiolect.core.knobs.SettingError: data set: 'mnits' is unknown; did you mean 'mnist'? known: chitchat, cifar10, ...
    """
    if name not in DATASETS:
        raise nearest(name, DATASETS, "data set")
    return build(DATASETS[name], options, f"data set {name}").load()


__all__ = ["DATASETS", "Federation", "get", "load", "picture", "table", "where"]
