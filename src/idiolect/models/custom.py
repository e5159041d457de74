"""A user's own architecture: a subclass of `Model`, or any callable that makes a torch module.

A callable takes `(inputs, outputs, **options)`: the shape of one sample, the number of outputs, and
options by name. It may be a function or a class derived from `nn.Module`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, TypeGuard

from torch import nn

from ..core.knobs import Knobs, SettingError, check, kinds_of, knob, nearest
from .base import Model, check_shapes

Builder = Callable[..., nn.Module]

_ACCEPTED = (
    "it must be a subclass of Model, or a callable (inputs, outputs, **options) "
    "that makes a torch.nn.Module"
)
_TEXT_TYPES = (bool, int, float, str)  # what can be given as text


def is_model(entry: Any) -> TypeGuard[type[Model]]:
    """Whether an entry is a subclass of `Model`, not another callable."""
    return isinstance(entry, type) and issubclass(entry, Model)


def title(entry: Any) -> str:
    """What an entry, or an object that is refused, is called in messages."""
    return getattr(entry, "__name__", type(entry).__name__) if callable(entry) else repr(entry)


def accept(name: str, thing: Any) -> type[Model] | Builder:
    """`thing` as an entry of the table of models, or a SettingError that says what is accepted."""
    if isinstance(thing, nn.Module):
        raise SettingError(
            f"model: {name!r} is a module that is already built; {_ACCEPTED}; "
            "a built module is given to Task itself"
        )
    wrong_class = isinstance(thing, type) and not issubclass(thing, (Model, nn.Module))
    if wrong_class or not callable(thing):
        raise SettingError(f"model: {name!r} is not accepted; {_ACCEPTED}")
    if not is_model(thing):
        _signature(thing)
    return thing


def options_of(entry: type[Model] | Builder) -> type[Knobs]:
    """The options of an entry that can be given as text, as a dataclass: for flags and docs.

    Of a callable these are the parameters after `inputs` and `outputs` that are bool, int, float
    or str, by their annotation or else by their default. Other options are for Python only. The
    dataclass describes them; `make` checks and converts what is given.

    >>> def net(inputs, outputs, width: int, rate=0.5, norm=nn.LayerNorm) -> nn.Module: ...
    >>> kinds_of(options_of(net))
    {'width': <class 'int'>, 'rate': <class 'float'>}
    """
    if is_model(entry):
        return entry
    fields = []
    for p in _options(_signature(entry)):
        kind = type(p.default) if p.annotation is p.empty else p.annotation
        if kind in _TEXT_TYPES:
            help = f"an option of {title(entry)}"
            if p.default is p.empty:
                fields.append((p.name, kind, knob(None, f"{help} that must be given")))
            else:
                fields.append((p.name, kind, knob(p.default, help)))
    return dataclasses.make_dataclass("Options", fields, bases=(Knobs,), frozen=True)


def call(
    builder: Builder, inputs: tuple[int, ...], outputs: int, options: dict[str, Any]
) -> nn.Module:
    """The module that a callable makes; options are checked first, and text converted."""
    inputs = check_shapes(inputs, outputs)
    _check_names(builder, options)
    fields = {f.name: f for f in dataclasses.fields(options_of(builder))}
    kinds = kinds_of(options_of(builder))
    values = {
        name: check(name, value, fields[name], kinds[name]) if name in fields else value
        for name, value in options.items()
    }
    module = builder(inputs, outputs, **values)
    if not isinstance(module, nn.Module):
        raise SettingError(f"model: {title(builder)} made a {type(module).__name__}; {_ACCEPTED}")
    return module


def _check_names(builder: Builder, values: dict[str, Any]) -> None:
    """Refuse an option that the callable does not have, and the lack of one that it needs."""
    signature = _signature(builder)
    what = f"{title(builder)} setting"
    options = {p.name: p for p in _options(signature)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for name in values:
        if name not in options and not takes_any:
            if not options:
                raise SettingError(f"{what}: {name!r} is unknown; {title(builder)} has no options")
            raise nearest(name, options, what)
    for name, p in options.items():
        if p.default is p.empty and name not in values:
            names = ", ".join(sorted(options))
            raise SettingError(f"{what}: {name!r} must be given; known: {names}")


def _signature(builder: Callable[..., Any]) -> Signature:
    """The parameters of a callable, if it can be called with inputs and outputs."""
    try:
        try:
            signature = inspect.signature(builder, eval_str=True)
        except NameError:  # an annotation that only type checkers can read
            signature = inspect.signature(builder)
        required = [p.name for p in _options(signature) if p.default is p.empty]
        signature.bind((1,), 1, **dict.fromkeys(required))
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"model: {title(builder)} is not accepted ({error}); {_ACCEPTED}"
        ) from None
    return signature


def _options(signature: Signature) -> list[Parameter]:
    """The parameters that are given by name: all but the first two places, inputs and outputs."""
    parameters = list(signature.parameters.values())
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    return [p for p in parameters if p.kind in by_name and p not in places[:2]]
