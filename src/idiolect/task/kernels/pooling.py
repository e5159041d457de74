"""2x2 max pooling on a CPU in half the time of torch's, with the same values and gradients.

In LeNet, torch's pooling takes as long as the convolutions. Taking the larger of neighbouring
columns and then of neighbouring rows is two vectorised passes; comparing strictly in that order
picks the same element of a window as torch does, also among equal ones.
"""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class _Pool(torch.autograd.Function):
    """Values and gradients of 2x2 max pooling for even heights and widths."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:  # z[..., H, W], both even
        columns = torch.maximum(z[..., 0::2], z[..., 1::2])  # [..., H, W / 2]
        ctx.save_for_backward(z, columns)
        return torch.maximum(columns[..., 0::2, :], columns[..., 1::2, :])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> Tensor:
        z, columns = ctx.saved_tensors
        lower_is_larger = columns[..., 1::2, :] > columns[..., 0::2, :]
        of_columns = torch.empty_like(columns)
        _route(delta, lower_is_larger, of_columns[..., 0::2, :], of_columns[..., 1::2, :])
        right_is_larger = z[..., 1::2] > z[..., 0::2]
        of_z = torch.empty_like(z)
        _route(of_columns, right_is_larger, of_z[..., 0::2], of_z[..., 1::2])
        return of_z


def _route(delta: Tensor, second_is_larger: Tensor, first: Tensor, second: Tensor) -> None:
    """Send delta to the second of each pair where that was larger, else to the first."""
    torch.mul(delta, second_is_larger, out=second)
    torch.sub(delta, second, out=first)


class FastPool(nn.Module):
    """The same function as nn.MaxPool2d(2)."""

    def forward(self, z: Tensor) -> Tensor:
        return F.max_pool2d(z, 2) if z.shape[-1] % 2 or z.shape[-2] % 2 else _Pool.apply(z)


def _is_plain(layer: nn.Module) -> bool:
    """Whether a layer is nn.MaxPool2d(2) without padding, dilation or other options."""
    if type(layer) is not nn.MaxPool2d or layer.ceil_mode or layer.return_indices:
        return False
    want = {"kernel_size": 2, "stride": 2, "padding": 0, "dilation": 1}
    return all(getattr(layer, name) in (value, (value, value)) for name, value in want.items())


def with_fast_pooling(module: nn.Module) -> nn.Module:
    """A copy of the module with its 2x2 max pooling layers replaced.

    In a Sequential, pooling goes before a ReLU: the larger of max(0, a) and max(0, b) is
    max(0, the larger of a and b), gradients included, and leaves the ReLU a quarter of the work.

    >>> with_fast_pooling(nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)))
    Sequential(
      (0): FastPool()
      (1): ReLU()
    )
    """
    module = FastPool() if _is_plain(module) else copy.deepcopy(module)
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if _is_plain(child):
                setattr(parent, name, FastPool())
        if type(parent) is nn.Sequential:
            _pool_first(parent)
    return module


def _pool_first(sequence: nn.Sequential) -> None:
    """Swap every ReLU with the pooling that follows it."""
    layers = sequence._modules
    names = [name for name, _ in sequence.named_children()]
    for a, b in pairwise(names):
        if type(layers[a]) is nn.ReLU and type(layers[b]) is FastPool:
            layers[a], layers[b] = layers[b], layers[a]
