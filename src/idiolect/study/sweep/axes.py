"""What a sweep varies: fields of methods, settings of runs, options of data and model."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ...core.knobs import SettingError, nearest
from ...core.text import split_outside
from ...method import Method
from ...methods import PRESET, has_preset
from ...run.settings import Settings

PARTS = ("method", "run", "data", "model")
NOT_VARIED = {
    "seed": "the first seed of all runs: give it for the whole sweep",
    "seeds": "how many runs each setting has: give it for the whole sweep",
}


@dataclass(frozen=True)
class Axis:
    """A name with the values that it takes."""

    name: str  # as given: "lr", "data.clients"
    values: tuple[Any, ...]

    @property
    def part(self) -> str:
        """ "data" or "model" or the like where the name says so; "" where it does not."""
        head, dot, _ = self.name.partition(".")
        return head if dot else ""

    @property
    def key(self) -> str:
        """The name of the setting itself."""
        return self.name.rpartition(".")[2].replace("-", "_")

    def place(self, kind: type[Method]) -> str:
        """Which of `PARTS` it varies for a method; "" where this method has no such setting."""
        if self.part:
            return self.part if self.part != "method" or self.key in _fields(kind) else ""
        if self.key in _fields(kind):
            return "method"
        return "run" if self.key in _settings() else ""


def read_axes(grid: Mapping[str, Any] | Iterable[str]) -> list[Axis]:
    """Axes from names with lists of values, or from texts.

    >>> read_axes(["lr=0.1,0.01", "channel=none,qsgd(levels=4, norm=inf)"])[1].values
    ('none', 'qsgd(levels=4, norm=inf)')
    >>> read_axes({"lam": [0.1, 1.0]})
    [Axis(name='lam', values=(0.1, 1.0))]
    """
    pairs: list[tuple[str, Any]] = []
    if isinstance(grid, Mapping):
        pairs = list(grid.items())
    else:
        for text in grid:
            name, equals, values = str(text).partition("=")
            if not equals:
                raise SettingError(f"grid: {text!r} is not accepted; NAME=VALUE,VALUE,...")
            pairs.append((name.strip(), [v.strip() for v in split_outside(values, ",")]))
    return [_axis(str(name), values) for name, values in pairs]


def _axis(name: str, values: Any) -> Axis:
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise SettingError(f"grid: {name}: {values!r} is not accepted; a list of values")
    axis = Axis(name, tuple(values))
    if not [v for v in axis.values if v != ""]:
        raise SettingError(f"grid: {name} has no values; at least one is needed")
    if len(set(map(repr, axis.values))) < len(axis.values):
        raise SettingError(f"grid: {name} has a value twice")
    if axis.part and axis.part not in PARTS:
        raise nearest(axis.part, PARTS, f"part of a run in grid {name!r}")
    if axis.part in ("", "run") and axis.key in NOT_VARIED:
        raise SettingError(f"grid: {axis.key} is not accepted; it is {NOT_VARIED[axis.key]}")
    if axis.part == "run" and axis.key not in _settings():
        raise nearest(axis.key, _settings(), "run setting in the grid")
    return axis


def check_axes(axes: Sequence[Axis], kinds: Sequence[type[Method]]) -> None:
    """Refuse a name twice, or one that no method of the sweep has."""
    names = [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"grid: {name} is given twice")
    for axis in axes:
        if not any(axis.place(kind) for kind in kinds):
            known = {name for kind in kinds for name in _fields(kind)} | _settings()
            raise nearest(axis.key, known, "field of these methods, or run setting, in the grid")


def combinations(axes: Sequence[Axis], kind: type[Method]) -> Iterator[dict[Axis, Any]]:
    """Every choice of values, for the axes that a method has; the last one varies fastest."""
    mine = [axis for axis in axes if axis.place(kind)]
    for values in itertools.product(*(axis.values for axis in mine)):
        yield dict(zip(mine, values, strict=True))


def _fields(kind: type[Method]) -> set[str]:
    own = {f.name for f in fields(kind) if f.metadata}
    return own | {PRESET} if has_preset(kind) else own


def _settings() -> set[str]:
    return {f.name for f in fields(Settings)} - set(NOT_VARIED)
