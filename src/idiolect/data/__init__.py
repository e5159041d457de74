"""Federated data: your own (`Federation.from_arrays`, ...) or one of the table (`load`).

>>> federation = load("synthetic", alpha=1.0, beta=1.0, clients=5)
>>> federation.clients, federation.classes
(5, 10)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ..core.knobs import Knobs
from ..core.registry import Table
from .digits import Digits
from .emnist import Emnist
from .entries import data_set, make
from .federation import Federation
from .femnist import Femnist
from .fetch import get, where
from .folders import Folder
from .gldv2 import Gldv2
from .groups import Chem97, InstEval, MovieLens
from .hapt import Hapt
from .heart import Heart
from .images import Cifar10, FashionMnist, Mnist
from .picture import picture, table
from .quickdraw import QuickDraw
from .regression import Linear, Logistic
from .shakespeare import Shakespeare
from .stackoverflow import StackOverflow
from .synthetic import Synthetic
from .tables import TableFile
from .text import Chitchat, Sotu

DATASETS: Table[type[Knobs]] = Table(
    "data set",
    "idiolect.data",
    {
        "synthetic": Synthetic,
        "linear": Linear,
        "logistic": Logistic,
        "digits": Digits,
        "mnist": Mnist,
        "fashion-mnist": FashionMnist,
        "cifar10": Cifar10,
        "sotu": Sotu,
        "chitchat": Chitchat,
        "heart": Heart,
        "shakespeare": Shakespeare,
        "hapt": Hapt,
        "chem97": Chem97,
        "insteval": InstEval,
        "movielens": MovieLens,
        "quickdraw": QuickDraw,
        "emnist": Emnist,
        "femnist": Femnist,
        "stackoverflow": StackOverflow,
        "gldv2": Gldv2,
        "table": TableFile,
        "folder": Folder,
    },
    data_set,
)


def load(
    given: str | Knobs | type[Knobs] | Callable[..., Federation], **options: Any
) -> Federation:
    """A data set by its name in the table, `module:Name`, or the thing itself.

    The thing is a dataclass of settings with `load()`, one such object, or a function that returns
    a Federation; the options are its fields or parameters.

    >>> load("mnits")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    idiolect.core.knobs.SettingError: data set: 'mnits' is unknown; did you mean 'mnist'? known: ...
    >>> load(Synthetic(clients=5), samples=20).clients
    5
    """
    if isinstance(given, str):
        return make(DATASETS.find(given), options, given)
    if isinstance(given, Knobs):
        fields = {f.name: getattr(given, f.name) for f in dataclasses.fields(given) if f.init}
        return load(type(given), **{**fields, **options})
    listed = [name for name, entry in DATASETS.built_in.items() if entry is given]
    name = listed[0] if listed else getattr(given, "__name__", repr(given))
    return make(data_set(name, given), options, name)


__all__ = ["DATASETS", "Federation", "get", "load", "picture", "table", "where"]
