"""What theorems on convergence speak of in place of the last iterate.

Their weights, weighted averages, and iterates drawn at random. Shapes: iterates w[T, m] of the
rounds 0 ... T - 1, weights [T], which add up to 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from idiolect.core import streams


def geometric_weights(rounds: int, rate: float) -> Tensor:  # -> [T]
    """α_t / A_T with α_t = (1 - rate)^-(t + 1), 0 <= rate < 1 (lp-proj, Theorem 9).

    As (1 - rate)^(T - 1 - t) / sum: α_t itself overflows.

    >>> geometric_weights(3, 0.5).tolist() == [1 / 7, 2 / 7, 4 / 7]
    True
    """
    powers = (1 - rate) ** torch.arange(rounds - 1, -1, -1, dtype=torch.float64)
    return powers / powers.sum()


def step_weights(steps: Tensor) -> Tensor:  # [T] -> [T]
    """α_t = η_t / sum η (lp-proj, Theorem 15); 1 / T for constant steps (Theorem 13)."""
    return steps / steps.sum()


def averaged(w: Tensor, weights: Tensor) -> Tensor:  # [T, m], [T] -> [m]
    """w̄_T = sum_t α_t w_t."""
    return weights.to(w) @ w


def draw_rounds(weights: Tensor, count: int, seed: int) -> Tensor:  # -> int64[count]
    """`count` independent t* with P(t* = t) = α_t.

    >>> draw_rounds(torch.tensor([0.0, 1.0, 0.0]), 3, seed=0).tolist()
    [1, 1, 1]
    """
    uniform = torch.from_numpy(streams.uniform(streams.keys(seed, "t*"), count)[0])
    ends = weights.double().cumsum(0)
    return torch.searchsorted(ends / ends[-1], uniform, right=True).clamp(max=len(weights) - 1)
