"""Values as plain JSON."""

from __future__ import annotations

from typing import Any


def plain(value: Any) -> Any:
    """The value with NaN and infinity as null, so that every JSON reader can read what is written.

    >>> plain({"accuracy": float("nan"), "by_seed": (0.5, float("inf"))})
    {'accuracy': None, 'by_seed': [0.5, None]}
    """
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value
