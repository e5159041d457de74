"""A user's function as a class of settings, so that its options work like those of built-in things.

Options annotated bool, int, float or str (or with such a default) are checked and converted from
text; others are passed on as they are.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any

from .knobs import Knobs, SettingError, build, knob

PLAIN = (bool, int, float, str)
REQUIRED = object()  # the default of an option that has none


def settings_class(
    function: Callable[..., Any], name: str, places: int = 0, untyped_flags: bool = True
) -> type[Knobs]:
    """A dataclass whose fields are the options of a function, with a method `call`.

    `call` passes on its own arguments, of which the first `places` are positional. Options of other
    types than text can give are flags too with `untyped_flags`, and for Python only without. A
    function that cannot be called so is a TypeError or a ValueError.

    >>> def noise(clients: int = 3, **others): return clients
    >>> settings_class(noise, "noise")(clients="5").call()
    5
    """
    signature = _signature(function)
    parameters = list(signature.parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][
        :places
    ]
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    options = [p for p in parameters if p.kind in by_name and p not in positional]
    required = [p.name for p in options if p.default is p.empty]
    signature.bind(*[None] * places, **dict.fromkeys(required))

    def call(self: Any, *arguments: Any, **extra: Any) -> Any:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        defaults = {f.name: f.default for f in dataclasses.fields(self)}
        changed = {key: v for key, v in values.items() if v is not defaults[key]}
        return function(*arguments, **changed, **extra)

    spelling = getattr(function, "__name__", name)
    entry = dataclasses.make_dataclass(
        spelling,
        [(p.name, _kind(p), _field(p, name, untyped_flags)) for p in options],
        bases=(Knobs,),
        namespace={
            "call": call,
            "takes_any_option": any(p.kind is p.VAR_KEYWORD for p in parameters),
            "__doc__": inspect.getdoc(function) or f"The function {name}.",
        },
        frozen=True,
        kw_only=True,
    )
    entry.__module__ = getattr(function, "__module__", None) or entry.__module__
    entry.__qualname__ = getattr(function, "__qualname__", spelling)
    return entry


def read_options(
    entry: type[Knobs], options: dict[str, Any], what: str
) -> tuple[Any, dict[str, Any]]:
    """The settings of an entry, and the further options of a function that takes any.

    An option that the entry does not have is refused by name, and so is the lack of one.
    """
    fields = {f.name: f for f in dataclasses.fields(entry) if f.init}
    extra = {key: value for key, value in options.items() if key not in fields}
    open_ended = getattr(entry, "takes_any_option", False)
    if extra and not fields and not open_ended:
        raise SettingError(f"{what} setting: {next(iter(extra))!r} is unknown; it has no options")
    missing = [name for name, f in fields.items() if name not in options and _is_required(f)]
    settings = {key: value for key, value in options.items() if key in fields or not open_ended}
    if missing:
        raise SettingError(f"{what}: {', '.join(missing)} must be given")
    return build(entry, settings, what), extra


def _is_required(f: dataclasses.Field) -> bool:
    no_default = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    return no_default or f.default is REQUIRED


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function, eval_str=True)
    except (NameError, TypeError, AttributeError):  # annotations that only type checkers can read
        return inspect.signature(function)


def _kind(parameter: Parameter) -> type:
    """The plain type of a parameter, by annotation or default; `object` where it is another."""
    default = parameter.default
    kind = type(default) if parameter.annotation is parameter.empty else parameter.annotation
    is_plain = kind in PLAIN and (default is parameter.empty or isinstance(default, PLAIN))
    return kind if is_plain else object


def _field(parameter: Parameter, name: str, untyped_flags: bool) -> Any:
    default = parameter.default
    text = f"option of {name}"
    if default is parameter.empty:
        default = REQUIRED
        text += " that must be given"
    elif type(default).__hash__ is None:  # a list or a dict, which a dataclass refuses
        default = None
    if _kind(parameter) is not object:
        return knob(default, text, write=_written)
    if not untyped_flags:
        return dataclasses.field(default=default)
    return knob(default, text, parse=_unchanged, write=_written)


def _unchanged(value: Any) -> Any:
    return value


def _written(value: Any) -> Any:
    """A default as plain data for JSON."""
    if value is None or value is REQUIRED:
        return None
    return value if isinstance(value, PLAIN) else repr(value)
