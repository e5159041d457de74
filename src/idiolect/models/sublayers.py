"""The adapters of Pillutla et al. (ICML 2022), as their public code has them.

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

import torch.nn.functional as F
from torch import Tensor, nn

from ..core.parts import blocks_of, is_attention
from .adapted import Adapted, Adapter

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


def after_sublayer(layer: nn.Module, rank: int) -> Adapter:
    """The adapter after attention, or after the linear layer that ends a sublayer."""
    if isinstance(layer, nn.MultiheadAttention):
        return SublayerAdapter(layer.embed_dim, rank, layer.out_proj.weight.detach())
    assert isinstance(layer, nn.Linear)
    return SublayerAdapter(layer.out_features, rank, layer.weight.detach())


def after_convolution(layer: nn.Module, rank: int) -> Adapter:
    """The adapter after a convolution; it has no rank."""
    assert isinstance(layer, nn.Conv2d)
    channels = layer.out_channels
    fits = (g for g in GROUPS if channels % g == 0 and channels // g >= CHANNELS)
    return PointwiseAdapter(channels, next(fits, 1), layer.weight.detach())


def sublayers_of(module: nn.Module) -> dict[str, nn.Module]:
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


def convolutions_of(module: nn.Module) -> dict[str, nn.Module]:
    """The convolutions of residual blocks, shortcuts (1x1) apart, by name and in order."""
    return {
        f"{path}.{name}": layer
        for path, _ in blocks_of(module)
        for name, layer in module.get_submodule(path).named_modules()
        if isinstance(layer, nn.Conv2d)
        and max(layer.kernel_size) > 1
        and not _has_one(module, f"{path}.{name}")
    }


def call_every_layer(module: nn.Module) -> None:
    """Let torch's transformer layers call what is in them also where no gradient is needed.

    Their short cut for inference reads the weights of the layers inside and would pass over the
    adapters.
    """
    for layer in module.modules():
        if isinstance(layer, nn.TransformerEncoderLayer):
            layer.activation_relu_or_gelu = 0  # one of the conditions of the short cut
        if isinstance(layer, nn.TransformerEncoder):
            layer.use_nested_tensor = False


PLACES = {"bottleneck": sublayers_of, "conv": convolutions_of}
MAKE = {"bottleneck": after_sublayer, "conv": after_convolution}
