"""Clipping of whole messages: all parts together, each as a change of what was sent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.types import State
from .noise import released

LEAST_CLIP, MOST_CLIP = 1e-30, 1e30  # where C stays as it follows a quantile
COLUMNS = 8192  # numbers of each message that are at work at a time
BELOW = 1 - 2.0**-11  # a sum of 8192 squares in float32 may be off by less than this


def message_norms(up: State, reference: State) -> Tensor:  # -> float64[S]
    """The L2 norm of each message, its parts as changes of the `reference` where there is one.

    >>> up = {"w": torch.tensor([[4.0, 1.0]]), "c": torch.tensor([[4.0]])}
    >>> message_norms(up, {"w": torch.tensor([1.0, 1.0])}).tolist()
    [5.0]
    """
    squares = torch.zeros(len(next(iter(up.values()))), dtype=torch.float64)
    for name, rows in up.items():
        for a in range(0, rows.shape[1], COLUMNS):
            some = rows[:, a : a + COLUMNS]
            if name in reference:
                some = some - reference[name][..., a : a + COLUMNS]
            norms = torch.linalg.vector_norm(some, dim=1).double()
            if not bool(torch.isfinite(norms).all()):  # a square was too large for float32
                norms = torch.linalg.vector_norm(some.double(), dim=1)
            squares += norms.square().cpu()
    return squares.sqrt()


def clip_factors(norms: Tensor, clip: float) -> Tensor:  # float64[S] -> float64[S]
    """What messages are multiplied by: 1, or less where the norm is above the clipping norm.

    A message without a finite norm counts for nothing.

    >>> norms = torch.tensor([1.0, 4.0, torch.nan], dtype=torch.float64)
    >>> clip_factors(norms, 2.0).round(decimals=2).tolist()
    [1.0, 0.5, 0.0]
    """
    inside = norms <= clip * BELOW
    outside = clip * BELOW / norms.clamp(min=torch.finfo(norms.dtype).tiny)
    return torch.where(norms.isfinite(), torch.where(inside, 1.0, outside), 0.0)


def clipped_sum(rows: Tensor, reference: Tensor | None, factors: Tensor) -> Tensor:
    """Σ_i f_i (x_i - reference) of rows[S, m], in float64: [m]."""
    total = rows.new_zeros(rows.shape[1], dtype=torch.float64)
    factors = factors.to(rows.device)
    for a in range(0, rows.shape[1], COLUMNS):
        some = slice(a, a + COLUMNS)
        total[some] = factors @ rows[:, some].double()
        if reference is not None:
            total[some] -= factors.sum() * reference[some].double()
    return total


@dataclass(frozen=True)
class AdaptiveClip:
    """C follows a quantile of the norms (Andrew, Thakkar, McMahan and Ramaswamy, NeurIPS 2021).

    Each client adds ±1/2 to a count: whether its norm is within C. The count has noise of standard
    deviation σ_b, and the update z_Δ times C: together they cost what one mechanism with noise z
    does, 1 / z² = 1 / z_Δ² + 1 / (2 σ_b)².
    """

    quantile: float
    rate: float
    noise: float  # z of both together
    sample: int  # m, clients asked for a message: with Poisson sampling their expected number

    @property
    def count_noise(self) -> float:
        """σ_b: m / 20 as the paper has it, and no more than a sixteenth of the budget."""
        return max(self.sample / 20, 2 * self.noise)

    @property
    def update_noise(self) -> float:
        """z_Δ.

        >>> clip = AdaptiveClip(0.5, 0.2, noise=1.0, sample=10)
        >>> round(clip.update_noise**-2 + (2 * clip.count_noise) ** -2, 12)
        1.0
        """
        return (self.noise**-2 - (2 * self.count_noise) ** -2) ** -0.5

    def after(self, clip: float, norms: Tensor, noise: float) -> float:
        """C for the next round; `noise` is a standard normal number."""
        bits = (norms <= clip).double().sum() - len(norms) / 2  # b_i - 1/2 each
        count = released(bits.view(1), norms.new_tensor([noise]), self.count_noise)
        share = float(count) / self.sample + 0.5
        logarithm = math.log(clip) - self.rate * (share - self.quantile)
        return math.exp(min(max(logarithm, math.log(LEAST_CLIP)), math.log(MOST_CLIP)))
