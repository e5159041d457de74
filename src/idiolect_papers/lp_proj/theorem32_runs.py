"""Runs and formulas behind Theorem 32 of the lp-proj paper: variances over clients, by seed.

The theorem is about losses averaged over the noise of training and test data. For runs this means:
the same true parameters with several draws of the noise, the mean loss of each client, and an
unbiased estimate of the variance of these means. By (45) the noise adds the same to every client's
loss, so runs on data without noise have this variance exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect.data.federation import Federation
from idiolect.data.sets.regression import Linear
from idiolect.method import Method

from ..closed_forms.linear_regression import fairness
from . import regression
from .regression import models_of, play

LOCAL, FEDAVG, PFEDME, DITTO, LPPROJ = "Local", "FedAvg", "pFedMe", "Ditto", "lp-proj-2"


@dataclass(frozen=True)
class Size:
    """The sizes of the experiment; those of the paper's Figure 1 as defaults."""

    setting: Linear = Linear()
    dim: int = 10
    lams: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    seeds: int = 8  # draws of the true parameters, features and P
    draws: int = 6  # of the noise, for each of them
    dims: tuple[int, ...] = (5, 10, 25, 50, 100)
    dims_lam: float = 1.0
    correlations: tuple[float, ...] = (0.0, 0.9)  # of any two coefficients of a w_k


def covariance(size: Size, rho: float = 0.0) -> Tensor:  # -> [d, d]
    """Σ_w with the same variance everywhere, and the same correlation."""
    d = size.setting.features
    one = torch.eye(d, dtype=torch.float64)
    return size.setting.heterogeneity * ((1 - rho) * one + rho * torch.ones_like(one))


def drawn(size: Size, seed: int, rho: float = 0.0) -> tuple[Tensor, Tensor]:  # xi[N, n, d], w[N, d]
    """Features and true parameters of a seed; w_k ~ N(0, Σ_w)."""
    s = size.setting
    federation, w = Linear(**{**s.as_dict(), "seed": seed}).draw()
    xi = torch.stack([federation.part(k, "train")[0] for k in range(s.clients)])
    common = np.random.default_rng([seed, 1]).standard_normal((s.clients, 1))
    shared = s.heterogeneity**0.5 * torch.from_numpy(common)
    return xi, (1 - rho) ** 0.5 * w + rho**0.5 * shared


def observed(size: Size, xi: Tensor, w: Tensor, key: list[int] | None = None) -> Federation:
    """Training data with noise of their own; without a key, with none."""
    s = size.setting
    y = (xi @ w.unsqueeze(-1)).squeeze(-1)
    if key is not None:
        rng = np.random.default_rng(key)
        y = y + s.noise * torch.from_numpy(rng.standard_normal((s.clients, s.samples)))
    owner = np.repeat(np.arange(s.clients), s.samples)
    flat = xi.reshape(-1, s.features)
    return Federation.from_arrays(flat, y.reshape(-1), owner, valid=0, test=0)


def run_losses(size: Size, method: Method, seen: list[Federation], w: Tensor, seed: int) -> Tensor:
    """Losses [draws, N] of the personal models that runs end with, averaged over test noise.

    Exactly: σ²/2 + b/2 ||x_k - w_k||², since the features of the test data are the same.
    """
    s = size.setting
    out = []
    for federation in seen:
        result = play(method, federation, seed, 2, eval_every=0)
        x = models_of(result, s.clients)
        out.append(s.noise**2 / 2 + s.b / 2 * (x - w).square().sum(1))
    return torch.stack(out)


def of_expected(loss: Tensor) -> float:  # loss[M, N]
    """Unbiased estimate of the variance over clients of the expected losses.

    With D the losses minus their mean over clients in each draw: E (mean over draws of D_k)² =
    (E D_k)² + var(D_k) / M, and the second part is estimated from the spread over draws.
    """
    M = len(loss)
    D = loss - loss.mean(1, keepdim=True)
    return float((D.mean(0).square() - D.var(0, correction=1) / M).mean())


def of_realised(loss: Tensor) -> float:
    """The variance over clients of the losses of one run, mean over draws."""
    return float(loss.var(1, correction=0).mean())


@dataclass(frozen=True)
class Runs:
    """The data of one seed, and V of the methods on them."""

    size: Size
    seed: int
    w: Tensor  # [N, d]
    noisy: list[Federation]
    clean: list[Federation]  # one, without noise

    def measure(self, method: Method) -> dict[str, float]:
        noisy = run_losses(self.size, method, self.noisy, self.w, self.seed)
        return {
            "averaged": of_expected(noisy),
            "realised": of_realised(noisy),
            "clean": self.without_noise(method),
        }

    def without_noise(self, method: Method) -> float:
        return of_realised(run_losses(self.size, method, self.clean, self.w, self.seed))


def over_lams(size: Size, seed: int) -> dict[str, Any]:
    """V of every method, by λ, for the true parameters of one seed."""
    s = size.setting
    xi, w = drawn(size, seed)
    noisy = [observed(size, xi, w, [seed, 2, m]) for m in range(size.draws)]
    runs = Runs(size, seed, w, noisy, [observed(size, xi, w)])
    P = regression.subspace(size.dim, s.features, seed)
    out: dict[str, Any] = {
        LOCAL: runs.measure(regression.local(s)),
        FEDAVG: runs.measure(regression.fedavg(s)),
        PFEDME: [],
        LPPROJ: [],
        "apart": 0.0,  # pFedMe and Ditto, relative
    }
    out[FEDAVG]["formula"] = fairness.variance(s, math.inf, w)
    for lam in size.lams:
        found = runs.measure(regression.pfedme(s, lam))
        out[PFEDME].append(found | {"formula": fairness.variance(s, lam, w)})
        if seed == 0:
            twin = runs.measure(regression.ditto(s, lam))
            apart = max(abs(twin[k] / found[k] - 1) for k in ("clean", "realised"))
            out["apart"] = max(out["apart"], apart)
        found = runs.measure(regression.lpproj(s, lam, size.dim))
        out[LPPROJ].append(found | {"formula": fairness.variance(s, lam, w, P)})
    return out


def over_dims(size: Size, rho: float, seed: int) -> dict[int, dict[str, float]]:
    """V of lp-proj by d_sub, for true parameters whose coefficients correlate."""
    s = size.setting
    xi, w = drawn(size, seed, rho)
    runs = Runs(size, seed, w, [], [observed(size, xi, w)])
    out = {}
    for dim in size.dims:
        P = regression.subspace(dim, s.features, seed)
        out[dim] = {
            "clean": runs.without_noise(regression.lpproj(s, size.dims_lam, dim)),
            "formula": fairness.variance(s, size.dims_lam, w, P),
            "mean_formula": fairness.expected(s, size.dims_lam, covariance(size, rho), P),
        }
    return out
