"""Expected test losses, the best λ, and which method wins when.

From Appendix B.2 of the lp-proj paper; with `attacks`, Theorem 30.

Every model here leaves some coordinates alone and pulls the others the share a = λ / (b + λ) of the
way to the mean of all clients: Local none of the way, FedAvg all of it (λ = ∞), pFedMe and Ditto in
all d coordinates, lp-proj-2 in `dim` of them. So all losses are sums of one function, `coordinate`.
`spread` is Σ of eq. (36), the heterogeneity in one dimension, or what `attacks` makes of it:
attacks change nothing else. Where the spread of the subspace differs from that of the whole space,
give each method its own.

>>> s = Linear(clients=10, samples=50, features=20)
>>> by_method = local(s), lpproj(s, 0.2, 5, 0.1), pfedme(s, 0.2, 0.1), fedavg(s, 0.1)
>>> [round(loss, 4) for loss in by_method]
[0.7, 0.6932, 0.6728, 1.52]
"""

from __future__ import annotations

import math

from idiolect.data.sets.regression import Linear


def coordinate(s: Linear, lam: float, spread: float) -> float:
    """b/2 E(x - w_k)^2 of one coordinate, mean over clients.

    The noise of the estimate, then the bias towards the others.
    """
    a = 1.0 if math.isinf(lam) else lam / (s.b + lam)
    own = (1 - a) ** 2  # (b^2 + 2 b λ / N + λ^2 / N) / (b + λ)^2 = own + (1 - own) / N
    return ((own + (1 - own) / s.clients) * s.noise**2 / s.samples + s.b * a**2 * spread) / 2


def local(s: Linear) -> float:
    """L^loc = σ²/2 + σ² d / (2n)."""
    return s.noise**2 / 2 + s.features * coordinate(s, 0, 0)


def fedavg(s: Linear, spread: float) -> float:
    """L^Avg = σ²/2 + σ² d / (2Nn) + b d Σ / 2."""
    return s.noise**2 / 2 + s.features * coordinate(s, math.inf, spread)


def pfedme(s: Linear, lam: float, spread: float) -> float:
    """L^Me(λ), with the last term b λ² d Σ / (2 (b + λ)²).

    The paper has a further N in the denominator of that term.
    """
    return s.noise**2 / 2 + s.features * coordinate(s, lam, spread)


ditto = pfedme  # the same models, because all clients have the same b


def lpproj(s: Linear, lam: float, dim: int, spread: float) -> float:
    """L^l2(λ) for orthonormal rows of P, corrected as `pfedme`."""
    return (
        s.noise**2 / 2 + dim * coordinate(s, lam, spread) + (s.features - dim) * coordinate(s, 0, 0)
    )


def slope(s: Linear, lam: float, dim: int, spread: float) -> float:
    """d L^l2 / d λ (Remark 31, its bracket closed after Σ₁); with dim = d, that of pFedMe."""
    return s.b**2 * dim * (lam * spread - _noise(s)) / (s.b + lam) ** 3


# -- the best λ, and which method wins -------------------------------------------------------------
def best_lam(s: Linear, spread: float) -> float:
    """λ* = (1 - 1/N) σ² / (n Σ), the same for pFedMe, Ditto and lp-proj-2 (Lemma 29).

    ∞ where the other clients can only help.

    >>> round(best_lam(Linear(clients=10, samples=50, noise=1.0), 0.1), 9)
    0.18
    """
    return _noise(s) / spread if spread > 0 else math.inf


def lpproj_wins_from(s: Linear, spread: float) -> float:
    """L^loc <= L^l2(λ) <= L^Me(λ) if and only if λ is at least this (Proposition 16).

    2 λ* / (1 - λ*/b); ∞, which means never, if λ* >= b.
    """
    best = best_lam(s, spread)
    return 2 * best / (1 - best / s.b) if best < s.b else math.inf


def pfedme_beats_fedavg_from(s: Linear, spread: float) -> float:
    """L^Me(λ) <= L^Avg if and only if λ is at least this: (λ* - b) / 2, or 0."""
    return max(0.0, (best_lam(s, spread) - s.b) / 2)


def lpproj_beats_fedavg_from(s: Linear, lam: float, dim: int) -> float:
    """L^l2(λ) <= L^Avg if and only if the spread is at least this."""
    b = s.b
    d = s.features
    numerator = d * (b + lam) ** 2 - dim * lam * (2 * b + lam)
    denominator = d * (b + lam) ** 2 - dim * lam**2
    return _noise(s) / b * numerator / denominator


def _noise(s: Linear) -> float:
    return (1 - 1 / s.clients) * s.noise**2 / s.samples
