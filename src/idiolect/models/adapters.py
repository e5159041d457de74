"""Adapters: low-rank modules at the layers of any model, for the part that each client keeps.

A linear layer or a convolution becomes y = layer(x) + B A x (LoRA, Hu et al. 2022). After a
transformer layer comes the bottleneck y + B gelu(A y) of Houlsby et al. 2019, because attention
reads the weights of its linear layers without calling them. A is random and B zero, so that an
adapted model starts as the same function. What was `head.weight` is then `head.layer.weight`, next
to `head.adapter.down` (A) and `head.adapter.up` (B); `Task.split("adapter")` selects A and B.
"""

from __future__ import annotations

import copy
from fnmatch import fnmatchcase
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.knobs import SettingError, check, knob


class Adapter(nn.Module):
    """B A x: from `inputs` features to `rank` of them and to `outputs`."""

    def __init__(
        self, inputs: int, outputs: int, rank: int, like: Tensor, kernel: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        # Parameters and not layers, so that they belong to "adapter" itself: Task.split("output")
        # passes over it by that name.
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


class ConvAdapter(Adapter):
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


class Bottleneck(Adapter):
    """B gelu(A y)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.gelu(F.linear(x, self.down)), self.up)


class Adapted(nn.Module):
    """A layer with an adapter beside it, or after it where it is a layer of a transformer."""

    layer: nn.Module
    adapter: Adapter

    def __init__(self, layer: nn.Module, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.adapter = _adapter(layer, rank)
        self.training = layer.training
        self.adapter.training = layer.training

    def forward(self, x: Tensor, *others: Any, **named: Any) -> Tensor:
        y = self.layer(x, *others, **named)
        return y + self.adapter(y if isinstance(self.adapter, Bottleneck) else x)

    def __getattr__(self, name: str) -> Any:
        """Attributes of the layer can still be read.

        nn.TransformerEncoder reads `self_attn`, a user's code may read `out_features`.
        """
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)


BLOCKS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def _adapter(layer: nn.Module, rank: int) -> Adapter:
    if isinstance(layer, BLOCKS):
        width = layer.linear1.in_features
        return Bottleneck(width, width, rank, layer.linear1.weight)
    if isinstance(layer, nn.Conv2d):
        return ConvAdapter(layer, rank)
    assert isinstance(layer, nn.Linear)
    return Adapter(layer.in_features, layer.out_features, rank, layer.weight)


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


def adapt(module: nn.Module, rank: int = 4, layers: str = "*") -> nn.Module:
    """A copy of `module` with adapters of `rank` at its linear, convolution and transformer layers.

    It starts as the same function. `layers` are names of layers or patterns ("hidden*,head"). A
    transformer layer has one adapter as a whole.

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
    module = copy.deepcopy(module)
    found = _adaptable(module)
    patterns = [p.strip() for p in layers.split(",")]
    chosen = {
        name: layer for name, layer in found.items() if any(fnmatchcase(name, p) for p in patterns)
    }
    if not chosen:
        known = ", ".join(name or "* (the module is one layer)" for name in found)
        known = known or "none (no linear, convolution or transformer layer is without one)"
        raise SettingError(
            f"layers: {layers!r} matches no layer that can have an adapter; "
            f"names or patterns of: {known}"
        )
    for name, _ in module.named_parameters():
        owner = module.get_submodule(name.rpartition(".")[0])
        if fnmatchcase(name, "*adapter.*") and not isinstance(owner, Adapter):
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
        made[layer] = made.get(layer) or Adapted(layer, rank)
        if not name:
            return made[layer]
        parent, _, child = name.rpartition(".")
        setattr(module.get_submodule(parent), child, made[layer])
    return module
