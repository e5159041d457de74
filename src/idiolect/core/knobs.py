"""Settings as dataclass fields that know their meaning and their range.

Every method, data set, model and run is a frozen dataclass whose fields are made by `knob`. Flags,
TOML keys, `methods --json`, docs and the error below all come from that one line:

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Demo(Knobs):
...     lr: float = knob(0.1, "step size", above=0)
>>> Demo(lr=-1)
Traceback (most recent call last):
    ...
idiolect.core.knobs.SettingError: lr must be a number > 0, got -1.0 (step size)
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import sys
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


class SettingError(ValueError):
    """A setting that cannot be accepted: the field, the value, and what would be accepted."""


def knob(
    default: Any,
    help: str,
    *,
    above: float | None = None,
    low: float | None = None,
    below: float | None = None,
    high: float | None = None,
    choices: tuple | None = None,
    parse: Callable[[Any], Any] | None = None,
    write: Callable[[Any], str] | None = None,
    takes: tuple[Any, ...] | None = None,
    on_resume: str = "same",
    roles: tuple[str, ...] = (),
    refused_in: Mapping[str, str] | None = None,
    renamed: dict[str, str] | None = None,
    acts_with: Mapping[str, Any] | None = None,
) -> Any:
    """A dataclass field with a meaning and a range.

    The range: above < value < below, low <= value <= high, or one of `choices`. A field that holds
    an object has `parse`, from text (or the object itself) to the object, and `write`, back to
    text; `takes` are further types that `parse` reads.
    `on_resume` says whether a run may be continued with another value: "same", "may change" or
    "may grow". `roles` are what the field is about, see `with_role`; `refused_in` maps a use of the
    dataclass that does not take this field to the reason; `renamed` maps earlier choices to what
    replaces them. `acts_with` maps other fields to the value, or the values, with which this one
    acts; see `idle_fields`.
    """
    bounds = {"above": above, "low": low, "below": below, "high": high, "choices": choices}
    extras: dict[str, Any] = {"parse": parse, "write": write, "takes": takes, "renamed": renamed}
    extras["acts_with"] = acts_with
    metadata = {k: v for k, v in {**bounds, **extras}.items() if v is not None}
    about = {"on_resume": on_resume, "roles": roles, "refused_in": dict(refused_in or {})}
    return field(default=default, metadata={"help": help, **about, **metadata})


def with_role(cls: type, role: str) -> tuple[str, ...]:
    """The fields of a dataclass that have this role.

    >>> @dataclass(frozen=True)
    ... class Demo(Knobs):
    ...     lr: float = knob(0.1, "step size")
    ...     every: int = knob(1, "rounds between evaluations", roles=("evaluation",))
    >>> with_role(Demo, "evaluation")
    ('every',)
    """
    return tuple(f.name for f in dataclasses.fields(cls) if role in f.metadata.get("roles", ()))


def refused_in(cls: type, use: str) -> dict[str, str]:
    """The fields that this use of a dataclass does not take, and why."""
    refused = {f.name: f.metadata.get("refused_in", {}).get(use) for f in dataclasses.fields(cls)}
    return {name: reason for name, reason in refused.items() if reason}


@dataclass(frozen=True)
class OtherThan:
    """Any value but this one: what a field acts with."""

    value: Any

    def __contains__(self, value: Any) -> bool:
        return bool(value != self.value)


def idle_fields(knobs: Knobs, around: Mapping[str, Any] | None = None) -> list[str]:
    """The fields that were changed from their defaults to no effect, in a sentence each.

    `around` are values of fields that are not these dataclass's own.

    >>> @dataclass(frozen=True)
    ... class Demo(Knobs):
    ...     warmup: int = knob(0, "rounds of warm-up")
    ...     start: float = knob(0.5, "factor of the first", acts_with={"warmup": OtherThan(0)})
    >>> idle_fields(Demo(start=0.1)), idle_fields(Demo(warmup=3, start=0.1))
    (['start: 0.1 has no effect with warmup 0'], [])
    """
    changed = [f for f in dataclasses.fields(knobs) if getattr(knobs, f.name) != f.default]
    return [sentence for f in changed for sentence in _idle(knobs, f, around)]


def acts(knobs: Knobs, name: str) -> bool:
    """Whether a field has an effect beside the other fields."""
    return not _idle(knobs, next(f for f in dataclasses.fields(knobs) if f.name == name))


def _idle(knobs: Knobs, f: dataclasses.Field, around: Mapping[str, Any] | None = None) -> list[str]:
    """Why a field has no effect, in sentences."""
    sentences = []
    for other, wanted in f.metadata.get("acts_with", {}).items():
        if not hasattr(knobs, other) and other not in (around or {}):
            continue
        got = getattr(knobs, other) if hasattr(knobs, other) else (around or {})[other]
        values = wanted if isinstance(wanted, tuple | OtherThan) else (wanted,)
        if got not in values:
            value = written(f, getattr(knobs, f.name))
            sentence = f"{f.name}: {value!r} has no effect with {other} {got!r}"
            if isinstance(values, tuple):
                sentence += f", only with {' or '.join(map(repr, values))}"
            sentences.append(sentence)
    return sentences


def accepted(f: dataclasses.Field, kind: type) -> str:
    """What a field takes, in words: "a number > 0", "one of 'a', 'b'"."""
    if "parse" in f.metadata:
        return "text"
    if "choices" in f.metadata:
        return "one of " + ", ".join(repr(c) for c in f.metadata["choices"])
    noun = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}.get(
        kind, str(kind)
    )
    signs = (("above", ">"), ("low", ">="), ("below", "<"), ("high", "<="))
    limits = [f"{sign} {f.metadata[key]:g}" for key, sign in signs if key in f.metadata]
    return " ".join([noun, " and ".join(limits)]).strip()


CLOSE = 0.65  # of 1: how alike two names are where one may be a misspelling of the other


def nearest(name: str, names: typing.Iterable[str], what: str) -> SettingError:
    """The error for an unknown name, with the nearest known one where one is near."""
    names = sorted(names)
    close = [
        *difflib.get_close_matches(name, names, n=1, cutoff=CLOSE),
        *difflib.get_close_matches(name.lower(), names, n=1, cutoff=CLOSE),
    ]
    hint = f"did you mean {close[0]!r}? " if close else ""
    return SettingError(f"{what}: {brief(name)} is unknown; {hint}known: {', '.join(names)}")


def brief(value: Any, most: int = 80) -> str:
    """A value as Python writes it, cut where it is longer than `most` characters.

    >>> brief(0.1), brief("-" * 60000, most=9)
    ('0.1', "'-----...")
    """
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write numbers of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= most else f"{text[: most - 3]}..."


BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _convert(value: Any, kind: type) -> Any:
    """`value` as `kind`, from text too (flags, METHOD:field=value).

    Raises ValueError, TypeError, KeyError or OverflowError where it is not one.
    """
    if kind is bool:
        if isinstance(value, str):
            return BOOLEANS[value.lower()]
        if value in (0, 1, True, False):
            return bool(value)
        raise ValueError
    if kind is int:
        number = float(value)
        if abs(number) >= 2**63:  # what torch and NumPy count with; infinity is among them
            raise OverflowError
        if isinstance(value, bool) or not number.is_integer():
            raise ValueError
        exact = isinstance(value, (int, str)) and str(value).lstrip("+-").isdigit()
        return int(value) if exact else int(number)  # a float has 53 bits only
    if kind is float:
        if isinstance(value, bool) or not math.isfinite(float(value)):
            raise ValueError
        return float(value)
    if kind is str and not isinstance(value, str):
        raise ValueError
    return value


def check(name: str, value: Any, f: dataclasses.Field, kind: type) -> Any:
    """The value in the field's type, or a SettingError that says what would be accepted."""
    if "parse" in f.metadata:
        return f.metadata["parse"](value)
    m = f.metadata
    try:
        value = _convert(value, kind)
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        too_large = kind is int and isinstance(error, OverflowError)
        raise _refused(name, value, f, kind, too_large) from None
    fits = (
        ("choices" not in m or value in m["choices"])
        and ("above" not in m or value > m["above"])
        and ("low" not in m or value >= m["low"])
        and ("below" not in m or value < m["below"])
        and ("high" not in m or value <= m["high"])
    )
    if not fits:
        raise _refused(name, value, f, kind)
    return value


def _refused(
    name: str, value: Any, f: dataclasses.Field, kind: type, too_large: bool = False
) -> SettingError:
    renamed = f.metadata.get("renamed", {})
    is_old = isinstance(value, str) and value in renamed
    note = f"; use {renamed[value]}" if is_old else f" ({f.metadata['help']})"
    bits = " of at most 64 bits" if too_large else ""
    return SettingError(f"{name} must be {accepted(f, kind)}{bits}, got {brief(value)}{note}")


@dataclass(frozen=True)
class Knobs:
    """A frozen dataclass that checks its fields when it is made, and tells what they mean.

    >>> @dataclass(frozen=True)
    ... class Demo(Knobs):
    ...     \"\"\"A demo.\"\"\"
    ...     lr: float = knob(0.1, "step size", above=0)
    >>> print(Demo.__doc__)
    A demo.
    <BLANKLINE>
    Fields:
        lr (0.1): step size
    """

    def __init_subclass__(cls, **options: Any) -> None:
        """Add the meaning of the fields to the docstring: what `help` shows."""
        super().__init_subclass__(**options)
        knobs: dict[str, dataclasses.Field] = {}
        for base in reversed(cls.__mro__[1:]):
            knobs |= {f.name: f for f in vars(base).get("__dataclass_fields__", {}).values()}
        knobs |= {n: f for n, f in vars(cls).items() if isinstance(f, dataclasses.Field)}
        knobs = {n: f for n, f in knobs.items() if f.metadata}
        text = cls.__dict__.get("__doc__")
        if not text or not knobs:
            return
        lines = [f"    {name} ({_default(f)}): {f.metadata['help']}" for name, f in knobs.items()]
        cls.__doc__ = "\n".join([inspect.cleandoc(text), "", "Fields:", *lines])

    def __post_init__(self) -> None:
        for name, value in vars(type(self)).items():
            if isinstance(value, dataclasses.Field):
                raise SettingError(
                    f"{type(self).__name__} must be decorated with @dataclass(frozen=True): "
                    f"without it {name} is no field"
                )
        kinds = kinds_of(type(self))
        for f in dataclasses.fields(self):
            if f.metadata:
                object.__setattr__(
                    self, f.name, check(f.name, getattr(self, f.name), f, kinds[f.name])
                )

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain data; a field that holds an object as its text."""
        return {f.name: written(f, getattr(self, f.name)) for f in dataclasses.fields(self)}


def _default(f: dataclasses.Field) -> str:
    value = written(f, f.default)
    return repr(value) if value == "" or not isinstance(value, str) else value


def written(f: dataclasses.Field, value: Any) -> Any:
    """A field's value as plain data."""
    return f.metadata["write"](value) if "write" in f.metadata else value


_KINDS: dict[type, dict[str, type]] = {}


def kinds_of(cls: type) -> dict[str, type]:
    """The plain type of every field of a dataclass.

    Found once: reading annotations takes a millisecond, and a schedule makes a new method in
    every round.
    """
    if cls not in _KINDS:
        hints = typing.get_type_hints(cls)
        _KINDS[cls] = {f.name: hints[f.name] for f in dataclasses.fields(cls)}
    return _KINDS[cls]


def build(cls: type, values: dict[str, Any], what: str) -> Any:
    """Make `cls` from a dict; an unknown key suggests its new name, or the nearest field."""
    field_names = [f.name for f in dataclasses.fields(cls) if f.init]
    renamed = getattr(cls, "renamed", {})  # old name -> how it is written now
    for key in values:
        if key in renamed and key not in field_names:
            raise SettingError(f"{key}: it is now written {renamed[key]}")
        if key not in field_names:
            raise nearest(key, field_names, f"{what} setting")
    return cls(**values)


def describe(cls: type) -> list[dict[str, Any]]:
    """The fields of a dataclass as plain data, for `--json`, docs and flags."""
    kinds = kinds_of(cls)
    return [
        {
            "name": f.name,
            "type": kinds[f.name].__name__,
            "default": written(f, f.default),
            "help": f.metadata.get("help", ""),
            "accepts": accepted(f, kinds[f.name]),
        }
        for f in dataclasses.fields(cls)
        if f.init and f.metadata
    ]


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
