"""A model that is linear in its parameters, under the squared error: exact and fast derivatives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idiolect.core import streams
from idiolect.task.batches import Batch
from idiolect.task.kernels import Stacked
from idiolect.task.kernels.graph import Layer
from idiolect.task.layout import Layout
from idiolect.task.losses import Loss
from idiolect.task.numerics import Numerics
from idiolect.task.task import Task


class Sum(nn.Module):
    """x -> θ · (first d_theta inputs) + w · (the others)."""

    def __init__(self, shared: int, private: int):
        super().__init__()
        self.theta = nn.Linear(shared, 1, bias=False)
        self.w = nn.Linear(private, 1, bias=False)
        nn.init.zeros_(self.theta.weight)
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

    def draw(self, keys: np.ndarray) -> Tensor:
        """A random start for each key (Algorithm 2, line 1): θ = 0 and w ~ N(0, I)."""
        shared = self.layout.span("w.weight")[0]
        x = self.x0.new_zeros(len(keys), self.d)
        x[:, shared:] = torch.from_numpy(streams.normal(keys, self.d - shared))
        return x

    def hvp(self, x: Tensor, v: Tensor, batch: Batch) -> Tensor:
        """Hessian of each row's loss times v[K, d]; counts as two gradients, as in any task."""
        batch.tally.add_(2 if batch.active is None else 2 * batch.active.cpu())
        still = replace(batch, targets=torch.zeros_like(batch.targets))
        h = self._linear.grad(v, still, self.criterion)
        decay = self.numerics.weight_decay
        return h + decay * v if decay else h
