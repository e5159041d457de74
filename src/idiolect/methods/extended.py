"""A method with something added that it does not know of: statistics, states of optimisers."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..method import Method


def extended(method: Method, mixin: type, **attributes: Any) -> Method:
    """The same method with `mixin` before its class: a subclass made for the purpose.

    All that the method declares stays as it is, its name included.
    """
    cls = type(method)
    fields = {f.name: getattr(method, f.name) for f in dataclasses.fields(method) if f.init}
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    kind: Any = type(cls.__name__, (mixin, cls), {**names, **attributes})
    return kind(**fields)
