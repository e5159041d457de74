"""Clients that estimate a mean each: quadratics for which assumptions of theorems hold exactly.

f̃_k(x; ξ) = (h_k / 2) ||x - ξ||² for samples ξ around the client's own c_k, so that
f_k(x) = (h_k / 2) ||x - c_k||² + constant: every sample's loss is min h-strongly convex and
max h-smooth, the noise of its gradient h_k (c_k - ξ) is the same everywhere, and all solutions are
known (`linear_regression.solutions` with H_k = h_k I and ŵ_k = c_k).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from idiolect.core.knobs import Knobs, knob
from idiolect.data.federation import Federation
from idiolect.task.batches import Batch
from idiolect.task.task import Task


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

    def grad(self, x: Tensor, batch: Batch) -> Tensor:
        batch.tally.add_(1 if batch.active is None else batch.active.cpu())
        # per sample (1/d) a (a x - y) with a = √(d h), y = a ξ
        shares = batch.weights.unsqueeze(-1) / x.shape[-1] * batch.inputs  # [K, B, 1]
        h = (shares * batch.inputs).sum(1)
        return h * x - (shares * batch.targets).sum(1)
