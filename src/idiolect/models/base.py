"""What all models share: a dataclass that makes named layers; or a user's callable in its place.

A user's own architecture is a subclass of `Model`, or any callable that makes a torch module. It
takes `(inputs, outputs, **options)`: the shape of one sample, the number of outputs, and options by
name. It may be a function or a class derived from `nn.Module`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral
from typing import Any

from torch import nn

from ..core.callables import settings_class
from ..core.knobs import Knobs, SettingError, knob
from .adapters import KINDS, adapt

# Layers in order, with their names: "head" gives the parameters head.weight and head.bias.
Layers = list[tuple[str, nn.Module]]


@dataclass(frozen=True, kw_only=True)
class Model(Knobs):
    """An architecture; subclasses write `layers`, the last of which is called head."""

    adapter_rank: int = knob(
        0, "inner width of an adapter at every layer, for part 'adapter'; 0 for none", low=0
    )
    adapter: str = knob(
        "low-rank",
        "the kind of adapter: low-rank at every layer; as in Pillutla et al. bottleneck (after the "
        "sublayers of a transformer) or conv (1x1, in the blocks of a ResNet; it has no rank)",
        choices=KINDS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adapter == "bottleneck" and not self.adapter_rank:
            raise SettingError(
                "adapter_rank must be a whole number >= 1 with adapter 'bottleneck', got 0"
            )
        if self.adapter == "conv" and self.adapter_rank:
            raise SettingError(
                "adapter_rank must be left out with adapter 'conv', as a 1x1 convolution has no "
                f"inner width, got {self.adapter_rank}"
            )

    def layers(self, inputs: tuple[int, ...], outputs: int) -> Layers:
        """The layers in order, by name."""
        raise NotImplementedError

    def build(self, inputs: tuple[int, ...], outputs: int) -> nn.Module:
        """A new module for samples of shape `inputs`; weights are drawn by torch's own generator.

        >>> from idiolect.models import MODELS
        >>> MODELS["linear"]().build((60,), 10)
        Sequential(
          (flatten): Flatten(start_dim=1, end_dim=-1)
          (head): Linear(in_features=60, out_features=10, bias=True)
        )
        """
        inputs = check_shapes(inputs, outputs)
        # One flat Sequential, not nested ones: a kernel reads the layers off it in order.
        module = nn.Sequential(OrderedDict(self.layers(inputs, outputs)))
        if not self.adapter_rank and self.adapter != "conv":
            return module
        return adapt(module, self.adapter_rank or 1, kind=self.adapter)


def check_shapes(inputs: tuple[int, ...], outputs: int) -> tuple[int, ...]:
    """`inputs` as a tuple, if it is the shape of a sample and `outputs` a number of outputs."""
    inputs = tuple(inputs)
    if not inputs or not all(isinstance(n, Integral) and n > 0 for n in inputs):
        raise SettingError(
            f"inputs must be the shape of one sample, whole numbers > 0, got {inputs}"
        )
    if not isinstance(outputs, Integral) or outputs < 1:
        raise SettingError(
            f"outputs (classes, or 1 for regression) must be a whole number >= 1, got {outputs!r}"
        )
    return inputs


def dense(sizes: Sequence[int]) -> Layers:
    """Fully connected layers with ReLU between them.

    >>> [name for name, _ in dense([784, 100, 10])]
    ['hidden1', 'relu_hidden1', 'head']
    """
    layers: Layers = []
    for i, (a, b) in enumerate(pairwise(sizes[:-1]), start=1):
        layers += [(f"hidden{i}", nn.Linear(a, b)), (f"relu_hidden{i}", nn.ReLU())]
    return [*layers, ("head", nn.Linear(sizes[-2], sizes[-1]))]


def image(name: str, inputs: tuple[int, ...], side: int) -> tuple[int, int, int]:
    """`inputs` as (channels, height, width) with both sides at least `side`, or a SettingError.

    >>> image("lenet", (784,), 16)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    idiolect.core.knobs.SettingError: inputs must be images (channels, height, width) ...
    """
    if len(inputs) != 3 or min(inputs[1:]) < side:
        raise SettingError(
            f"inputs must be images (channels, height, width) of {side}x{side} pixels or more for "
            f"{name}, got {inputs}"
        )
    return inputs[0], inputs[1], inputs[2]


# -- a user's own architecture ---------------------------------------------------------------------
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


def call_builder(
    settings: Any, inputs: tuple[int, ...], outputs: int, extra: dict[str, Any]
) -> nn.Module:
    """The module that a callable makes."""
    module = settings.call(check_shapes(inputs, outputs), outputs, **extra)
    if not isinstance(module, nn.Module):
        raise SettingError(
            f"model: {title(type(settings))} must be {_ACCEPTED}, got a {type(module).__name__}"
        )
    return module
