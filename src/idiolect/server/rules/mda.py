"""Minimum-diameter averaging."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from ...core.knobs import SettingError
from .geometry import squared_distances, wide
from .rule import Resilient, Rule

LIMIT = 200_000  # subsets tried at most


@lru_cache(maxsize=4)
def subsets(n: int, f: int) -> Tensor:  # -> float32[C(n, f), n]
    """1 where a row is kept, for every subset of n - f rows, in lexicographic order."""
    count = math.comb(n, f)
    left_out = np.fromiter(
        (i for s in combinations(range(n), f) for i in s), dtype=np.int64, count=count * f
    ).reshape(count, f)
    return torch.ones(count, n).scatter_(1, torch.from_numpy(left_out), 0).flip(0)


@dataclass(frozen=True)
class MDA(Resilient, Rule):
    """The mean of the n - f rows that lie closest together: the best bound for clients that differ,
    for few clients only.

    argmin over subsets of n - f rows of max |x_i - x_j|, found by trying all C(n, f) of them, at
    most 200,000. n >= 2 f + 1. Many have the same diameter: of these, the one with the least sum of
    |x_i - x_j|². Weights are ignored: a malicious client could claim a large one. Cost
    n² m + C(n, f) n² log n.

    >>> MDA(f=1)(torch.tensor([[0.0], [1.0], [2.0], [900.0]]), torch.ones(4)).tolist()
    [1.0]

    El Mhamdi et al., Genuinely distributed Byzantine machine learning, PODC 2020.
    """

    title = "mda"

    def check(self, n: int) -> None:
        super().check(n)
        f = self.malicious(n)
        count = math.comb(n, f)
        if count > LIMIT:
            most = max(k for k in range(f) if math.comb(n, k) <= LIMIT)
            raise SettingError(
                f"f: {f} is not accepted for {self.name} with {n} clients: {count} subsets to try; "
                f"at most {most} ({LIMIT} subsets), or 'nnm + trimmed-mean', "
                "which has no such limit"
            )

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        n = len(rows)
        distances = squared_distances(rows)
        sizes = distances.unique()
        candidates = subsets(n, self.malicious(n)).to(rows.device)
        low = 0
        high = len(sizes) - 1
        while low < high:  # candidates: all subsets of diameter <= sizes[high]
            middle = (low + high) // 2
            far = (distances > sizes[middle]).to(candidates)
            fits = (candidates @ far * candidates).sum(1) == 0
            if fits.any():
                candidates = candidates[fits]
                high = middle
            else:
                low = middle + 1
        sums = (wide(candidates) @ distances.clamp(max=1e300) * candidates).sum(1)
        return wide(rows[candidates[sums.argmin()] > 0]).mean(0).to(rows.dtype)
