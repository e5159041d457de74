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
from .entries import data_set, make
from .federation import Federation
from .fetch import get, where
from .picture import picture, table
from .read.folders import Folder
from .read.table_files import TableFile
from .sets.digits import Digits
from .sets.emnist import Emnist
from .sets.femnist import Femnist
from .sets.gldv2 import Gldv2
from .sets.groups import Chem97, InstEval, MovieLens
from .sets.hapt import Hapt
from .sets.heart import Heart
from .sets.images import Cifar10, FashionMnist, Mnist
from .sets.quickdraw import QuickDraw
from .sets.regression import Linear, Logistic
from .sets.shakespeare import Shakespeare
from .sets.stackoverflow import StackOverflow
from .sets.synthetic import Synthetic
from .sets.text import Chitchat, Sotu

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
