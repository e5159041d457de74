"""Krum: the row that sits closest to its neighbours; and the mean of the best such rows."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...core.knobs import knob
from .geometry import squared_distances, wide
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

    >>> import torch
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

    >>> import torch
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
            raise TooFew(
                f"m: {self.m} is not accepted for {self.name} with {n} clients; at most {n}"
            )

    def combine(self, rows: Tensor, weights: Tensor) -> Tensor:
        f = self.malicious(len(rows))
        best = ranked(squared_distances(rows), f)[: self.m or len(rows) - f]
        return wide(rows[best]).mean(0).to(rows.dtype)
