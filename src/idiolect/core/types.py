"""The types that every room shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor

T = TypeVar("T")
Id = int | str  # the user's own name of a client
State = dict[str, Tensor]  # server: plain tensors; private rows and messages: leading axis = client


def under(state: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The entries whose names begin with a prefix, without it.

    >>> list(under({"w.e": Tensor(), "c.e": Tensor()}, "w."))
    ['e']
    """
    return {n.removeprefix(prefix): t for n, t in state.items() if n.startswith(prefix)}


def prefixed(state: Mapping[str, T], prefix: str) -> dict[str, T]:
    """The inverse of `under`."""
    return {f"{prefix}{n}": t for n, t in state.items()}
