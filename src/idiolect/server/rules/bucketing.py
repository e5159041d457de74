"""Bucketing: averages of a few clients at random go to the rule in place of the clients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...core import streams
from ...core.knobs import knob
from .geometry import wide
from .rule import Wrapper


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
