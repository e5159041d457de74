"""How unequal the clients' losses are: population variance of the test losses over clients.

From Appendix B.4 of the lp-proj paper. `P` with orthonormal rows gives lp-proj-2, no P gives pFedMe
and Ditto; λ = ∞ without P is FedAvg, λ = 0 Local. The paper takes the variance of losses averaged
over the noise of training; `realised` keeps that noise, which is in the losses of any single run.
Then Local is no longer perfectly fair, and lp-proj is fairer than pFedMe only for large enough λ:
for many clients, from the λ of Proposition 16 on.

>>> s = Linear(clients=20, samples=50, features=10)
>>> S = s.heterogeneity * torch.eye(10)
>>> P = torch.eye(10)[:3]
>>> expected(s, 1.0, S, P) < expected(s, 1.0, S), realised(s, 0.1, S, P) < realised(s, 0.1, S)
(True, False)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from idiolect.data.sets.regression import Linear


def variance(s: Linear, lam: float, w: Tensor, P: Tensor | None = None) -> float:  # w[N, d]
    """V(λ) for given true parameters, eq. (45).

    (b²/4) (λ / (b + λ))⁴ times the variance of ||P (w̄ - w_k)||².
    """
    u = w if P is None else w @ P.T
    far = (u - u.mean(0)).square().sum(1)
    return s.b**2 / 4 * _share(s, lam) ** 4 * float(far.var(correction=0))


def expected(
    s: Linear, lam: float, covariance: Tensor, P: Tensor | None = None
) -> float:  # covariance[d, d]
    """E V(λ) over w_k ~ N(μ, Σ_w), eqs. (46) to (48).

    These are twice too large as printed: step (d) of (49) loses a factor 1/2.
    """
    S = _seen(covariance, P)
    N = s.clients
    return s.b**2 / 2 * _share(s, lam) ** 4 * (N - 1) * (N - 2) / N**2 * float((S @ S).trace())


def realised(s: Linear, lam: float, covariance: Tensor, P: Tensor | None = None) -> float:
    """The same with the noise of training in each client's loss, averaged over test noise.

    Not in the paper. The errors e_k = x_k - w_k are exchangeable Gaussians with variance V and
    covariance C: ||e_k||² - ||e_l||² = <e_k - e_l, e_k + e_l> is a product of independent vectors,
    so that E var(||e_k||²) = 2 (1 - 1/N) tr((V - C)(V + C)). Without noise this is (46) to (48).
    """
    S = _seen(covariance, P)
    N = s.clients
    a = _share(s, lam)
    z = s.noise**2 / (s.b * s.samples)
    one = torch.eye(len(S), dtype=S.dtype)
    minus = a**2 * S + (1 - a) ** 2 * z * one
    plus = a**2 * (1 - 2 / N) * S + ((1 - a) ** 2 + (4 * a * (1 - a) + 2 * a**2) / N) * z * one
    free = (len(covariance) - len(S)) * z**2  # coordinates that are not tied: V = z, C = 0
    return s.b**2 / 2 * (1 - 1 / N) * (float((minus @ plus).trace()) + free)


def _share(s: Linear, lam: float) -> float:
    return 1.0 if math.isinf(lam) else lam / (s.b + lam)


def _seen(covariance: Tensor, P: Tensor | None) -> Tensor:
    return covariance if P is None else P @ covariance @ P.T
