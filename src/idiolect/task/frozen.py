"""Frozen parameters: held once, in their own precision, however many copies of a module there are.

A language model with adapters is a large frozen base and small trained parts. Copies of such a
module (one per thread, per seed, per personal model) share the base, and a base in a lower
precision than the adapters stays in it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


def frozen_parameters(module: nn.Module) -> list[nn.Parameter]:
    """The parameters that are not trained."""
    return [p for p in module.parameters() if not p.requires_grad]


def shared_copy(module: nn.Module, shared: Iterable[nn.Parameter] | None = None) -> nn.Module:
    """A copy of a module that has the frozen parameters in common with it, or those `shared`.

    >>> body = nn.Linear(3, 2).requires_grad_(False)
    >>> copied = shared_copy(nn.Sequential(body, nn.Linear(2, 1)))
    >>> copied[0].weight is body.weight, copied[1].weight.requires_grad
    (True, True)
    """
    parameters = frozen_parameters(module) if shared is None else shared
    return copy.deepcopy(module, {id(p): p for p in parameters})


@dataclass(frozen=True)
class Placement:
    """Where the tensors of a module go: a device and a precision.

    Tensors of the trained parameters' precision take that of the run; a base in another one keeps
    its own, as its author mixed them.
    """

    device: torch.device
    dtype: torch.dtype
    trained: frozenset[torch.dtype]  # the precisions of trained parameters

    @classmethod
    def of(cls, module: nn.Module, device: torch.device, dtype: torch.dtype) -> Placement:
        trained = frozenset(p.dtype for p in module.parameters() if p.requires_grad)
        return cls(device, dtype, trained)

    def keeps(self, t: Tensor) -> bool:
        """Whether a tensor is there already."""
        is_there = t.device.type == self.device.type and self.device.index in (
            None,
            t.device.index,
        )
        return is_there and t.dtype == self._dtype_of(t)

    def __call__(self, t: Tensor) -> Tensor:
        return t if self.keeps(t) else t.to(self.device, self._dtype_of(t))

    def _dtype_of(self, t: Tensor) -> torch.dtype:
        return self.dtype if t.is_floating_point() and t.dtype in self.trained else t.dtype


def placed(module: nn.Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """The module on a device and in a precision; frozen parameters that must change are copied."""
    placement = Placement.of(module, device, dtype)
    if all(placement.keeps(t) for t in (*module.parameters(), *module.buffers())):
        return module
    frozen = frozen_parameters(module)
    staying = [p for p in frozen if placement.keeps(p)]
    if len(staying) < len(frozen):
        module = shared_copy(module, staying)
    return module._apply(placement)


def has_own_precision(module: nn.Module) -> bool:
    """Whether frozen parameters have another precision than the trained ones."""
    trained = {p.dtype for p in module.parameters() if p.requires_grad}
    return any(p.is_floating_point() and p.dtype not in trained for p in frozen_parameters(module))
