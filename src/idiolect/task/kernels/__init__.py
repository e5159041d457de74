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

from typing import TYPE_CHECKING

from torch import nn

from ...core.knobs import SettingError
from ..buffers import Statistics
from ..layout import Layout
from .graph import Layer, has_dropout, layer_chain
from .mapped import Compiled, Unmappable, Vmapped, one_loss
from .rows import Rows
from .sample_sums import SampleSums
from .stacked import Stacked

if TYPE_CHECKING:
    from ..trial import Behaviour

__all__ = [
    "KERNELS",
    "Compiled",
    "Kernel",
    "Rows",
    "SampleSums",
    "Stacked",
    "Unmappable",
    "Vmapped",
    "choose",
    "has_dropout",
    "layer_chain",
    "needs_rows",
    "one_loss",
]

KERNELS = ("auto", "stacked", "vmap", "rows", "compiled")
Kernel = Stacked | Vmapped | Rows


def choose(
    module: nn.Module,
    layout: Layout,
    behaviour: Behaviour,
    kernel: str = "auto",
    statistics: Statistics | None = None,
) -> Kernel:
    """The kernel of that name for a module, or a SettingError that names the possible ones.

    "auto" is the fixed rule: rows for what needs each client by itself (`needs_rows`); for a chain
    of linear layers stacked; for convolutions and LSTM layers on a CPU rows; else vmap.
    """
    if kernel not in KERNELS:
        raise SettingError(f"kernel must be one of {', '.join(KERNELS)}, got {kernel!r}")
    reason = needs_rows(behaviour, statistics)
    layers = None if reason else layer_chain(module)
    if kernel == "auto":
        kernel = _fixed_rule(module, layout, bool(reason), layers)
    if reason and kernel != "rows":
        raise SettingError(f"kernel must be 'rows' or 'auto', got {kernel!r}: {reason}")
    if kernel == "stacked":
        if layers is None:
            raise SettingError(
                "kernel: 'stacked' needs a chain of linear layers and activations; "
                "this model takes 'vmap', 'rows' or 'compiled'"
            )
        return Stacked(module, layers, layout)
    if kernel == "rows":
        return Rows(module, layout, behaviour, statistics)
    return Compiled(module, layout) if kernel == "compiled" else Vmapped(module, layout)


def needs_rows(behaviour: Behaviour, statistics: Statistics | None) -> str:
    """Why models must be trained one after the other, each on its client's real samples alone."""
    if statistics:
        return f"each client has running statistics of its own ({statistics.layout.names[0]})"
    if behaviour.draws or behaviour.draws_in_use:
        return "the model or its loss draws random numbers, of which each client has its own"
    if behaviour.mixes:
        return "in training, the model's output for a sample depends on the samples beside it"
    if behaviour.compares:
        return "the loss of a sample depends on the samples beside it"
    if not behaviour.maps:
        return "torch.func cannot map the model, or its loss, over clients"
    return ""


_ONE_BY_ONE = (nn.modules.conv._ConvNd, nn.LSTM)  # faster row by row on a CPU


def _fixed_rule(
    module: nn.Module, layout: Layout, by_rows: bool, layers: list[Layer] | None
) -> str:
    if by_rows:
        return "rows"
    if layers:
        return "stacked"
    one_by_one = any(isinstance(m, _ONE_BY_ONE) for m in module.modules())
    return "rows" if one_by_one and layout.device.type == "cpu" else "vmap"
