"""A model that is linear in its parameters, under the squared error: exact and fast derivatives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...task.batches import Batch
from ...task.kernels import Stacked
from ...task.kernels.graph import Layer
from ...task.layout import Layout
from ...task.losses import Loss
from ...task.numerics import Numerics
from ...task.task import Task


class Shared(nn.Linear):
    """θ: every start is 0."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)


class Private(nn.Linear):
    """w: a random start (Algorithm 2, line 1) is N(0, I)."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)


class Sum(nn.Module):
    """x -> θ · (first d_theta inputs) + w · (the others)."""

    def __init__(self, shared: int, private: int):
        super().__init__()
        self.theta = Shared(shared, 1, bias=False)
        self.w = Private(private, 1, bias=False)
        nn.init.zeros_(self.w.weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, torch.cat([self.theta.weight, self.w.weight], dim=1))


class QuadraticTask(Task):
    """`Sum` under half the squared error, as any task.

    θ and w side by side are one linear layer, so the kernel is "stacked", three times as fast as
    vmap; and the Hessian times v is a gradient at v with targets 0.
    """

    @classmethod
    def of(cls, shared: int, private: int) -> QuadraticTask:
        return cls(Sum(shared, private), "half_squared")

    def _prepare(self, model: Any, criterion: Loss, numerics: Numerics) -> None:
        stacked = numerics.kernel in ("auto", "stacked")
        super()._prepare(
            model, criterion, replace(numerics, kernel="auto") if stacked else numerics
        )
        self.numerics = numerics
        whole = Layout(("x",), (torch.Size([1, self.d]),), (0, self.d), self.device)
        self._linear = Stacked([Layer("linear", "x")], whole)
        if stacked:
            self._kernel = self._linear

    def hvp(self, x: Tensor, v: Tensor, batch: Batch) -> Tensor:
        """Hessian of each row's loss times v[K, d]; counts as two gradients, as in any task."""
        batch.tally.add_(2 if batch.active is None else 2 * batch.active.cpu())
        still = replace(batch, targets=torch.zeros_like(batch.targets))
        h = self._linear.grad(v, still, self.criterion)
        decay = self.numerics.weight_decay
        return h + decay * v if decay else h
