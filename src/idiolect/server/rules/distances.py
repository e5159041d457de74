"""Rules by distances between rows: those that lie close together count."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from ...core.knobs import SettingError, knob
from .geometry import mean_around_median, squared_distances, wide
from .rule import Resilient, Rule, TooFew


def ranked(distances: Tensor, f: int) -> Tensor:  # [n, n] -> int64[n]
    """The rows, best first, by the sum of distances to their n - f - 2 nearest others (at least 1).

    Two rows that are each other's only neighbour have equal scores: then the sum of all distances
    decides, then the order.
    """
    near = distances.sort(1).values  # the first is the row itself: 0
    order = near.sum(1).argsort(stable=True)
    score = near[:, : max(len(near) - f - 2, 1) + 1].sum(1)
    return order[score[order].argsort(stable=True)]


@dataclass(frozen=True)
class Krum(Resilient, Rule):
    """The one row nearest to its neighbours: for few and similar clients; it discards what all
    others send.

    argmin_i sum of |x_i - x_j|² over the n - f - 2 others j nearest to i, n >= 2 f + 3; of equal
    scores the one with the least sum of all distances. `perfed`, the public code of lp-proj, takes
    as many neighbours (its n - f - 1 smallest count the row itself) but does not square. Weights
    are ignored: a malicious client could claim a large one. Cost n² m.

    >>> Krum(f=1)(torch.tensor([[0.0], [1.0], [2.0], [3.5], [900.0]]), torch.ones(5)).tolist()
    [1.0]

    Blanchard et al., Machine learning with adversaries: Byzantine tolerant gradient descent,
    NeurIPS 2017.
    """

    title = "krum"
    offset = 3
    variant: str = knob(
        "paper",
        "squared distances (paper), or not (perfed: the public code of lp-proj)",
        choices=("paper", "perfed"),
    )

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        distances = squared_distances(rows)
        if self.variant == "perfed":
            distances = distances.sqrt()
        best = ranked(distances, self.malicious(len(rows)))[0]
        return rows[best].clone()


@dataclass(frozen=True)
class MultiKrum(Resilient, Rule):
    """The mean of the m rows with the best Krum scores: m = 1 is Krum, m = n the mean.

    Scores as in Krum, n >= 2 f + 3. The paper's m is free; n - f, the default, is that of its
    experiments. Weights are ignored: a malicious client could claim a large one. Cost n² m.

    >>> MultiKrum(f=1)(torch.tensor([[0.0], [1.0], [1.0], [2.0], [900.0]]), torch.ones(5)).tolist()
    [1.0]

    Blanchard et al., Machine learning with adversaries: Byzantine tolerant gradient descent,
    NeurIPS 2017.
    """

    title = "multi-krum"
    offset = 3
    m: int = knob(0, "rows averaged; 0 = n - f", low=0)

    def check(self, n: int) -> None:
        super().check(n)
        if self.m > n:
            raise TooFew(f"m must be at most {n} for {self.name} with {n} clients, got {self.m}")

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        f = self.malicious(len(rows))
        best = ranked(squared_distances(rows), f)[: self.m or len(rows) - f]
        return wide(rows[best]).mean(0).to(rows.dtype)


@dataclass(frozen=True)
class Bulyan(Resilient, Rule):
    """Krum chooses n - 2 f rows one after another, and the middle values of every coordinate are
    averaged; for many clients, few of them malicious.

    theta = n - 2 f rows, each the Krum choice of those left; then, per coordinate, the mean of the
    theta - 2 f values nearest to their median. n >= 4 f + 3. Near the end Krum's n' - f - 2
    neighbours would be none; one is kept. Weights are ignored: a malicious client could claim a
    large one. Cost n² m + n³ log n.

    >>> rows = torch.tensor([[0.0], [1.0], [1.0], [1.0], [1.0], [2.0], [900.0]])
    >>> Bulyan(f=1)(rows, torch.ones(7)).tolist()
    [1.0]

    El Mhamdi, Guerraoui and Rouault, The hidden vulnerability of distributed learning in Byzantium,
    ICML 2018.
    """

    title = "bulyan"
    slope = 4
    offset = 3

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        f = self.malicious(len(rows))
        distances = squared_distances(rows)
        candidates = torch.arange(len(rows), device=rows.device)
        picks = []
        for _ in range(len(rows) - 2 * f):
            best = ranked(distances[candidates][:, candidates], f)[0]
            picks.append(candidates[best])
            candidates = candidates[candidates != candidates[best]]
        return mean_around_median(rows[torch.stack(picks)], len(picks) - 2 * f).to(rows.dtype)


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
                f"f must be at most {most} for {self.name} with {n} clients ({LIMIT} subsets), "
                f"got {f}: {count} subsets to try; 'nnm + trimmed-mean' has no such limit"
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
