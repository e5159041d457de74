"""Norms of the gradients of single samples, without these gradients, and what they are scaled by.

In a linear layer the gradient of a sample is Σ_t δ_t a_t', over its positions t, with a its inputs
and δ the derivative by its outputs. Its norm follows from a and δ (Goodfellow 2015), and the sum of
scaled gradients is one product of a with scaled δ, as in a plain backward pass ("book-keeping", Bu
et al., ICML 2023).
"""

from __future__ import annotations

import torch
from torch import Tensor

NUMBERS_AT_ONCE = 2**24  # of the gradients of single samples that are held in memory


def factors(squares: Tensor, bound: float) -> Tensor:
    """min(1, C / ||g_s||) from squared norms; 0 for a sample whose gradient is not finite.

    A model that overflows on a sample would otherwise say so without bound.

    >>> factors(torch.tensor([0.0, 0.25, 4.0, torch.inf, torch.nan]), 1.0)
    tensor([1.0000, 1.0000, 0.5000, 0.0000, 0.0000])
    """
    norms = squares.sqrt()
    return torch.where(norms.isfinite(), (bound / norms).clamp(max=1), 0)


def matrix_squares(a: Tensor, delta: Tensor) -> Tensor:
    """||Σ_t δ_t a_t'||² of each sample: a[n, T, inputs], δ[n, T, outputs] -> [n].

    From products of positions, [T, T], or from the gradients, whichever is less work. The former in
    double precision: large terms may cancel, and a norm must not be too small.
    """
    positions, inputs, outputs = a.shape[1], a.shape[2], delta.shape[2]
    dtype = a.dtype
    if positions == 1:
        return torch.linalg.vecdot(a, a).mul_(torch.linalg.vecdot(delta, delta)).squeeze(1)
    if by_positions(positions, inputs, outputs):
        precise = torch.float64 if a.device.type != "mps" else a.dtype
        a, delta = a.to(precise), delta.to(precise)
        products = torch.bmm(a, a.transpose(1, 2)).mul_(torch.bmm(delta, delta.transpose(1, 2)))
        return products.sum((1, 2)).clamp_(min=0).to(dtype)
    at_once = max(1, NUMBERS_AT_ONCE // (inputs * outputs))
    parts = []
    for some in range(0, len(a), at_once):
        piece = slice(some, some + at_once)
        each = torch.bmm(delta[piece].transpose(1, 2), a[piece]).flatten(1)
        parts.append(torch.linalg.vecdot(each, each))
    return torch.cat(parts)


def by_positions(positions: int, inputs: int, outputs: int) -> bool:
    """Whether products of positions are less work than the gradient of a matrix."""
    return 2 * positions * (inputs + outputs) < inputs * outputs
