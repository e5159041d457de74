"""Formulas of the lp-proj paper on linear regression that no page shows."""

from __future__ import annotations

import math

from torch import Tensor

from idiolect.data.sets.regression import LinearRegression
from idiolect_papers.closed_forms.linear_regression import (
    best_lam,
    coordinate,
    coordinates_of,
    estimation_noise,
)


def fedavg_loss(s: LinearRegression, spread: float) -> float:
    """L^Avg = σ²/2 + σ² d / (2Nn) + b d Σ / 2."""
    return s.noise**2 / 2 + s.features * coordinate(s, math.inf, spread)


def lpproj_slope(s: LinearRegression, lam: float, dim: int, spread: float) -> float:
    """d L^l2 / d λ (Remark 31, its bracket closed after Σ₁); with dim = d, that of pFedMe."""
    return s.b**2 * dim * (lam * spread - estimation_noise(s)) / (s.b + lam) ** 3


def pfedme_beats_fedavg_from(s: LinearRegression, spread: float) -> float:
    """L^Me(λ) <= L^Avg if and only if λ is at least this: (λ* - b) / 2, or 0."""
    return max(0.0, (best_lam(s, spread) - s.b) / 2)


def lpproj_beats_fedavg_from(s: LinearRegression, lam: float, dim: int) -> float:
    """L^l2(λ) <= L^Avg if and only if the spread is at least this."""
    b = s.b
    d = s.features
    numerator = d * (b + lam) ** 2 - dim * lam * (2 * b + lam)
    denominator = d * (b + lam) ** 2 - dim * lam**2
    return estimation_noise(s) / b * numerator / denominator


def spread_of(w: Tensor, P: Tensor | None = None) -> float:  # w[N, d], P[m, d]
    """Σ of eq. (36): the variance over clients of a true coefficient.

    The mean over all coordinates, or over those of the subspace.
    """
    return float(coordinates_of(w, P).var(0, correction=0).mean())
