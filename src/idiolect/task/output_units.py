"""Modules with outputs in the user's units, of modules trained on standardised targets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .forward import forward
from .kernels.graph import layer_chain
from .target_scale import TargetScale, rescaled


def in_user_units(module: nn.Module, scale: TargetScale) -> nn.Module:
    """The module with outputs in the user's units; it may be changed.

    Spread and centre become part of the last layer where that is linear: the module keeps its
    class and the names of its parameters. Any other module is wrapped.

    >>> module = nn.Linear(1, 1)
    >>> before = module(torch.ones(1, 1))
    >>> after = in_user_units(module, TargetScale((150.0,), (75.0,)))(torch.ones(1, 1))
    >>> torch.allclose(after, before * 75 + 150)
    True
    """
    layers = [layer for layer in layer_chain(module) or [] if layer.kind]
    if layers and layers[-1].kind == "linear" and layers[-1].bias:
        weight = module.get_parameter(layers[-1].weight)
        bias = module.get_parameter(layers[-1].bias)
        if len(bias) == len(scale.centre):
            with torch.no_grad():
                centre, spread = (t.reshape(-1) for t in scale.tensors(bias))
                weight.mul_(spread.unsqueeze(1))
                bias.mul_(spread).add_(centre)
            return module
    return OutputsInUnits(module, *scale.tensors(next(module.parameters())))


class OutputsInUnits(nn.Module):
    """A module trained on standardised targets, with its outputs times a spread plus a centre.

    Both are buffers: its state_dict is that of the whole, and does not fit the module inside.
    """

    target_centre: Tensor
    target_spread: Tensor

    def __init__(self, module: nn.Module, centre: Tensor, spread: Tensor):
        super().__init__()
        self.module = module
        self.register_buffer("target_centre", centre.clone())
        self.register_buffer("target_spread", spread.clone())

    def forward(self, *args: Any, **named: Any) -> Any:
        inputs = named or (args[0] if len(args) == 1 else args)
        outputs = forward(self.module, inputs)
        return rescaled(outputs, self.target_centre, self.target_spread, lead=1)
