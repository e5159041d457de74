"""A user's own architecture: a subclass of `Model`, or any callable that makes a torch module.

A callable takes `(inputs, outputs, **options)`: the shape of one sample, the number of outputs, and
options by name. It may be a function or a class derived from `nn.Module`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ..core.callables import settings_class
from ..core.knobs import Knobs, SettingError
from .base import Model, check_shapes

Builder = Callable[..., nn.Module]

_ACCEPTED = (
    "a subclass of Model, or a callable (inputs, outputs, **options) that makes a torch.nn.Module"
)


def title(entry: Any) -> str:
    """What an entry, or an object that is refused, is called in messages."""
    return getattr(entry, "__name__", type(entry).__name__) if callable(entry) else repr(entry)


def accept(name: str, thing: Any) -> type[Knobs]:
    """`thing` as an entry of the table of models: a class of settings.

    Of a callable, the settings are the parameters after `inputs` and `outputs`.
    """
    if isinstance(thing, type) and issubclass(thing, Model):
        return thing
    if isinstance(thing, nn.Module):
        raise SettingError(
            f"model: {name!r} must be {_ACCEPTED}, got a module that is already built; "
            "give that to Task itself"
        )
    wrong_class = isinstance(thing, type) and not issubclass(thing, nn.Module)
    if wrong_class or not callable(thing):
        raise SettingError(f"model: {name!r} must be {_ACCEPTED}")
    try:
        return settings_class(thing, title(thing), places=2, untyped_flags=False)
    except (TypeError, ValueError) as error:
        raise SettingError(f"model: {title(thing)} must be {_ACCEPTED} ({error})") from None


def options_of(entry: type[Knobs] | Builder) -> type[Knobs]:
    """The options of a model as a dataclass: for flags and docs.

    Options of a callable that are not bool, int, float or str are for Python only, and not flags.

    >>> def net(inputs, outputs, width: int, rate=0.5, norm=nn.LayerNorm) -> nn.Module: ...
    >>> from idiolect.core.knobs import describe
    >>> [row["name"] for row in describe(options_of(net))]
    ['width', 'rate']
    """
    if isinstance(entry, type) and issubclass(entry, Knobs):
        return entry
    return accept(title(entry), entry)


def call(settings: Any, inputs: tuple[int, ...], outputs: int, extra: dict[str, Any]) -> nn.Module:
    """The module that a callable makes."""
    module = settings.call(check_shapes(inputs, outputs), outputs, **extra)
    if not isinstance(module, nn.Module):
        raise SettingError(
            f"model: {title(type(settings))} must be {_ACCEPTED}, got a {type(module).__name__}"
        )
    return module
