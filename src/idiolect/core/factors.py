"""Factors of a round on settings of a method: what a schedule over rounds comes to."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from .knobs import Knobs, kinds_of

RATES = "rates"  # stands for all learning rates of a method
Factors = Mapping[str, float]  # field -> factor; a field that is not there is as it is
_CHOSEN = ("choices", "parse")  # of a field that takes words, not numbers


def scalable(cls: type[Knobs]) -> tuple[str, ...]:
    """The fields that hold a number."""
    kinds = kinds_of(cls)
    return tuple(
        f.name
        for f in dataclasses.fields(cls)
        if kinds[f.name] in (int, float) and not any(key in f.metadata for key in _CHOSEN)
    )


def scaled(knobs: Knobs, factors: Factors, rates: Iterable[str]) -> dict[str, Any]:
    """The fields that change, with their values times their factors, within their ranges.

    Whole numbers are rounded. A number above 0 stays above 0: a rate that has decayed to nothing is
    still a rate, and of several steps one is left.
    """
    by_field = dict.fromkeys(rates, factors.get(RATES, 1.0))
    by_field |= {name: factor for name, factor in factors.items() if name != RATES}
    fields = {f.name: f for f in dataclasses.fields(knobs)}
    return {
        name: _within(getattr(knobs, name), factor, fields[name])
        for name, factor in by_field.items()
        if factor != 1 and name in fields
    }


def whole(value: int, factor: float) -> int:
    """A whole number times a factor, rounded; at least 1 where it was."""
    return value if factor == 1 else max(math.floor(value * factor + 0.5), min(value, 1))


def _within(value: Any, factor: float, f: dataclasses.Field) -> Any:
    if isinstance(value, int):
        new: Any = whole(value, factor)
    else:
        new = max(value * factor, sys.float_info.min) if value > 0 else value * factor
    return min(max(new, f.metadata.get("low", new)), f.metadata.get("high", math.inf))
