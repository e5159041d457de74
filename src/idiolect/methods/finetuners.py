"""Solvers for a client's private part: w ≈ argmin f(θ, w), all rows at once (FFGG, line 4 of Algorithm 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..batches import Batch, Batches
from ..task import Split, Task

SOLVERS = ("sgd", "gd", "adam", "cg", "newton")
STARTS = ("random", "common", "kept")


def start(task: Task, split: Split, kept: Tensor, batches: Batches, how: str) -> Tensor:  # -> w[K, d_w]
    """Where the private part starts: a new random initialisation each round, the initial one, or where it was."""
    if how == "kept":
        return kept
    if how == "common":
        return split.parts(task.x0)[1].repeat(batches.rows, 1)
    return split.parts(task.draw(batches.keys("private start")))[1]


def solve(task: Task, split: Split, theta: Tensor, w: Tensor, batches: Batches, solver: str, lr: float, steps: int) -> Tensor:
    """sgd and adam take a fresh mini-batch a step; gd, cg and newton work on one (use batching "full" to mean all data).

    newton is one step with the whole Hessian of w, cg at most `steps` conjugate-gradient steps on the same system: both are
    exact for a quadratic loss.
    """
    if not w.shape[-1] or not steps:
        return w
    if solver in ("cg", "newton"):
        batch = batches.draw()
        x = split.join(theta, w)
        g = split.parts(task.grad(x, batch))[1]
        product = _Hessian(task, split, x, batch)
        return w - (_conjugate(product, g, steps) if solver == "cg" else torch.linalg.solve(product.matrix(w.shape[-1]), g))
    fixed = batches.draw() if solver == "gd" else None
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for t in range(1, steps + 1):
        g = split.parts(task.grad(split.join(theta, w), fixed or batches.draw()))[1]
        if solver == "adam":  # Kingma and Ba 2015, defaults
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            g = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        w = torch.add(w, g, alpha=-lr)
    return w


class _Hessian:
    """v -> ∇²_ww f v, through the Hessian-vector product of the whole model."""

    def __init__(self, task: Task, split: Split, x: Tensor, batch: Batch):
        self.task, self.split, self.x, self.batch = task, split, x, batch

    def __call__(self, v: Tensor) -> Tensor:
        full = self.split.join(self.x.new_zeros(len(self.x), len(self.split.theta)), v)
        return self.split.parts(self.task.hvp(self.x, full, self.batch))[1]

    def matrix(self, size: int) -> Tensor:  # -> [K, d_w, d_w]
        eye = torch.eye(size, dtype=self.x.dtype, device=self.x.device)
        return torch.stack([self(e.expand(len(self.x), -1)) for e in eye], dim=-1)


def _conjugate(product: _Hessian, b: Tensor, steps: int) -> Tensor:
    """At most `steps` conjugate-gradient steps on H z = b, every row its own; a solved row stays."""
    z, r = torch.zeros_like(b), b
    p, rr = r, (r * r).sum(-1, keepdim=True)
    done = rr <= torch.finfo(b.dtype).eps ** 2 * rr
    for _ in range(steps):
        hp = product(p)
        curvature = (p * hp).sum(-1, keepdim=True)
        done = done | (curvature <= 0) | (rr == 0)
        alpha = torch.where(done, 0, rr / torch.where(done, 1, curvature))
        z, r = z + alpha * p, r - alpha * hp
        new = (r * r).sum(-1, keepdim=True)
        p = r + torch.where(done, 0, new / torch.where(rr > 0, rr, 1)) * p
        rr = torch.where(done, rr, new)
    return z
