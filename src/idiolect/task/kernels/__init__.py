"""The cohort gradient: how K models of one architecture are run and differentiated together.

Four ways with one meaning (they agree to rounding, which tests check):

- stacked   batched matrix products and a hand-written backward pass; for chains of linear layers
            and activations
- vmap      torch.func.vmap over the gradient of the module; for any module
- rows      one model after the other; fastest for convolutions on a CPU, where one batch already
            fills the core
- compiled  vmap through torch.compile; pays off in long runs only, so it is never chosen by itself

`choose` picks by a fixed rule from the layers and the device, never by a measurement, so the same
command gives the same bits.
"""

from __future__ import annotations

from torch import nn

from ...core.knobs import SettingError
from ..layout import Layout
from .graph import Layer, has_dropout, layer_chain
from .mapped import Compiled, Vmapped, one_loss
from .rows import Rows
from .stacked import Stacked

__all__ = [
    "KERNELS",
    "Compiled",
    "Kernel",
    "Rows",
    "Stacked",
    "Vmapped",
    "choose",
    "has_dropout",
    "layer_chain",
    "one_loss",
]

KERNELS = ("auto", "stacked", "vmap", "rows", "compiled")
Kernel = Stacked | Vmapped | Rows


def choose(module: nn.Module, layout: Layout, kernel: str = "auto") -> Kernel:
    """The kernel of that name for a module, or a SettingError that says which ones it can have.

    "auto" is the fixed rule: with dropout rows; for a chain of linear layers stacked; for
    convolutions on a CPU rows; else vmap.
    """
    if kernel not in KERNELS:
        raise SettingError(f"kernel: {kernel!r} is not accepted; one of {', '.join(KERNELS)}")
    random = has_dropout(module)
    layers = None if random else layer_chain(module)
    if kernel == "auto":
        kernel = _fixed_rule(module, layout, random, layers)
    if random and kernel != "rows":
        raise SettingError(
            f"kernel: {kernel!r} cannot give each client its own dropout; "
            "a model with dropout needs kernel 'rows'"
        )
    if kernel == "stacked":
        if layers is None:
            raise SettingError(
                "kernel: 'stacked' needs a chain of linear layers and activations; "
                "this model takes 'vmap', 'rows' or 'compiled'"
            )
        return Stacked(layers, layout)
    if kernel == "rows":
        return Rows(module, layout, random)
    return Compiled(module, layout) if kernel == "compiled" else Vmapped(module, layout)


def _fixed_rule(module: nn.Module, layout: Layout, random: bool, layers: list[Layer] | None) -> str:
    if random:
        return "rows"
    if layers:
        return "stacked"
    convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in module.modules())
    return "rows" if convolves and layout.device.type == "cpu" else "vmap"
