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

    def reduce(self: Any) -> tuple[Any, ...]:
        """In another process: made anew in the same way."""
        now = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}
        return _again, (cls(**now), mixin, attributes)

    kind: Any = type(cls.__name__, (mixin, cls), {**names, **attributes, "__reduce__": reduce})
    return kind(**fields)


def _again(method: Method, mixin: type, attributes: dict[str, Any]) -> Method:
    return extended(method, mixin, **attributes)
