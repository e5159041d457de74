"""What malicious clients do to the losses of the benign ones (lp-proj, Appendix B.3).

They change the spread that `losses` takes, and nothing else.

The paper considers one round: every benign client sends ŵ_k (P ŵ_k in lp-proj), malicious clients
send what the attack says, the server takes the mean, and the benign clients tie their models to it.
With M the variance of a malicious message in one coordinate, the loss of benign clients is that of
Appendix B.2 with Σ replaced by Σ' = Σ₁ + N_a / N² (M - σ² / (bn)), where Σ₁ is measured around the
mean that is expected to come back. So λ₁*, λ₂* and all thresholds are those of `losses` at Σ'. Each
malicious client draws its own c.

In the functions `malicious` is a mask, bool[N].

>>> import torch
>>> from idiolect_papers.closed_forms.linear_regression import losses
>>> s = Linear(clients=4, samples=8, features=3)
>>> malicious = torch.tensor([True, False, False, False])
>>> w = s.draw()[1]
>>> losses.pfedme(s, 0.1, same_value(s, w, malicious, tau=10.0)) > losses.pfedme(s, 0.1, spread(w))
True
"""

from __future__ import annotations

import math

from torch import Tensor

from idiolect.data.sets.regression import Linear


def spread(w: Tensor, P: Tensor | None = None) -> float:  # w[N, d], P[m, d] with orthonormal rows
    """Σ of eq. (36): the variance over clients of a true coefficient.

    The mean over all coordinates, or over those of the subspace.
    """
    return float(_seen(w, P).var(0, correction=0).mean())


def attacked(s: Linear, spread: float, malicious: int, power: float) -> float:
    """Σ' from Σ₁ (or Σ₂), N_a and M (τ², or M₀)."""
    return spread + malicious / s.clients**2 * (power - s.noise**2 / (s.b * s.samples))


def same_value(
    s: Linear, w: Tensor, malicious: Tensor, tau: float, P: Tensor | None = None
) -> float:
    """Malicious clients send c (1, ..., 1), c ~ N(0, τ²); eq. (37), M = τ²."""
    u = _seen(w, P)
    returned = u[~malicious].sum(0) / s.clients
    around = float((returned - u[~malicious]).square().mean())  # Σ₁
    return attacked(s, around, int(malicious.sum()), tau**2)


gaussian = same_value  # malicious clients send N(0, τ² I): the same trace, so the same loss


def sign_flip(
    s: Linear, w: Tensor, malicious: Tensor, tau: float, P: Tensor | None = None
) -> float:
    """Malicious clients send -|c| ŵ_k, c ~ N(0, τ²); eqs. (40) to (43)."""
    u = _seen(w, P)
    reversed_sum = math.sqrt(2 / math.pi) * tau * u[malicious].sum(0)
    returned = (u[~malicious].sum(0) - reversed_sum) / s.clients
    noise = s.noise**2 / (s.b * s.samples)
    own = (1 - 2 / math.pi) * u[malicious].square() + noise  # diagonals of M_k / τ²
    power = tau**2 * float(own.mean()) if bool(malicious.any()) else 0.0
    around = float((returned - u[~malicious]).square().mean())  # Σ₁
    return attacked(s, around, int(malicious.sum()), power)


def _seen(w: Tensor, P: Tensor | None) -> Tensor:
    return w if P is None else w @ P.T
