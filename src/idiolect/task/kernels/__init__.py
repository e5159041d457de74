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
from ..buffers import Statistics
from ..layout import Layout
from .graph import Layer, has_dropout, layer_chain
from .mapped import Compiled, Unmappable, Vmapped, one_loss
from .rows import Rows
from .stacked import Stacked

__all__ = [
    "KERNELS",
    "Compiled",
    "Kernel",
    "Rows",
    "Stacked",
    "Unmappable",
    "Vmapped",
    "choose",
    "has_dropout",
    "layer_chain",
    "one_loss",
]

KERNELS = ("auto", "stacked", "vmap", "rows", "compiled")
Kernel = Stacked | Vmapped | Rows


def choose(
    module: nn.Module,
    layout: Layout,
    kernel: str = "auto",
    statistics: Statistics | None = None,
) -> Kernel:
    """The kernel of that name for a module, or a SettingError that names the possible ones.

    "auto" is the fixed rule: with dropout or running statistics rows; for a chain of linear layers
    stacked; for convolutions and LSTM layers on a CPU rows; else vmap (and rows again where
    torch cannot map the module, which its first call shows: see `Task`).
    """
    if kernel not in KERNELS:
        raise SettingError(f"kernel must be one of {', '.join(KERNELS)}, got {kernel!r}")
    random = has_dropout(module)
    layers = None if random or statistics else layer_chain(module)
    if kernel == "auto":
        kernel = _fixed_rule(module, layout, random or bool(statistics), layers)
    if statistics and kernel != "rows":
        raise SettingError(
            f"kernel: {kernel!r} cannot keep the running statistics of each client; "
            f"a model with {statistics.layout.names[0]!r} needs kernel 'rows'"
        )
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
        return Rows(module, layout, random, statistics)
    return Compiled(module, layout) if kernel == "compiled" else Vmapped(module, layout)


_ONE_BY_ONE = (nn.modules.conv._ConvNd, nn.LSTM)  # faster row by row on a CPU


def _fixed_rule(
    module: nn.Module, layout: Layout, needs_rows: bool, layers: list[Layer] | None
) -> str:
    if needs_rows:
        return "rows"
    if layers:
        return "stacked"
    one_by_one = any(isinstance(m, _ONE_BY_ONE) for m in module.modules())
    return "rows" if one_by_one and layout.device.type == "cpu" else "vmap"
