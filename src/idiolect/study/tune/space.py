"""Spaces to search: ranges and choices for fields of methods and settings of runs."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.knobs import SettingError, kinds_of, nearest
from ...method import Method
from ...run.settings import Settings
from ..sweep.axes import Axis

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


def read_space(given: Mapping[str, Any] | str | Path, kinds: list[type[Method]]) -> Space:
    """A space from a mapping, or from a TOML file of the same form.

    >>> from ...methods import Ditto
    >>> read_space({"lam": {"low": 0.01, "high": 1, "log": True}, "steps": [5, 20]}, [Ditto])
    {'lam': Range(low=0.01, high=1.0, log=True, whole=False), 'steps': (5, 20)}
    """
    content = dict(given) if isinstance(given, Mapping) else read_file(Path(given))
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
    known = {f.name for kind in kinds for f in dataclasses.fields(kind) if f.metadata}
    known |= {f.name for f in dataclasses.fields(Settings)} - {"seed", "seeds"}
    raise nearest(axis.key, known, "space: field of these methods, or run setting,")


# -- by a rule -----------------------------------------------------------------------------------
RATES = ("lr", "personal_lr", "private_lr")  # from a tenth of the default to ten times it
WEIGHTS = ("lam", "mu", "rho")  # from a hundredth to a hundred times it
COUNTS = ("steps", "personal_steps", "private_steps", "local_steps", "alternations")  # 1 to twice


def derived_space(kind: type[Method], given: Mapping[str, Any]) -> Space:
    """A space from a method's own fields, but for those that are given.

    Step sizes and weights of penalties go by orders of magnitude around their default, within what
    the field takes; numbers of steps from 1 to twice the default. A field whose default is 0 (which
    means off, or chosen by the method) is not varied, and neither is any other field.

    >>> from ...methods import FedAvg
    >>> derived_space(FedAvg, {"steps": 5})
    {'lr': Range(low=0.03, high=3.0, log=True, whole=False)}
    """
    found: Space = {}
    for f in dataclasses.fields(kind):
        if f.name in given or not f.metadata or not f.default:
            continue
        if f.name in RATES + WEIGHTS:
            default: Any = f.default
            factor = 10 if f.name in RATES else 100
            low = default / factor
            high = min(default * factor, f.metadata.get("high", math.inf))
            found[f.name] = Range(float(f"{low:.6g}"), float(f"{high:.6g}"), True)
        elif f.name in COUNTS and isinstance(f.default, int):
            found[f.name] = Range(1, 2 * f.default, True, True)
    if not found:
        raise SettingError(
            f"trials: {kind.__name__} has no step size, weight or number of steps left to vary; "
            "give a space of your own"
        )
    return found


def written_space(space: Space) -> dict[str, Any]:
    """The space as plain data: what a file would have."""
    return {
        name: {"low": e.ends()[0], "high": e.ends()[1], "log": e.log}
        if isinstance(e, Range)
        else list(e)
        for name, e in space.items()
    }
