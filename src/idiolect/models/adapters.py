"""Adapters: small modules at the layers of any model, for the part that each client keeps.

Low-rank: a linear layer or a convolution becomes y = layer(x) + B A x (LoRA, Hu et al. 2022). After
a transformer layer comes the bottleneck y + B gelu(A y) of Houlsby et al. 2019, because attention
reads the weights of its linear layers without calling them. A is random and B zero, so that an
adapted model starts as the same function. What was `head.weight` is then `head.layer.weight`, next
to `head.adapter.down` (A) and `head.adapter.up` (B); `Task.split("adapter")` selects A and B.

"bottleneck" and "conv" are the adapters of Pillutla et al. (ICML 2022), as in their public code.
Bottleneck: after each sublayer of a transformer block, attention and the linear layers at every
position, y becomes y + U relu(D y + a) + b (Houlsby et al. 2019), weights of standard deviation
0.01. Conv: after each 3x3 convolution of a residual block, y becomes y + C norm(y), a 1x1
convolution behind a group norm (Rebuffi et al. 2017), weights of standard deviation 1e-4. So an
adapted model starts near the same function, not at it. The norms of the model itself go with the
adapters where a method has part="adapter,norms", as in their experiments.

Sublayers are found in the blocks (core/parts.py): attention by its class or its name, whose last
linear layer leads back to the width of the model, as the last one of the other linear layers does.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.knobs import SettingError, check, knob
from ..core.parts import ADAPTER, blocks_of, is_attention


class Adapter(nn.Module):
    """What is added at a layer. All parameters are its own: they are called adapter.*"""

    after: ClassVar[bool] = False  # whether it reads what the layer gives, not what it is given


class Adapted(nn.Module):
    """A layer with an adapter beside it, or after it."""

    layer: nn.Module
    adapter: Adapter

    def __init__(self, layer: nn.Module, adapter: Adapter) -> None:
        super().__init__()
        self.layer = layer
        self.adapter = adapter
        self.training = layer.training
        self.adapter.training = layer.training

    def forward(self, x: Tensor, *others: Any, **named: Any) -> Any:
        y = self.layer(x, *others, **named)
        if isinstance(y, tuple):  # attention, with its weights behind
            return (y[0] + self.adapter(y[0]), *y[1:])
        return y + self.adapter(y if self.adapter.after else x)

    def __getattr__(self, name: str) -> Any:
        """Attributes of the layer can still be read.

        nn.TransformerEncoder reads `self_attn`, a user's code may read `out_features`.
        """
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)


# -- low-rank: at every layer ----------------------------------------------------------------------
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


# -- adapters of Pillutla et al. -------------------------------------------------------------------
BOTTLENECK_STD = 0.01
CONV_STD = 1e-4
GROUPS = (32, 16, 8, 4, 2, 1)
CHANNELS = 8  # the least of a group


class SublayerAdapter(Adapter):
    """U relu(D y + a) + b."""

    after = True

    def __init__(self, width: int, rank: int, like: Tensor) -> None:
        super().__init__()
        self.down = nn.Parameter(like.new_empty(rank, width))
        self.down_bias = nn.Parameter(like.new_empty(rank))
        self.up = nn.Parameter(like.new_empty(width, rank))
        self.up_bias = nn.Parameter(like.new_empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight in (self.down, self.up):
            nn.init.normal_(weight, std=BOTTLENECK_STD)
        for bias in (self.down_bias, self.up_bias):
            nn.init.zeros_(bias)

    def forward(self, y: Tensor) -> Tensor:
        return F.linear(F.linear(y, self.down, self.down_bias).relu(), self.up, self.up_bias)


class PointwiseAdapter(Adapter):
    """C norm(y): a 1x1 convolution of the channels, behind a group norm."""

    after = True

    def __init__(self, channels: int, groups: int, like: Tensor) -> None:
        super().__init__()
        self.groups = groups
        self.scale = nn.Parameter(like.new_empty(channels))
        self.shift = nn.Parameter(like.new_empty(channels))
        self.up = nn.Parameter(like.new_empty(channels, channels, 1, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.ones_(self.scale)
        nn.init.zeros_(self.shift)
        nn.init.normal_(self.up, std=CONV_STD)

    def forward(self, y: Tensor) -> Tensor:
        return F.conv2d(F.group_norm(y, self.groups, self.scale, self.shift), self.up)


def _after_sublayer(layer: nn.Module, rank: int) -> Adapter:
    """The adapter after attention, or after the linear layer that ends a sublayer."""
    if isinstance(layer, nn.MultiheadAttention):
        return SublayerAdapter(layer.embed_dim, rank, layer.out_proj.weight.detach())
    assert isinstance(layer, nn.Linear)
    return SublayerAdapter(layer.out_features, rank, layer.weight.detach())


def _after_convolution(layer: nn.Module, rank: int) -> Adapter:
    """The adapter after a convolution; it has no rank."""
    assert isinstance(layer, nn.Conv2d)
    channels = layer.out_channels
    fits = (g for g in GROUPS if channels % g == 0 and channels // g >= CHANNELS)
    return PointwiseAdapter(channels, next(fits, 1), layer.weight.detach())


def _sublayers_of(module: nn.Module) -> dict[str, nn.Module]:
    """The modules that end the sublayers of a transformer's blocks, by name and in order."""
    return {
        f"{path}.{name}": layer
        for path, stacked in blocks_of(module)
        if stacked
        for name, layer in _ends(module.get_submodule(path)).items()
        if not _has_one(module, f"{path}.{name}")
    }


def _ends(block: nn.Module) -> dict[str, nn.Module]:
    """What ends attention, wherever it is in a block, and the last linear layer outside of it."""
    ends: dict[str, nn.Module] = {}
    outside: dict[str, nn.Module] = {}
    within = ""  # the attention that the walk is in
    for name, layer in block.named_modules():
        if within and name.startswith(f"{within}."):
            continue
        if name and is_attention(layer):
            within = name
            last = _last_linear(name, layer)
            if last is not None:
                ends[last[0]] = last[1]
        elif isinstance(layer, nn.Linear):
            outside = {name: layer}
    return ends | outside


def _last_linear(path: str, attention: nn.Module) -> tuple[str, nn.Module] | None:
    if isinstance(attention, nn.MultiheadAttention):  # it never calls the layers inside
        return path, attention
    inside = [
        (f"{path}.{name}", layer)
        for name, layer in attention.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    return inside[-1] if inside else None


def _has_one(module: nn.Module, name: str) -> bool:
    """Whether a layer has an adapter already."""
    parent = name.rpartition(".")[0]
    return bool(parent) and isinstance(module.get_submodule(parent), Adapted)


def _convolutions_of(module: nn.Module) -> dict[str, nn.Module]:
    """The convolutions of residual blocks, shortcuts (1x1) apart, by name and in order."""
    return {
        f"{path}.{name}": layer
        for path, _ in blocks_of(module)
        for name, layer in module.get_submodule(path).named_modules()
        if isinstance(layer, nn.Conv2d)
        and max(layer.kernel_size) > 1
        and not _has_one(module, f"{path}.{name}")
    }


# -- a copy of a model with adapters --------------------------------------------------------------
@dataclass(frozen=True)
class AdapterKind:
    """Where adapters go, how they are made, and why a model may have no place for them."""

    places: Callable[[nn.Module], dict[str, nn.Module]]
    make: Callable[[nn.Module, int], Adapter]  # layer, rank
    unfit: str


_BY_NAME = {
    "low-rank": AdapterKind(
        _adaptable, _low_rank, "no linear, convolution or transformer layer is without one"
    ),
    "bottleneck": AdapterKind(
        _sublayers_of,
        _after_sublayer,
        "it has no repeated blocks with linear layers, as a transformer has; "
        "kind 'low-rank' fits any model",
    ),
    "conv": AdapterKind(
        _convolutions_of,
        _after_convolution,
        "it has no repeated blocks with convolutions, as a ResNet has; "
        "kind 'low-rank' fits any model",
    ),
}
KINDS = tuple(_BY_NAME)


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
    layers_by_name = _matching(_BY_NAME[kind].places(module), layers, kind)
    for name, _ in module.named_parameters():
        owner = module.get_submodule(name.rpartition(".")[0])
        if fnmatchcase(name, ADAPTER) and not isinstance(owner, Adapter):
            raise SettingError(
                "module must have no names with 'adapter.', which are for what adapt adds, got "
                f"{name!r}"
            )
    adapted: dict[nn.Module, Adapted] = {}
    for name, layer in layers_by_name.items():
        if isinstance(next(layer.parameters()), nn.parameter.UninitializedParameter):
            raise SettingError(
                f"module: layer {name!r} is lazy; run the module once so that its sizes are known"
            )
        adapted[layer] = adapted.get(layer) or Adapted(layer, _BY_NAME[kind].make(layer, rank))
        if not name:
            return adapted[layer]
        parent, _, child = name.rpartition(".")
        setattr(module.get_submodule(parent), child, adapted[layer])
    if kind == "bottleneck":
        _call_every_layer(module)
    return module


def _matching(layers_by_name: dict[str, nn.Module], layers: str, kind: str) -> dict[str, nn.Module]:
    """Those of the layers that the patterns name."""
    patterns = [p.strip() for p in layers.split(",")]
    matches = {
        name: layer
        for name, layer in layers_by_name.items()
        if any(fnmatchcase(name, p) for p in patterns)
    }
    if not matches:
        names = ", ".join(name or "* (the module is one layer)" for name in layers_by_name)
        raise SettingError(
            f"layers: {layers!r} matches no layer that can have an adapter of kind {kind!r}; "
            f"names or patterns of: {names or f'none ({_BY_NAME[kind].unfit})'}"
        )
    return matches


def _call_every_layer(module: nn.Module) -> None:
    """Let torch's transformer layers call what is in them also where no gradient is needed.

    Their short cut for inference reads the weights of the layers inside and would pass over the
    adapters.
    """
    for layer in module.modules():
        if isinstance(layer, nn.TransformerEncoderLayer):
            layer.activation_relu_or_gelu = 0  # one of the conditions of the short cut
        if isinstance(layer, nn.TransformerEncoder):
            layer.use_nested_tensor = False
