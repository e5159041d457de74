"""Federated linear regression before any data are drawn: losses, attacks and fairness.

From the lp-proj paper (Han, Li, Lin and Zhang, JMLR 2024, Section 4.2 and Appendix B), for the
setting of `LinearRegression`: n samples per client, sum_i xi_i xi_i^T = b n I, noise sigma, all
clients in every round. `linear_solutions` has the models themselves, from the data.
docs/fidelity.md lists where the paper's formulas had to be corrected.

Losses (B.2, Theorem 30). Every model leaves some coordinates alone and pulls the others the share
a = λ / (b + λ) of the way to the mean of all clients: Local none of the way, FedAvg all of it
(λ = ∞), pFedMe and Ditto in all d coordinates, lp-proj-2 in `dim` of them. So all losses are sums
of one function, `coordinate`. `spread` is Σ of eq. (36), the heterogeneity in one dimension.

Attacks (B.3) change the spread and nothing else. In the paper's one round every benign client sends
ŵ_k (P ŵ_k in lp-proj), malicious clients send what the attack says, the server takes the mean, and
the benign clients tie their models to it. With M the variance of a malicious message in one
coordinate, the loss of benign clients is that of B.2 with Σ' = Σ₁ + N_a / N² (M - σ² / (bn)) for Σ,
where Σ₁ is measured around the mean that is expected to come back. Each malicious client draws its
own c; `malicious` is a mask, bool[N].

Fairness (B.4) is the population variance of the test losses over clients. `P` with orthonormal rows
gives lp-proj-2, no P gives pFedMe and Ditto; λ = ∞ without P is FedAvg, λ = 0 Local. The paper
averages losses over the noise of training; `realised_variance` keeps that noise, which is in the
losses of any single run. Then Local is no longer perfectly fair, and lp-proj is fairer than pFedMe
only for large enough λ: for many clients, from the λ of Proposition 16 on.

>>> s = LinearRegression(clients=10, samples=50, features=20)
>>> by_method = local_loss(s), lpproj_loss(s, 0.2, 5, 0.1), pfedme_loss(s, 0.2, 0.1)
>>> [round(loss, 4) for loss in by_method]
[0.7, 0.6932, 0.6728]
>>> figure1 = LinearRegression()  # n = 200, N = 100, d = 100, b = 1, sigma = 1
>>> spread = attacked_spread(figure1, spread=0.1, malicious=20, power=100.0**2)
>>> f"{best_lam(figure1, spread):.3g} {lpproj_wins_from(figure1, spread):.3g}"
'0.000246 0.000493'
>>> S, P = s.heterogeneity * torch.eye(20), torch.eye(20)[:3]
>>> expected_variance(s, 1.0, S, P) < expected_variance(s, 1.0, S)
True
>>> realised_variance(s, 0.1, S, P) < realised_variance(s, 0.1, S)
False
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from idiolect.data.sets.regression import LinearRegression


# -- expected test losses, the best λ, and which method wins --------------------------------------
def coordinate(s: LinearRegression, lam: float, spread: float) -> float:
    """b/2 E(x - w_k)^2 of one coordinate, mean over clients.

    The noise of the estimate, then the bias towards the others.
    """
    a = 1.0 if math.isinf(lam) else lam / (s.b + lam)
    own = (1 - a) ** 2  # (b^2 + 2 b λ / N + λ^2 / N) / (b + λ)^2 = own + (1 - own) / N
    return ((own + (1 - own) / s.clients) * s.noise**2 / s.samples + s.b * a**2 * spread) / 2


def local_loss(s: LinearRegression) -> float:
    """L^loc = σ²/2 + σ² d / (2n)."""
    return s.noise**2 / 2 + s.features * coordinate(s, 0, 0)


def pfedme_loss(s: LinearRegression, lam: float, spread: float) -> float:
    """L^Me(λ), with the last term b λ² d Σ / (2 (b + λ)²).

    The paper has a further N in the denominator of that term.
    """
    return s.noise**2 / 2 + s.features * coordinate(s, lam, spread)


def lpproj_loss(s: LinearRegression, lam: float, dim: int, spread: float) -> float:
    """L^l2(λ) for orthonormal rows of P, corrected as `pfedme_loss`."""
    return (
        s.noise**2 / 2 + dim * coordinate(s, lam, spread) + (s.features - dim) * coordinate(s, 0, 0)
    )


# -- the best λ, and which method wins ------------------------------------------------------------
def best_lam(s: LinearRegression, spread: float) -> float:
    """λ* = (1 - 1/N) σ² / (n Σ), the same for pFedMe, Ditto and lp-proj-2 (Lemma 29).

    ∞ where the other clients can only help.

    >>> round(best_lam(LinearRegression(clients=10, samples=50, noise=1.0), 0.1), 9)
    0.18
    """
    return estimation_noise(s) / spread if spread > 0 else math.inf


def lpproj_wins_from(s: LinearRegression, spread: float) -> float:
    """L^loc <= L^l2(λ) <= L^Me(λ) if and only if λ is at least this (Proposition 16).

    2 λ* / (1 - λ*/b); ∞, which means never, if λ* >= b.
    """
    best = best_lam(s, spread)
    return 2 * best / (1 - best / s.b) if best < s.b else math.inf


def estimation_noise(s: LinearRegression) -> float:
    return (1 - 1 / s.clients) * s.noise**2 / s.samples


# -- attacks: the spread that malicious clients make ----------------------------------------------
def attacked_spread(s: LinearRegression, spread: float, malicious: int, power: float) -> float:
    """Σ' from Σ₁ (or Σ₂), N_a and M (τ², or M₀)."""
    return spread + malicious / s.clients**2 * (power - s.noise**2 / (s.b * s.samples))


def same_value_spread(
    s: LinearRegression, w: Tensor, malicious: Tensor, tau: float, P: Tensor | None = None
) -> float:
    """Malicious clients send c (1, ..., 1), c ~ N(0, τ²); eq. (37), M = τ²."""
    u = coordinates_of(w, P)
    returned = u[~malicious].sum(0) / s.clients
    around = float((returned - u[~malicious]).square().mean())  # Σ₁
    return attacked_spread(s, around, int(malicious.sum()), tau**2)


gaussian_spread = same_value_spread  # messages N(0, τ² I): the same trace, so the same loss


def sign_flip_spread(
    s: LinearRegression, w: Tensor, malicious: Tensor, tau: float, P: Tensor | None = None
) -> float:
    """Malicious clients send -|c| ŵ_k, c ~ N(0, τ²); eqs. (40) to (43)."""
    u = coordinates_of(w, P)
    reversed_sum = math.sqrt(2 / math.pi) * tau * u[malicious].sum(0)
    returned = (u[~malicious].sum(0) - reversed_sum) / s.clients
    noise = s.noise**2 / (s.b * s.samples)
    own = (1 - 2 / math.pi) * u[malicious].square() + noise  # diagonals of M_k / τ²
    power = tau**2 * float(own.mean()) if bool(malicious.any()) else 0.0
    around = float((returned - u[~malicious]).square().mean())  # Σ₁
    return attacked_spread(s, around, int(malicious.sum()), power)


def coordinates_of(w: Tensor, P: Tensor | None) -> Tensor:
    return w if P is None else w @ P.T


# -- fairness: the variance of test losses over clients -------------------------------------------
def variance(
    s: LinearRegression, lam: float, w: Tensor, P: Tensor | None = None
) -> float:  # w[N, d]
    """V(λ) for given true parameters, eq. (45).

    (b²/4) (λ / (b + λ))⁴ times the variance of ||P (w̄ - w_k)||².
    """
    u = w if P is None else w @ P.T
    far = (u - u.mean(0)).square().sum(1)
    return s.b**2 / 4 * _share(s, lam) ** 4 * float(far.var(correction=0))


def expected_variance(
    s: LinearRegression, lam: float, covariance: Tensor, P: Tensor | None = None
) -> float:  # covariance[d, d]
    """E V(λ) over w_k ~ N(μ, Σ_w), eqs. (46) to (48).

    These are twice too large as printed: step (d) of (49) loses a factor 1/2.
    """
    S = _covariance(covariance, P)
    N = s.clients
    return s.b**2 / 2 * _share(s, lam) ** 4 * (N - 1) * (N - 2) / N**2 * float((S @ S).trace())


def realised_variance(
    s: LinearRegression, lam: float, covariance: Tensor, P: Tensor | None = None
) -> float:
    """The same with the noise of training in each client's loss, averaged over test noise.

    Not in the paper. The errors e_k = x_k - w_k are exchangeable Gaussians with variance V and
    covariance C: ||e_k||² - ||e_l||² = <e_k - e_l, e_k + e_l> is a product of independent vectors,
    so that E var(||e_k||²) = 2 (1 - 1/N) tr((V - C)(V + C)). Without noise this is (46) to (48).
    """
    S = _covariance(covariance, P)
    N = s.clients
    a = _share(s, lam)
    z = s.noise**2 / (s.b * s.samples)
    one = torch.eye(len(S), dtype=S.dtype)
    minus = a**2 * S + (1 - a) ** 2 * z * one
    plus = a**2 * (1 - 2 / N) * S + ((1 - a) ** 2 + (4 * a * (1 - a) + 2 * a**2) / N) * z * one
    free = (len(covariance) - len(S)) * z**2  # coordinates that are not tied: V = z, C = 0
    return s.b**2 / 2 * (1 - 1 / N) * (float((minus @ plus).trace()) + free)


def _share(s: LinearRegression, lam: float) -> float:
    return 1.0 if math.isinf(lam) else lam / (s.b + lam)


def _covariance(covariance: Tensor, P: Tensor | None) -> Tensor:
    return covariance if P is None else P @ covariance @ P.T
