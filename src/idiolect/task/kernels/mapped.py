"""Kernels "vmap" and "compiled": the gradient of one model, mapped over rows by torch.func."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ...core.knobs import SettingError
from ..batches import Batch
from ..layout import Layout
from ..losses import Loss, spread


def one_loss(module: nn.Module, layout: Layout, loss: Loss) -> Callable[..., Tensor]:
    """The mini-batch loss of one model as a function of its flat vector, for torch.func."""

    def value(flat: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        out = functional_call(module, layout.unflatten(flat), (inputs,))
        return (loss.each(out, targets) * weights).sum()

    return value


class Vmapped:
    """The gradient of one model, mapped over rows; for any module without random numbers."""

    name = "vmap"

    def __init__(self, module: nn.Module, layout: Layout):
        self.module = module
        self.layout = layout
        self._run = vmap(
            lambda flat, inputs: functional_call(module, layout.unflatten(flat), (inputs,))
        )
        self._grads: dict[Loss, Callable[..., Tensor]] = {}

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        # Nothing in the module is random, and torch's fast path for evaluation cannot be mapped.
        self.module.train()
        return self._run(x, inputs)

    def grad(self, x: Tensor, batch: Batch, loss: Loss) -> Tensor:
        if loss not in self._grads:
            self._grads[loss] = self._prepare(vmap(grad(one_loss(self.module, self.layout, loss))))
        self.module.train()
        try:
            return self._grads[loss](
                x.contiguous(), batch.inputs, batch.targets, spread(batch.weights, batch.targets)
            )
        except RuntimeError as error:
            if "randomness" not in str(error):
                raise
            raise SettingError(
                f"kernel: {self.name!r} cannot give each client its own random numbers; "
                "this model needs kernel 'rows'"
            ) from None

    def _prepare(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return function


class Compiled(Vmapped):
    """As `Vmapped`, with the gradient compiled by torch.compile."""

    name = "compiled"

    def _prepare(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return torch.compile(function)
