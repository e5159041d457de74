"""What a sweep varies: fields of methods, settings of runs, options of data and model."""

from __future__ import annotations

import dataclasses
import itertools
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..core.knobs import SettingError, kinds_of, nearest
from ..core.registry import split_outside
from ..method import Method
from ..methods import PRESET, has_preset
from ..run.settings import Settings

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
            names_of_all = {name for kind in kinds for name in _fields(kind)} | _settings()
            raise nearest(
                axis.key, names_of_all, "field of these methods, or run setting, in the grid"
            )


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


# -- Spaces to search: ranges and choices for fields of methods and settings of runs --

MOST = 1 << 20  # bytes of a file
KEYS = ("low", "high", "log")


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included."""

    low: float
    high: float
    log: bool = False  # even over orders of magnitude
    whole: bool = False

    def ends(self) -> tuple[Any, ...]:
        return (int(self.low), int(self.high)) if self.whole else (self.low, self.high)


Space = dict[str, Range | tuple[Any, ...]]  # name of a field or setting -> what it may be


def read_space(source: Mapping[str, Any] | str | Path, kinds: list[type[Method]]) -> Space:
    """A space from a mapping, or from a TOML file of the same form.

    >>> from idiolect.methods import Ditto
    >>> read_space({"lam": {"low": 0.01, "high": 1, "log": True}, "steps": [5, 20]}, [Ditto])
    {'lam': Range(low=0.01, high=1.0, log=True, whole=False), 'steps': (5, 20)}
    """
    content = dict(source) if isinstance(source, Mapping) else read_file(Path(source))
    if not content:
        raise SettingError(
            "space: it is empty; lines such as lr = {low = 0.001, high = 1, log = true} or "
            "steps = [1, 5, 20]"
        )
    return {name: _entry(name, entry, kinds) for name, entry in content.items()}


def read_file(path: Path) -> dict[str, Any]:
    try:
        body = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingError(f"space: cannot read {path}: {reason}") from None
    if len(body) > MOST:
        raise SettingError(f"space: {path} is not accepted; at most {MOST} bytes")
    try:
        return tomllib.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # no UTF-8, or no TOML
        raise SettingError(f"space: {path} is not TOML: {error}") from None


def _entry(name: str, entry: Any, kinds: list[type[Method]]) -> Range | tuple[Any, ...]:
    whole = _place(name, kinds)
    if isinstance(entry, list | tuple):
        if not entry:
            raise SettingError(f"space: {name} has no choices; at least one is needed")
        return tuple(entry)
    if not isinstance(entry, Mapping):
        raise SettingError(
            f"space: {name}: {entry!r} is not accepted; {{low, high, log}} or a list of choices"
        )
    for key in entry:
        if key not in KEYS:
            raise nearest(key, KEYS, f"space: key of {name}")
    ends = [entry.get(key) for key in ("low", "high")]
    if not all(isinstance(e, int | float) and not isinstance(e, bool) for e in ends):
        raise SettingError(f"space: {name}: low and high are needed, and both are numbers")
    low, high = map(float, ends)  # type: ignore[arg-type]
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise SettingError(f"space: {name}: low {ends[0]} and high {ends[1]}; low < high is needed")
    log = entry.get("log", False)
    if not isinstance(log, bool):
        raise SettingError(f"space: {name}: log: {log!r} is not accepted; true or false")
    if log and low <= 0:
        raise SettingError(f"space: {name}: low {ends[0]} is not accepted with log; above 0")
    if whole and not (low.is_integer() and high.is_integer()):
        raise SettingError(f"space: {name}: low and high are whole numbers, as {name} is one")
    return Range(low, high, log, whole)


def _place(name: str, kinds: list[type[Method]]) -> bool:
    """Whether it is a whole number; refuses a name that nothing has."""
    axis = Axis(name, ())
    if axis.part in ("data", "model"):
        raise SettingError(
            f"space: {name} is not accepted; settings are chosen for one federation and one model"
        )
    for kind in kinds:
        place = axis.place(kind)
        if place:
            return kinds_of(kind if place == "method" else Settings).get(axis.key) is int
    names = {f.name for kind in kinds for f in dataclasses.fields(kind) if f.metadata}
    names |= {f.name for f in dataclasses.fields(Settings)} - {"seed", "seeds"}
    raise nearest(axis.key, names, "space: field of these methods, or run setting,")


# -- by a rule -----------------------------------------------------------------------------------
RATES = ("lr", "personal_lr", "private_lr")  # from a tenth of the default to ten times it
WEIGHTS = ("lam", "mu", "rho")  # from a hundredth to a hundred times it
COUNTS = ("steps", "personal_steps", "private_steps", "local_steps", "alternations")  # 1 to twice


def derived_space(kind: type[Method], fixed: Mapping[str, Any]) -> Space:
    """A space from a method's own fields, but for those that are given.

    Step sizes and weights of penalties go by orders of magnitude around their default, within what
    the field takes; numbers of steps from 1 to twice the default. A field whose default is 0 (which
    means off, or chosen by the method) is not varied, and neither is any other field.

    >>> from idiolect.methods import FedAvg
    >>> derived_space(FedAvg, {"steps": 5})
    {'lr': Range(low=0.03, high=3.0, log=True, whole=False)}
    """
    space: Space = {}
    for f in dataclasses.fields(kind):
        if f.name in fixed or not f.metadata or not f.default:
            continue
        if f.name in RATES + WEIGHTS:
            default: Any = f.default
            factor = 10 if f.name in RATES else 100
            low = default / factor
            high = min(default * factor, f.metadata.get("high", math.inf))
            space[f.name] = Range(float(f"{low:.6g}"), float(f"{high:.6g}"), True)
        elif f.name in COUNTS and isinstance(f.default, int):
            space[f.name] = Range(1, 2 * f.default, True, True)
    if not space:
        raise SettingError(
            f"trials: {kind.__name__} has no step size, weight or number of steps left to vary; "
            "give a space of your own"
        )
    return space


def written_space(space: Space) -> dict[str, Any]:
    """The space as plain data: what a file would have."""
    return {
        name: {"low": e.ends()[0], "high": e.ends()[1], "log": e.log}
        if isinstance(e, Range)
        else list(e)
        for name, e in space.items()
    }
