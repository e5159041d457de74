"""Robust regression in a subspace: smooth, not convex, and known well enough for theorems.

f̃_k(x; (ξ, y)) = φ(ξ^T x - y) with the loss of Geman and McClure, φ(r) = r² / (2 (1 + r²)), and
features ξ = P^T a in the row space of P: the example that the lp-proj paper gives for its
Assumption 6. P has orthonormal rows, so that s = 0, and ||ξ|| = `radius`: every sample's loss is
L-smooth with L = radius², and gradients are bounded by max |φ'| radius.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from idiolect import projections
from idiolect.core.knobs import Knobs, knob
from idiolect.core.types import Tree
from idiolect.data.federation import Federation
from idiolect.task.losses import Loss, beside, logits
from idiolect.task.task import Task

STEEPEST = 3 * 3**0.5 / 16  # the largest |φ'|, at r² = 1/3


class GemanMcClure(Loss):
    """φ(r) = r² / (2 (1 + r²)) of the residual r: a sample far away hardly counts."""

    name = "geman_mcclure"

    def each(self, outputs: Tree, targets: Tree) -> Tensor:
        square = (beside(logits(outputs), targets) - targets) ** 2
        return 0.5 * square / (1 + square)

    def delta(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return (weights * slope(outputs.squeeze(1) - targets)).unsqueeze(1)


def slope(r: Tensor) -> Tensor:
    """φ'(r) = r / (1 + r²)²."""
    return r / (1 + r**2) ** 2


@dataclass(frozen=True)
class Robust(Knobs):
    """A federation whose clients have parameters of their own, and some wrong targets each."""

    clients: int = knob(10, "number of clients (N)", low=1)
    samples: int = knob(100, "samples per client", low=1)
    d: int = knob(30, "dimension", low=1)
    dim: int = knob(3, "dimension of the subspace that the features lie in (d_sub)", low=1)
    radius: float = knob(0.5, "length of every feature vector", above=0)
    norm: float = knob(2.0, "length of the common parameter vector", low=0)
    spread: float = knob(0.5, "standard deviation of a client's own parameters", low=0)
    noise: float = knob(0.1, "standard deviation of the targets", low=0)
    wrong: float = knob(0.1, "share of targets that are 3 too large", low=0, high=1)
    seed: int = knob(0, "seed of the data", low=0)

    @property
    def L(self) -> float:
        """φ'' is at most 1."""
        return self.radius**2

    @property
    def gradient_bound(self) -> float:
        """||∇f̃_k||² everywhere; so a bound of γ_f² and of σ_f²."""
        return (STEEPEST * self.radius) ** 2

    @cached_property
    def P(self) -> Tensor:  # [m, d]
        """Of seed 0, as lp-proj makes it with projection "orthogonal"."""
        spec = projections.Spec("orthogonal", self.dim)
        made = projections.make_projection(spec, (0, self.d), 0, torch.float64, torch.device("cpu"))
        return made.down(torch.eye(self.d, dtype=torch.float64)).T

    @cached_property
    def data(self) -> tuple[Tensor, Tensor]:
        """a[N, n, m] and y[N, n]."""
        rng = np.random.default_rng(self.seed)
        N, n, m = self.clients, self.samples, self.dim
        common = rng.standard_normal(m)
        own = self.norm * common / np.linalg.norm(common)
        own = own + self.spread * rng.standard_normal((N, m))
        a = rng.standard_normal((N, n, m))
        a *= self.radius / np.linalg.norm(a, axis=-1, keepdims=True)
        y = np.einsum("knm,km->kn", a, own) + self.noise * rng.standard_normal((N, n))
        y += 3.0 * (rng.random((N, n)) < self.wrong)
        return torch.from_numpy(a), torch.from_numpy(y)

    def federation(self, repetition: int = 0) -> Federation:
        """The data; clients have other names in another repetition (see `Means.federation`)."""
        a, y = self.data
        names = [f"{repetition} {k:05d}" for k in range(self.clients)]
        return Federation.from_arrays(
            (a @ self.P).flatten(0, 1),  # ξ = P^T a
            y.flatten(),
            np.repeat(names, self.samples),
            valid=0,
            test=0,
            name="robust",
        )

    def task(self) -> Task:
        """x starts at 0."""
        model = nn.Linear(self.d, 1, bias=False)
        nn.init.zeros_(model.weight)
        return Task(model, GemanMcClure())

    def tied(self, w: Tensor, lam: float) -> Tensor:  # w[T, m] -> [T, N, m]
        """P x̂_k(w), x̂_k = argmin f_k(x) + λ/2 ||w - P x||², for λ >= 4 L.

        By u <- w - ∇f_k(P^T u) / λ, which is a contraction by L / λ.
        """
        a, y = self.data
        w = w.unsqueeze(1)  # [T, 1, m]
        u = w.expand(-1, self.clients, -1)
        for _ in range(30):  # 4^-30 is less than a rounding error
            residual = torch.einsum("knm,tkm->tkn", a, u) - y
            u = w - torch.einsum("knm,tkn->tkm", a, slope(residual)) / (self.samples * lam)
        return u

    def gradients(self, w: Tensor, lam: float) -> Tensor:  # w[T, m] -> [T, m]
        """∇F(w) = mean_k λ (w - P x̂_k(w))."""
        return lam * (w - self.tied(w, lam).mean(1))

    def value(self, w: Tensor, lam: float) -> Tensor:  # w[T, m] -> [T]
        """F(w) >= 0."""
        a, y = self.data
        u = self.tied(w, lam)
        square = (torch.einsum("knm,tkm->tkn", a, u) - y) ** 2
        own = (0.5 * square / (1 + square)).mean(-1)
        return (own + 0.5 * lam * (w.unsqueeze(1) - u).square().sum(-1)).mean(-1)
