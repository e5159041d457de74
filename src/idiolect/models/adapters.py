"""Adapters: small modules at the layers of any model, for the part that each client keeps.

Low-rank: a linear layer or a convolution becomes y = layer(x) + B A x (LoRA, Hu et al. 2022). After
a transformer layer comes the bottleneck y + B gelu(A y) of Houlsby et al. 2019, because attention
reads the weights of its linear layers without calling them. A is random and B zero, so that an
adapted model starts as the same function. The adapters of Pillutla et al. 2022, "bottleneck" and
"conv", are in sublayers.py. What was `head.weight` is then `head.layer.weight`, next to
`head.adapter.down` (A) and `head.adapter.up` (B); `Task.split("adapter")` selects A and B.
"""

from __future__ import annotations

import copy
from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.knobs import SettingError, check, knob
from ..core.parts import ADAPTER
from . import sublayers
from .adapted import Adapted, Adapter


class LowRank(Adapter):
    """B A x: from `inputs` features to `rank` of them and to `outputs`."""

    def __init__(
        self, inputs: int, outputs: int, rank: int, like: Tensor, kernel: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        a = torch.empty(rank, inputs, *kernel, dtype=like.dtype, device=like.device)
        b = torch.empty(outputs, rank, *[1] * len(kernel), dtype=like.dtype, device=like.device)
        self.down = nn.Parameter(a)
        self.up = nn.Parameter(b)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """A small and random, so that A x has the scale of x; B zero, so that nothing is added."""
        nn.init.normal_(self.down, std=self.down[0].numel() ** -0.5)
        nn.init.zeros_(self.up)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.linear(x, self.down), self.up)

    def extra_repr(self) -> str:
        return f"{self.down.shape[1]} -> {self.down.shape[0]} -> {self.up.shape[0]}"


class ConvAdapter(LowRank):
    """A convolution like the layer's own to `rank` channels, then 1x1 to its output channels."""

    def __init__(self, layer: nn.Conv2d, rank: int) -> None:
        super().__init__(
            layer.in_channels, layer.out_channels, rank, layer.weight, layer.kernel_size
        )
        self.stride = layer.stride
        self.padding = layer.padding
        self.dilation = layer.dilation
        self.padding_mode = layer.padding_mode
        self.border = layer._reversed_padding_repeated_twice  # as F.pad takes it

    def forward(self, x: Tensor) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            x = F.pad(x, self.border, mode=self.padding_mode)
            padding = (0, 0)
        return F.conv2d(F.conv2d(x, self.down, None, self.stride, padding, self.dilation), self.up)


class Bottleneck(LowRank):
    """B gelu(A y)."""

    after = True

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.gelu(F.linear(x, self.down)), self.up)


BLOCKS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def _low_rank(layer: nn.Module, rank: int) -> Adapter:
    if isinstance(layer, BLOCKS):
        width = layer.linear1.in_features
        return Bottleneck(width, width, rank, layer.linear1.weight)
    if isinstance(layer, nn.Conv2d):
        return ConvAdapter(layer, rank)
    assert isinstance(layer, nn.Linear)
    return LowRank(layer.in_features, layer.out_features, rank, layer.weight)


def _adaptable(module: nn.Module) -> dict[str, nn.Module]:
    """The layers that can have an adapter, by name and in order.

    A layer that is used in two places has two names.
    """
    if isinstance(module, (nn.Linear, nn.Conv2d, *BLOCKS)):
        return {"": module}
    if isinstance(module, (Adapted, nn.MultiheadAttention)):  # has one already; would not call it
        return {}
    children = [(name, child) for name, child in module._modules.items() if child is not None]
    return {
        f"{name}.{rest}".rstrip("."): layer
        for name, child in children
        for rest, layer in _adaptable(child).items()
    }


KINDS = ("low-rank", "bottleneck", "conv")
_FITS = {
    "low-rank": "no linear, convolution or transformer layer is without one",
    "bottleneck": "it has no repeated blocks with linear layers, as a transformer has; "
    "kind 'low-rank' fits any model",
    "conv": "it has no repeated blocks with convolutions, as a ResNet has; "
    "kind 'low-rank' fits any model",
}


def adapt(module: nn.Module, rank: int = 4, layers: str = "*", kind: str = "low-rank") -> nn.Module:
    """A copy of `module` with adapters.

    "low-rank": of `rank` at its linear, convolution and transformer layers; it starts as the same
    function, and a transformer layer has one adapter as a whole. "bottleneck": after the sublayers
    of a transformer, of inner width `rank`. "conv": 1x1 convolutions in the blocks of a ResNet,
    without a rank. `layers` are names of layers or patterns ("hidden*,head").

    >>> module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    >>> module = adapt(module, rank=2, layers="0")
    >>> [(name, p.numel()) for name, p in module.named_parameters()][:4]
    [('0.layer.weight', 30), ('0.layer.bias', 5), ('0.adapter.down', 12), ('0.adapter.up', 10)]
    >>> adapt(module, layers="head")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    idiolect.core.knobs.SettingError: layers: 'head' matches no layer ...; names or patterns of: 2
    """
    rank = check("rank", rank, knob(4, "the inner width of an adapter", low=1), int)
    kind = check("kind", kind, knob("low-rank", "the kind of adapter", choices=KINDS), str)
    module = copy.deepcopy(module)
    places = sublayers.PLACES.get(kind, _adaptable)
    make = sublayers.MAKE.get(kind, _low_rank)
    chosen = _chosen(places(module), layers, kind)
    for name, _ in module.named_parameters():
        owner = module.get_submodule(name.rpartition(".")[0])
        if fnmatchcase(name, ADAPTER) and not isinstance(owner, Adapter):
            raise SettingError(
                f"module: the name {name!r} is not accepted; "
                "names with 'adapter.' are for what adapt adds"
            )
    made: dict[nn.Module, Adapted] = {}
    for name, layer in chosen.items():
        if isinstance(next(layer.parameters()), nn.parameter.UninitializedParameter):
            raise SettingError(
                f"module: layer {name!r} is lazy; run the module once so that its sizes are known"
            )
        made[layer] = made.get(layer) or Adapted(layer, make(layer, rank))
        if not name:
            return made[layer]
        parent, _, child = name.rpartition(".")
        setattr(module.get_submodule(parent), child, made[layer])
    if kind == "bottleneck":
        sublayers.call_every_layer(module)
    return module


def _chosen(found: dict[str, nn.Module], layers: str, kind: str) -> dict[str, nn.Module]:
    """Those of the layers that the patterns name."""
    patterns = [p.strip() for p in layers.split(",")]
    chosen = {
        name: layer for name, layer in found.items() if any(fnmatchcase(name, p) for p in patterns)
    }
    if not chosen:
        known = ", ".join(name or "* (the module is one layer)" for name in found)
        raise SettingError(
            f"layers: {layers!r} matches no layer that can have an adapter of kind {kind!r}; "
            f"names or patterns of: {known or f'none ({_FITS[kind]})'}"
        )
    return chosen
