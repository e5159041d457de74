"""Federated logistic regression with known truth: excess risks, minimisers and λ.

From the paper of Chen, Zheng, Long and Su (2021), whose Section 4.1 proves its lower bounds on this
instance. The data are those of `idiolect.data.sets.regression.LogisticRegression`; m clients
with n samples each, N = m n in all. Models are rows x[m, d], the truth is w*[m, d].

- `ier`, `aer`: individual and average excess risks, eq. (2.1) and Definition 4.2;
- `local`, `fedavg`, `fedprox`: exact minimisers of eq. (1.3), (4.5) and (4.8), by Newton's method;
- `lam_for_aer`, `lam_for_ier`: λ of FedProx as the proofs of Theorems 4.4 and 4.5 choose it;
- `rate`: min(d m/N, R²) + d/N of Theorem 4.1; `crossing`: where FedAvg and Local are equally good.

>>> s = LogisticRegression(
...     clients=4, samples=500, features=3, design="signs", places="sphere", valid=0, test=0
... )
>>> federation, truth = s.draw()
>>> x = local(federation)
>>> float(aer(ier(s, truth, x))) < float(aer(ier(s, truth, fedavg(federation).expand(4, -1))))
True
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idiolect import Federation, SettingError, Task
from idiolect.data.sets.regression import LogisticRegression

MOST_POINTS = 2**16  # of {-c, c}^d that are enumerated
MOST_STEPS = 100  # of Newton's method


def task(s: LogisticRegression) -> Task:
    """x^T w without intercept, from w = 0, with the loss log(1 + exp(-y x^T w))."""

    def model() -> nn.Module:
        linear = nn.Linear(s.features, 1, bias=False)
        nn.init.zeros_(linear.weight)
        return linear

    return Task(model, "logistic")


# -- excess risks ---------------------------------------------------------------------------------
def points(
    s: LogisticRegression, fresh: int = 200_000, seed: int = 0
) -> Tensor:  # -> float64[P, d]
    """Feature vectors whose mean is the expectation over the law of x.

    All 2^d of them for features that are signs: then expectations are exact. Else `fresh` ones.
    """
    d = s.features
    if s.design == "signs" and 2**d <= MOST_POINTS:
        bits = torch.arange(2**d).unsqueeze(1) >> torch.arange(d) & 1
        return s.bound * (2.0 * bits.double() - 1)
    generator = torch.Generator().manual_seed(seed)
    drawn = 2 * torch.rand(fresh, d, generator=generator, dtype=torch.float64) - 1
    return s.bound * (drawn.sign() if s.design == "signs" else drawn)


def risks(x: Tensor, truth: Tensor, at: Tensor) -> Tensor:  # x[m, d], w*[m, d] -> [m]
    """E l(x_i, Z_i) of each client's model over its own law; given the features, y is exact."""
    chance = torch.sigmoid(truth @ at.T)
    score = x @ at.T
    return (F.softplus(score) - chance * score).mean(1)


def ier(
    s: LogisticRegression, truth: Tensor, x: Tensor, at: Tensor | None = None
) -> Tensor:  # -> [m]
    """IER_i = E[l(x_i, Z_i) - l(w*_i, Z_i)], eq. (2.1)."""
    at = points(s) if at is None else at
    return risks(x, truth, at) - risks(truth, truth, at)


def aer(each: Tensor, weights: Tensor | None = None) -> Tensor:
    """AER_p = sum_i p_i IER_i (Definition 4.2); p_i = 1/m, as n_i/N here, unless they are given."""
    return each.mean() if weights is None else shares(weights) @ each


def shares(weights: Tensor) -> Tensor:
    """p_i: weights that sum to 1."""
    return weights.double() / weights.double().sum()


def curvature(truth: Tensor, at: Tensor) -> Tensor:  # -> [m, d, d]
    """The Hessian of each client's risk at its own optimum."""
    chance = torch.sigmoid(truth @ at.T)
    return torch.einsum("kp,pa,pb->kab", chance * (1 - chance), at, at) / len(at)


@dataclass(frozen=True)
class Constants:
    """The constants of Assumption A at the clients' optima.

    Lemma 4.1 bounds β by c_X² d / 4 and μ from below by e^(-c_X D sqrt(d)), over all of W.
    """

    mu: float  # least eigenvalue of a client's Hessian at its optimum
    beta: float  # the largest one
    mean: float  # the mean one


def constants(s: LogisticRegression, truth: Tensor) -> Constants:
    values = torch.linalg.eigvalsh(curvature(truth, points(s)))
    return Constants(float(values.min()), float(values.max()), float(values.mean()))


# -- what the theorems say ------------------------------------------------------------------------
def rate(features: int, clients: int, total: int, radius: float) -> float:
    """min(d m/N, R²) + d/N: the bound (4.3), which the better of both baselines attains.

    >>> f"{rate(2, 10, 1000, radius=0.1):.3f} {rate(2, 10, 1000, radius=1.0):.3f}"
    '0.012 0.022'
    """
    return min(features * clients / total, radius**2) + features / total


def crossing(s: LogisticRegression, truth: Tensor, samples: int) -> float:
    """The R at which FedAvg and Local are equally good, for many `samples` n per client.

    To first order Local has d / (2n), and FedAvg d / (2N) + h R² / 2, h the curvature along the
    differences of the clients; so R² = (1 - 1/m) (d / h) m/N.
    """
    away = truth - truth.mean(0)
    length = away.norm(dim=1).clamp(min=1e-300)
    H = curvature(truth.mean(0, keepdim=True), points(s))[0]
    h = float((((away @ H) * away).sum(1) / length**2).mean())
    return ((1 - 1 / s.clients) * s.features / (h * samples)) ** 0.5


def lam_for_aer(mu: float, radius: float, weights: Tensor, samples: Tensor) -> float:
    """λ of the proof of Theorem 4.4 (Appendix C.3).

    With a = sum p_i/n_i and b = sum p_i²/n_i: μ a / (16 R²) for R >= sqrt(a); below that
    μ sqrt(a) / (16 C_p R), down to R = b / sqrt(a), and from there on μ a / (16 C_p b). The paper
    prints b/a for that last place; only with b / sqrt(a) do its three cases meet, and cover all R.
    C_p is the least constant of eq. (4.13).

    >>> one = torch.ones(10)
    >>> [round(lam_for_aer(1.6, R, one, 100 * one), 6) for R in (1.0, 0.1, 0.05, 0.0)]
    [0.001, 0.1, 0.2, 1.0]
    """
    p = shares(weights)
    a = float((p / samples).sum())
    b = float((p**2 / samples).sum())
    c = float(p.max()) * a / b
    if radius**2 >= a:
        return mu * a / (16 * radius**2)
    return mu / (16 * c) * min(a**0.5 / radius if radius else float("inf"), a / b)


def lam_for_ier(mu: float, radius: float, clients: int, total: int) -> float:
    """λ of the proof of Theorem 4.5 (Appendix C.4) with c_A = μ D² and c_B = μ.

    The proof fixes c_A and c_B up to a constant only.
    """
    if radius**2 >= clients / total:
        return mu * clients / total
    return mu * (clients / (radius**2 * total + 1)) ** 0.5


# -- exact minimisers -----------------------------------------------------------------------------
# Over W = {x : ||x|| <= ball}; 0 = R^d, where no minimiser exists if the classes can be separated.
def local(federation: Federation, ball: float = 0.0) -> Tensor:  # -> x[m, d]
    """The minimiser of each client's empirical risk, eq. (1.3)."""
    xi, sign = _training(federation)
    return _Rows(xi, sign, ball).minimise()


def fedavg(
    federation: Federation, ball: float = 0.0, weights: Tensor | None = None
) -> Tensor:  # -> [d]
    """The minimiser of sum_i p_i L_i(w), eq. (4.5)."""
    xi, sign = _training(federation)
    p = _shares_of(xi, weights)
    # one client with all samples, those of client i weighing p_i / n_i
    each = p.repeat_interleave(xi.shape[1]).unsqueeze(0) / xi.shape[1]
    together = _Rows(xi.flatten(0, 1).unsqueeze(0), sign.flatten().unsqueeze(0), ball, each)
    return together.minimise()[0]


def fedprox(
    federation: Federation, lam: float, ball: float = 0.0, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:  # -> [d], x[m, d]
    """The minimiser (w, x) of sum_i p_i (L_i(x_i) + λ/2 ||w - x_i||²), eq. (4.8).

    Newton's method on w = sum_i p_i x_i(w): with H_i the Hessian of L_i at x_i(w), the derivative
    of x_i(w) is λ (H_i + λ)^-1 (less for one at the border of W, which costs some rounds more).
    """
    xi, sign = _training(federation)
    p = _shares_of(xi, weights)
    rows = _Rows(xi, sign, ball)
    one = torch.eye(xi.shape[2], dtype=xi.dtype)
    x = rows.minimise()
    w = p @ x
    for _ in range(MOST_STEPS):
        x = rows.minimise(lam, w, x)
        moved = lam * torch.linalg.inv(rows.hessian(x) + lam * one)
        step = torch.linalg.solve(one - torch.einsum("k,kab->ab", p, moved), p @ x - w)
        w = w + step
        if _small(step, w):
            break
    return w, rows.minimise(lam, w, x)


def smoothness(federation: Federation) -> float:
    """A bound on the curvature of all empirical risks: λ_max(Ξ^T Ξ / n) / 4, eq. (4.2)."""
    xi, _ = _training(federation)
    return float(torch.linalg.eigvalsh(xi.mT @ xi / xi.shape[1]).max()) / 4


def _training(federation: Federation) -> tuple[Tensor, Tensor]:  # -> [m, n, d], [m, n] of -1, +1
    sizes = federation.sizes("train")
    n = int(sizes[0])
    if not bool((sizes == n).all()):
        numbers = f"{int(sizes.min())} to {int(sizes.max())}"
        raise SettingError(f"samples must be as many for every client, got {numbers}")
    offsets = federation.offsets["train"]
    rows = slice(int(offsets[0]), int(offsets[-1]))
    xi = federation.inputs[rows].double().view(len(sizes), n, -1)
    return xi, (2.0 * federation.targets[rows].double() - 1).view(len(sizes), n)


def _shares_of(xi: Tensor, weights: Tensor | None) -> Tensor:
    return shares(torch.ones(len(xi)) if weights is None else weights)


def _small(step: Tensor, x: Tensor) -> bool:
    return float(step.abs().max()) <= 1e-13 * (1 + float(x.abs().max()))


@dataclass(frozen=True)
class _Rows:
    """Weighed logistic losses, one per row: f_k(x) = sum_j e_j log(1 + exp(-y_j x^T ξ_j))."""

    xi: Tensor  # [K, n, d]
    sign: Tensor  # [K, n]
    ball: float = 0.0
    each: Tensor | None = None  # [K, n]; None = 1/n

    @property
    def weights(self) -> Tensor:
        return (
            torch.full_like(self.sign, 1 / self.sign.shape[1]) if self.each is None else self.each
        )

    def minimise(
        self, lam: float = 0.0, centre: Tensor | None = None, start: Tensor | None = None
    ) -> Tensor:
        """argmin over W of f_k(x) + λ/2 ||x - centre||².

        At the border of W it is the minimiser of the same with ν/2 ||x||² added, for the ν at which
        that has length `ball`: by Newton's method on 1/||x(ν)||, between bounds on ν.
        """
        zero = self.xi.new_zeros(len(self.xi), self.xi.shape[2])
        start = zero if start is None else start
        centre = zero[:1] if centre is None else centre
        pull = zero.new_zeros(len(zero), 1)
        if not self.ball:
            return self._newton(start, lam, centre, pull)
        low = torch.full_like(pull, 1e-6)
        x = self._newton(start, lam, centre, low)  # exists even where data separate
        outside = x.norm(dim=1, keepdim=True) > self.ball
        if not bool(outside.any()):
            return self._newton(x, lam, centre, pull)
        low = torch.where(outside, low, 0.0)
        high = torch.where(outside, 1e6, 0.0)
        pull = low
        one = torch.eye(x.shape[1], dtype=x.dtype)
        for _ in range(MOST_STEPS):
            x = self._newton(x, lam, centre, pull)
            length = x.norm(dim=1, keepdim=True)
            long = length > self.ball
            low = torch.where(outside & long, pull, low)
            high = torch.where(outside & ~long, pull, high)
            if bool(((length / self.ball - 1).abs() <= 1e-14)[outside].all()):
                break
            A = self.hessian(x) + (lam + pull).unsqueeze(2) * one
            slope = (x * torch.linalg.solve(A, x.unsqueeze(-1)).squeeze(-1)).sum(1, keepdim=True)
            new = pull + (length / self.ball - 1) * length**2 / slope
            within = (new > low) & (new < high)
            new = torch.where(within, new, (low * high).sqrt())
            if bool((new == pull)[outside].all()):
                break
            pull = torch.where(outside, new, 0.0)
        return x

    def hessian(self, x: Tensor) -> Tensor:  # -> [K, d, d]
        chance = torch.sigmoid(torch.einsum("knd,kd->kn", self.xi, x))
        each = self.weights * chance * (1 - chance)
        return torch.einsum("kna,knb->kab", each.unsqueeze(2) * self.xi, self.xi)

    def _newton(self, x: Tensor, lam: float, centre: Tensor, pull: Tensor) -> Tensor:
        one = torch.eye(x.shape[1], dtype=x.dtype)
        weights = self.weights

        def value(x: Tensor) -> Tensor:
            margin = self.sign * torch.einsum("knd,kd->kn", self.xi, x)
            tied = lam * ((x - centre) ** 2).sum(1) + pull.squeeze(1) * (x**2).sum(1)
            return (weights * F.softplus(-margin)).sum(1) + tied / 2

        for _ in range(MOST_STEPS):
            margin = self.sign * torch.einsum("knd,kd->kn", self.xi, x)
            slope = weights * self.sign * torch.sigmoid(-margin)
            g = lam * (x - centre) + pull * x - torch.einsum("kn,knd->kd", slope, self.xi)
            H = self.hessian(x) + (lam + pull).unsqueeze(2) * one
            step = torch.linalg.solve(H, g.unsqueeze(-1)).squeeze(-1)
            size = torch.ones(len(x), 1, dtype=x.dtype)
            before = value(x)
            for _ in range(30):  # a row whose step would lead uphill takes half of it
                worse = value(x - size * step) > before + 1e-15
                if not bool(worse.any()):
                    break
                size = torch.where(worse.unsqueeze(1), size / 2, size)
            x = x - size * step
            if _small(step, x):
                break
        return x
