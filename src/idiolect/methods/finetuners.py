"""Solvers for a client's private part: w ≈ argmin f(θ, w), all rows at once (FFGG, line 4 of Algorithm 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..task.batches import Batch
from ..task.here import Here
from ..task.split import Split
from ..task.task import Task

SOLVERS = ("sgd", "gd", "adam", "cg", "newton")
STARTS = ("random", "common", "kept")


def start(task: Task, split: Split, kept: Tensor, here: Here, how: str) -> Tensor:  # -> w[K, d_w]
    """Where the private part starts: a new random initialisation each round, the initial one, or where it was."""
    if how == "kept":
        return kept
    if how == "common":
        return split.parts(task.x0)[1].repeat(here.rows, 1)
    return split.parts(task.draw(here.keys("private start")))[1]


def solve(
    task: Task,
    split: Split,
    theta: Tensor,
    w: Tensor,
    here: Here,
    solver: str,
    lr: float,
    steps: int,
) -> Tensor:
    """sgd and adam take a fresh mini-batch a step; gd, cg and newton work on one (use batching "full" to mean all data).

    newton is one step with the whole Hessian of w, cg at most `steps` conjugate-gradient steps on the same system: both are
    exact for a quadratic loss.
    """
    if not w.shape[-1] or not steps:
        return w
    if solver in ("cg", "newton"):
        batch = here.draw()
        x = split.join(theta, w)
        g = split.parts(task.grad(x, batch))[1]
        product = _Hessian(task, split, x, batch)
        return w - (_conjugate(product, g, steps) if solver == "cg" else product.newton(g))
    fixed = here.draw() if solver == "gd" else None
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for t in range(1, steps + 1):
        g = split.parts(task.grad(split.join(theta, w), fixed or here.draw()))[1]
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

    def newton(self, g: Tensor) -> Tensor:
        """H⁺ g with the whole Hessian: where many w fit, the one nearest to the start."""
        eye = torch.eye(g.shape[-1], dtype=g.dtype, device=g.device)
        matrix = torch.stack(
            [self(e.expand(len(self.x), -1)) for e in eye], dim=-1
        )  # [K, d_w, d_w]
        return (
            torch.linalg.pinv(matrix, rtol=1e3 * torch.finfo(g.dtype).eps, hermitian=True)
            @ g.unsqueeze(-1)
        ).squeeze(-1)


def _conjugate(product: _Hessian, b: Tensor, steps: int) -> Tensor:
    """At most `steps` conjugate-gradient steps on H z = b, every row its own.

    A row stays where it is once its residual is at rounding level or its direction has no curvature beyond rounding.
    """
    tiny = 1e3 * torch.finfo(b.dtype).eps
    z, r, p = torch.zeros_like(b), b, b
    rr = first = (r * r).sum(-1, keepdim=True)
    steepest, done = torch.zeros_like(rr), rr == 0
    for _ in range(steps):
        hp = product(p)
        curvature, pp = (p * hp).sum(-1, keepdim=True), (p * p).sum(-1, keepdim=True)
        steepest = torch.maximum(
            steepest, torch.where(done, 0, curvature / torch.where(pp > 0, pp, 1))
        )
        done = done | (curvature <= tiny * steepest * pp) | (rr <= tiny**2 * first)
        alpha = torch.where(done, 0, rr / torch.where(done, 1, curvature))
        z, r = z + alpha * p, r - alpha * hp
        new = torch.where(done, rr, (r * r).sum(-1, keepdim=True))
        p = torch.where(done, p, r + new / torch.where(rr > 0, rr, 1) * p)
        rr = new
    return z
