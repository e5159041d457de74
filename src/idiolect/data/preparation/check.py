"""What a preparation that is read back must be like."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .kinds import CATEGORY, DATE, NUMBER

if TYPE_CHECKING:
    from .prepared import Column, Preparation

SCALES = ("federated", "client", "none")
FILLS = ("mean", "median", "zero")
MISSING = ("refuse", "drop", *FILLS, *(f"{fill}+flag" for fill in FILLS))


def check(made: Preparation) -> None:
    """ValueError where the parts do not fit each other."""
    if made.scale not in SCALES or made.missing not in MISSING:
        raise ValueError(f"scale {made.scale!r} or missing {made.missing!r} is unknown")
    names = [column.name for column in made.columns]
    if not names or len(set(names)) < len(names):
        raise ValueError("columns: one or more, each with a name of its own")
    if len({str(id) for id in made.clients}) < len(made.clients):
        raise ValueError("clients: an id is there twice")
    if len(made.bytes_up) != len(made.clients) or min(made.bytes_up, default=0) < 0:
        raise ValueError("bytes_up: a number >= 0 for each client")
    if made.bytes_down < 0:
        raise ValueError("bytes_down: a number >= 0")
    for column in made.columns:
        _check_column(column, made)


def _check_column(column: Column, made: Preparation) -> None:
    place = f"column {column.name[:80]!r}"
    if column.kind == CATEGORY:
        texts = {isinstance(c, str) for c in column.categories}
        if len(set(column.categories)) < len(column.categories) or len(texts) != 1:
            raise ValueError(f"{place}: its categories are one or more, all different")
        if column.fill or column.centre or column.spread:
            raise ValueError(f"{place}: a category has no statistics")
        return
    if column.kind not in (NUMBER, DATE) or column.categories:
        raise ValueError(f"{place}: a number, category or date, with categories if it is one")
    one = len(made.clients) if made.scale == "client" else 1
    filled = made.missing not in ("refuse", "drop")
    lengths = {"fill": one if filled else 0, "centre": one, "spread": one}
    for name, length in lengths.items():
        values = getattr(column, name)
        if len(values) != length or not all(map(math.isfinite, values)):
            raise ValueError(f"{place}: {name} is {length} finite numbers")
    if min(column.spread, default=1.0) <= 0:
        raise ValueError(f"{place}: spread is > 0")
