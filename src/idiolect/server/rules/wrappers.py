"""Wrappers: fewer or milder rows for the rule that follows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core import streams
from ...core.knobs import knob
from . import geometry
from .geometry import squared_distances, wide
from .rule import Resilient, Wrapper


@dataclass(frozen=True)
class Bucketing(Wrapper):
    """The means of random buckets of `size` clients go to the rule that follows: rows that differ
    less. There are fewer of them, and as many may be malicious as before.

    The clients in random order, cut every `size` rows (the last bucket may be smaller), and the
    plain mean of each bucket. f malicious clients spoil at most f of the ceil(n / size) buckets, so
    the rule must withstand f among these. A bucket's weight is the sum of its clients'. The order
    comes from `key` alone, which is made of seed and round. Cost n m.

    >>> rows, weights = Bucketing(size=2)(torch.arange(5.0).unsqueeze(1), torch.ones(5), key=7)
    >>> rows.shape, weights.tolist()
    (torch.Size([3, 1]), [2.0, 2.0, 1.0])

    Karimireddy, He and Jaggi, Byzantine-robust learning on heterogeneous datasets via bucketing,
    ICLR 2022.
    """

    title = "bucketing"
    by_coordinate = True
    size: int = knob(2, "clients per bucket", low=1)

    def __call__(self, rows: Tensor, weights: Tensor, *, key: int = 0) -> tuple[Tensor, Tensor]:
        n = len(rows)
        order = streams.bits(streams.keys(key, "bucketing"), 0, n)[0].argsort(kind="stable")
        bucket = torch.empty(n, dtype=torch.int64)
        bucket[torch.from_numpy(order)] = torch.arange(n) // self.size
        member = torch.nn.functional.one_hot(bucket, self.after(n)).T  # [buckets, n]
        member = member.to(rows.device)
        means = wide(member) / member.sum(1, keepdim=True) @ wide(rows)
        return means.to(rows.dtype), member.to(weights.dtype) @ weights

    def after(self, n: int) -> int:
        return -(-n // self.size)


@dataclass(frozen=True)
class NNM(Resilient, Wrapper):
    """Every row becomes the mean of the n - f rows nearest to it, itself among them; gives most
    rules the best possible order of error.

    y_i = mean of the n - f rows x_j of least |x_i - x_j|; of rows as near, the first. n >= 2 f + 1.
    Weights pass unchanged and are not used. Cost n² m, twice.

    >>> rows, _ = NNM(f=1)(torch.tensor([[0.0], [1.0], [2.0], [900.0]]), torch.ones(4))
    >>> [round(x, 3) for x in rows[:, 0].tolist()]
    [1.0, 1.0, 1.0, 301.0]

    Allouah et al., Fixing by mixing: a recipe for optimal Byzantine ML under heterogeneity,
    AISTATS 2023.
    """

    title = "nnm"

    def __call__(self, rows: Tensor, weights: Tensor, *, key: int = 0) -> tuple[Tensor, Tensor]:
        n = len(rows)
        keep = n - self.malicious(n)
        distances = squared_distances(rows)
        near = distances.argsort(dim=1, stable=True)[:, :keep]
        mixing = torch.zeros_like(distances).scatter_(1, near, 1 / keep)
        return (mixing @ wide(rows)).to(rows.dtype), weights


@dataclass(frozen=True)
class NormBound(Wrapper):
    """Every row is pulled to within `bound` of the coordinate median; cheap, and with `mean`
    already a defence against messages of large norm.

    x_k <- c + (x_k - c) min(1, bound / |x_k - c|) with c the coordinate median (the paper bounds
    changes, c = 0: the median serves models as well as changes). bound = 0 takes the median of
    these distances. Weights pass unchanged and are not used. Cost n log n per coordinate.

    >>> rows = torch.tensor([[0.0], [1.0], [2.0], [1.0], [900.0]])
    >>> NormBound(bound=2.0)(rows, torch.ones(5))[0][:, 0].tolist()
    [0.0, 1.0, 2.0, 1.0, 3.0]

    Sun et al., Can you really backdoor federated learning?, 2019.
    """

    title = "norm-bound"
    weighs = True  # in the rule that follows: a row is still its client's
    bound: float = knob(
        0.0, "largest distance from the coordinate median; 0 = the median of the distances", low=0
    )

    def __call__(self, rows: Tensor, weights: Tensor, *, key: int = 0) -> tuple[Tensor, Tensor]:
        centre = geometry.median(rows)
        x = geometry.wide(rows) - centre
        bound = self.bound or geometry.median(torch.linalg.vector_norm(x, dim=1))
        return (geometry.clipped(x, bound) + centre).to(rows.dtype), weights
