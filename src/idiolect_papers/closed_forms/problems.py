"""Problems on which the assumptions of convergence theorems hold exactly.

`Means`: clients that estimate a mean each. f̃_k(x; ξ) = (h_k / 2) ||x - ξ||² for samples ξ around
the client's own c_k, so that f_k(x) = (h_k / 2) ||x - c_k||² + constant: every sample's loss is
min h-strongly convex and max h-smooth, the noise of its gradient h_k (c_k - ξ) is the same
everywhere, and all solutions are known (`linear_solutions` with H_k = h_k I and ŵ_k = c_k).

`Robust`: regression in a subspace, smooth and not convex. f̃_k(x; (ξ, y)) = φ(ξ^T x - y) with the
loss of Geman and McClure, φ(r) = r² / (2 (1 + r²)), and features ξ = P^T a in the row space of P:
the example that the lp-proj paper gives for its Assumption 6. P has orthonormal rows, so that
s = 0, and ||ξ|| = `radius`: every sample's loss is L-smooth with L = radius², and gradients are
bounded by max |φ'| radius.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from idiolect import Federation, Knobs, Task, knob, projections
from idiolect.task import Batch, Loss, Term, logits, shaped_as


def matrix_of(kind: str, dim: int, d: int, seed: int = 0) -> Tensor:  # -> P[dim, d]
    """The P of a run of lp-proj with this seed."""
    spec = projections.Spec(kind, dim)
    projection = projections.make_projection(spec, (0, d), seed, torch.float64, torch.device("cpu"))
    return projection.down(torch.eye(d, dtype=torch.float64)).T


@dataclass(frozen=True)
class Means(Knobs):
    """Quadratics of N clients in R^d, as an ordinary task and federation.

    >>> problem = Means(clients=3, samples=4, d=2)
    >>> x, y = problem.federation().part(0, "train")
    >>> torch.allclose(y.mean(0) / x[0], problem.centres[0])
    True
    """

    clients: int = knob(20, "number of clients (N)", low=1)
    samples: int = knob(100, "samples per client", low=2)
    d: int = knob(50, "dimension", low=1)
    low: float = knob(1.0, "smallest curvature h_k of a client (μ)", above=0)
    high: float = knob(3.0, "largest one (L)", above=0)
    common: float = knob(1.0, "every coordinate of the minimiser of the mean of the f_k")
    spread: float = knob(1.0, "standard deviation of a coordinate of c_k over clients", low=0)
    noise: float = knob(1.0, "standard deviation of a coordinate of a sample around c_k", low=0)
    seed: int = knob(0, "seed of the data", low=0)

    @cached_property
    def curvatures(self) -> Tensor:  # h[N]
        return torch.linspace(self.low, self.high, self.clients, dtype=torch.float64)

    @cached_property
    def centres(self) -> Tensor:  # c[N, d]
        """Around `common`, which is the minimiser of the mean of the f_k whatever `spread`."""
        away = torch.from_numpy(self._random(0).standard_normal((self.clients, self.d)))
        h = self.curvatures[:, None]
        away -= (h * away).sum(0) / h.sum()
        size = away.square().mean().sqrt()
        return self.common + self.spread * away / torch.where(size > 0, size, 1)

    @property
    def hessians(self) -> Tensor:  # H[N, d, d]
        return self.curvatures[:, None, None] * torch.eye(self.d, dtype=torch.float64)

    @property
    def gradient_noise(self) -> Tensor:  # [N]
        """E ||∇f̃_k(x; ξ) - ∇f_k(x)||² of each client, whatever x."""
        return self.curvatures**2 * self.noise**2 * self.d

    @property
    def minimiser(self) -> Tensor:  # [d]
        """x* of f, the mean of the f_k."""
        return torch.full((self.d,), self.common, dtype=torch.float64)

    def excess(self, x: Tensor) -> Tensor:  # x[..., d] -> [...]
        """f(x) - f(x*)."""
        return 0.5 * self.curvatures.mean() * (x - self.common).square().sum(-1)

    def _random(self, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, purpose])

    def federation(self, repetition: int = 0) -> Federation:
        """The data; in another repetition the clients have other names.

        So they draw other mini-batches and other clients are heard under the same seed of a run,
        and so with the same P: the expectations of the theorems are for a fixed P.
        """
        N, n, d = self.clients, self.samples, self.d
        away = self._random(1).standard_normal((N, n, d))
        away -= away.mean(1, keepdims=True)  # so that the empirical f_k has its minimum at c_k
        away /= np.sqrt((away**2).mean((1, 2), keepdims=True))
        samples = self.centres.numpy()[:, None] + self.noise * away
        scale = (d * self.curvatures.numpy()) ** 0.5  # a loss is the mean over d targets
        return Federation.from_arrays(
            torch.from_numpy(np.repeat(scale, n)[:, None]),
            torch.from_numpy((scale[:, None, None] * samples).reshape(-1, d)),
            np.repeat([f"{repetition} {k:05d}" for k in range(N)], n),
            valid=0,
            test=0,
            name="means",
        )

    def task(self) -> Task:
        """x is the weight of a linear layer with one input, √(d h_k); it starts at 0."""
        model = nn.Linear(1, self.d, bias=False)
        nn.init.zeros_(model.weight)
        return _MeansTask(model, "half_squared")


class _MeansTask(Task):
    """The same gradient as that of any task, by its formula: a tenth of the time."""

    def grad(self, x: Tensor, batch: Batch, extra: Term | None = None) -> Tensor:
        if extra is not None:
            return super().grad(x, batch, extra)
        batch.tally.add_(1 if batch.active is None else batch.active.cpu())
        # per sample (1/d) a (a x - y) with a = √(d h), y = a ξ
        shares = batch.weights.unsqueeze(-1) / x.shape[-1] * batch.inputs  # [K, B, 1]
        h = (shares * batch.inputs).sum(1)
        return h * x - (shares * batch.targets).sum(1)


# -- robust regression in a subspace --------------------------------------------------------------

STEEPEST = 3 * 3**0.5 / 16  # the largest |φ'|, at r² = 1/3


class GemanMcClure(Loss):
    """φ(r) = r² / (2 (1 + r²)) of the residual r: a sample far away hardly counts."""

    name = "geman_mcclure"

    def each(self, outputs: Any, targets: Any) -> Tensor:
        square = (shaped_as(logits(outputs), targets) - targets) ** 2
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
        return matrix_of("orthogonal", self.dim, self.d)

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
