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
from .describe import picture, table
from .download import get, where
from .entries import data_set, make
from .federation import Federation
from .sets import DATASETS


def load(
    entry: str | Knobs | type[Knobs] | Callable[..., Federation], /, **options: Any
) -> Federation:
    """A data set by its name in the table, `module:Name`, or the thing itself.

    The thing is a dataclass of settings with `load()`, one such object, or a function that returns
    a Federation; the options are its fields or parameters.

    >>> load("mnits")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    idiolect.core.knobs.SettingError: data set: 'mnits' is unknown; did you mean 'mnist'? known: ...
    >>> from idiolect.data.sets.synthetic import Synthetic
    >>> load(Synthetic(clients=5), samples=20).clients
    5
    """
    if isinstance(entry, str):
        return make(DATASETS.find(entry), options, entry)
    if isinstance(entry, Knobs):
        fields = {f.name: getattr(entry, f.name) for f in dataclasses.fields(entry) if f.init}
        return load(type(entry), **{**fields, **options})
    names = [name for name, built_in in DATASETS.built_in.items() if built_in is entry]
    name = names[0] if names else getattr(entry, "__name__", repr(entry))
    return make(data_set(name, entry), options, name)


__all__ = ["DATASETS", "Federation", "get", "load", "picture", "table", "where"]
