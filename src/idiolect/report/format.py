"""Figures as people read them: accuracies, bytes, and what a method made of a goal."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


class Figure(float):
    """A number that knows what it is: "accuracy", "loss", "auc".

    >>> Figure(0.5, "auc").name
    'auc'
    """

    name: str

    def __new__(cls, value: float, name: str) -> Figure:
        figure = super().__new__(cls, value)
        figure.name = name
        return figure


UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def number(value: float | None) -> str:
    """An accuracy, variance or loss with four decimals; a dash where there is none.

    >>> number(0.91234), number(None), number(float("nan")), number(123_456_789.0)
    ('0.9123', '–', '–', '1.2346e+08')
    """
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.4f}" if abs(value) < 1e7 else f"{value:.4e}"


def signed(value: float | None) -> str:
    """A difference, with its sign; a dash where there is none.

    >>> signed(0.25), signed(-1.0), signed(None)
    ('+0.2500', '-1.0000', '–')
    """
    return "–" if value is None or math.isnan(value) else f"{value:+.4f}"


def count(value: float) -> str:
    """A whole number with its thousands apart.

    >>> count(328020.0)
    '328,020'
    """
    return f"{value:,.0f}"


def size(n: float) -> str:
    """Bytes for people.

    >>> size(0), size(84_480), size(3_200_000)
    ('0', '84.5 kB', '3.2 MB')
    """
    for unit, factor in UNITS:
        if n >= factor:
            return f"{n / factor:.1f} {unit}"
    return f"{n:.0f}"


def short_size(n: float) -> str:
    """Bytes for a heading.

    >>> short_size(328_020), short_size(4_236_900), short_size(500)
    ('328 kB', '4.237 MB', '500 B')
    """
    for unit, factor in UNITS:
        if n >= factor:
            return f"{n / factor:.4g} {unit}"
    return f"{n} B"


def goal(reached: dict[str, Any] | None, show: Callable[[float], str]) -> str:
    """What a method made of a goal: the mean with its interval, or ★ if some seed cannot meet it.

    Where only some seeds can, the cell says how many; † marks a budget that was not spent.

    >>> some = {"mean": None, "by_seed": [0.7, None, None]}
    >>> goal(some, number), goal({"mean": None, "by_seed": [None]}, number)
    ('★ 1 of 3', '★')
    """
    if reached is None:
        return "–"
    if reached["mean"] is None:
        able = sum(v is not None for v in reached["by_seed"])
        return f"★ {able} of {len(reached['by_seed'])}" if able else "★"
    spread = "" if reached["ci95"] is None else f" ± {show(reached['ci95'])}"
    unspent = " †" if reached.get("unspent") else ""
    return show(reached["mean"]) + spread + unspent


def duration(seconds: float) -> str:
    """A time to wait, for people.

    >>> duration(8.4), duration(200), duration(9000)
    ('8 s', '3 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
