"""What a data set is made by: a dataclass of settings with `load()`, or a function.

Every entry of the table of data sets is a dataclass whose fields are its options, so that flags,
`describe` and checks work alike for all of them. A user's function gets such a dataclass, made from
its signature: options annotated bool, int, float or str (or with such a default) are checked and
converted from text, others are passed on as they are.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from ..core.knobs import Knobs, SettingError, build, knob
from .federation import Federation

PLAIN = (bool, int, float, str)


class _Required:
    """Stands for the default of an option that has none."""

    def __repr__(self) -> str:
        return "none"


REQUIRED = _Required()


BUILT_IN: dict[str, type[Knobs]] = {}  # the entries of the table, by name

DataSet = TypeVar("DataSet", bound=type[Knobs])


def register(name: str) -> Callable[[DataSet], DataSet]:
    """Enter a data set in the table under a name: a decorator of its dataclass."""

    def enter(entry: DataSet) -> DataSet:
        BUILT_IN[name] = entry
        return entry

    return enter


def data_set(name: str, thing: Any) -> type[Knobs]:
    """The dataclass of an entry; `thing` is a class or a function.

    >>> def noise(clients: int = 3) -> Federation:
    ...     "Random numbers."
    >>> data_set("noise", noise)(clients="5").clients
    5
    """
    if isinstance(thing, type):
        if issubclass(thing, Knobs) and callable(getattr(thing, "load", None)):
            return thing
    elif callable(thing):
        return _from_function(name, thing)
    raise SettingError(
        f"data set: {name!r} must be a subclass of Knobs with load(), or a function that returns a "
        "Federation"
    )


def make(entry: type[Knobs], options: dict[str, Any], name: str) -> Federation:
    """The federation of an entry; options that do not fit are refused by name."""
    needed = [f.name for f in dataclasses.fields(entry) if f.name not in options and _required(f)]
    if needed:
        raise SettingError(f"data set {name}: {', '.join(needed)} must be given")
    extra: dict[str, Any] = {}
    if getattr(entry, "takes_any_option", False):
        field_names = {f.name for f in dataclasses.fields(entry)}
        extra = {key: value for key, value in options.items() if key not in field_names}
    settings = {key: value for key, value in options.items() if key not in extra}
    federation = build(entry, settings, f"data set {name}").load(**extra)
    if not isinstance(federation, Federation):
        raise SettingError(
            f"data set {name} must return a Federation, got a {type(federation).__name__}"
        )
    return federation


def _required(f: dataclasses.Field) -> bool:
    no_default = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    return f.init and (no_default or f.default is REQUIRED)


def _from_function(name: str, function: Callable[..., Any]) -> type[Knobs]:
    """A dataclass whose fields are the parameters of a function and whose `load` calls it."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        raise SettingError(f"data set: {name!r} must have a signature") from None
    if any(p.kind is p.POSITIONAL_ONLY for p in parameters):
        raise SettingError(f"data set: {name!r} must take its options by name")
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    kinds = _kinds(function, named)

    def load(self: Any, **extra: Any) -> Any:
        arguments = {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if getattr(self, f.name) is not f.default  # the function has its own defaults
        }
        return function(**arguments, **extra)

    spelt = getattr(function, "__name__", name)
    entry = dataclasses.make_dataclass(
        spelt,
        [(p.name, kinds[p.name], _field(p, kinds[p.name], name)) for p in named],
        bases=(Knobs,),
        namespace={
            "load": load,
            "takes_any_option": any(p.kind is p.VAR_KEYWORD for p in parameters),
            "__doc__": inspect.getdoc(function) or f"The function {name}.",
        },
        frozen=True,
        kw_only=True,
    )
    entry.__module__ = getattr(function, "__module__", None) or entry.__module__
    entry.__qualname__ = getattr(function, "__qualname__", spelt)
    return entry


def _kinds(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> dict[str, type]:
    """The plain type of each parameter, by annotation or default; `object` where it is another."""
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):  # names that exist for type checkers only
        hints = {}
    kinds = {p.name: hints.get(p.name, type(p.default)) for p in parameters}
    return {name: kind if kind in PLAIN else object for name, kind in kinds.items()}


def _field(parameter: inspect.Parameter, kind: type, name: str) -> Any:
    default = parameter.default
    if default is parameter.empty:
        default = REQUIRED
    elif type(default).__hash__ is None:  # a list or a dict, which a dataclass refuses
        default = None
    as_given = None if kind in PLAIN else _unchanged
    return knob(default, f"option of {name}", parse=as_given, write=_written)


def _unchanged(value: Any) -> Any:
    return value


def _written(value: Any) -> Any:
    """A default as plain data for JSON."""
    return value if value is None or isinstance(value, PLAIN) else repr(value)
