"""Rows that are disjoint slices of the model, one entry a column: one pass over the vector down, one pass up, P Pᵀ = I exactly.

What `contiguous` is, and `block` and `layers` with one row a block.
"""

from __future__ import annotations

from itertools import accumulate, groupby

import torch
from torch import Tensor


class Slices:
    """Row i sums slice i of the columns, times `value[d]`. Slices lie side by side; `widths` are their lengths.

    >>> P = Slices([2, 1], torch.tensor([3.0, 4.0, 5.0]))
    >>> P.down(torch.ones(1, 3)).tolist()
    [[7.0, 5.0]]
    """

    def __init__(self, widths: list[int], value: Tensor):
        self.dim, self.d, self.value = len(widths), sum(widths), value
        counts = [(width, len(list(same))) for width, same in groupby(widths)]
        ends = accumulate((width * count for width, count in counts), initial=0)
        self.runs = [
            (a, width, count) for (width, count), a in zip(counts, ends, strict=False)
        ]  # slices of one length, side by side

    def _parts(self, v: Tensor) -> list[Tensor]:  # [..., d] -> [..., count, width] for every run
        return [
            v[..., a : a + width * count].unflatten(-1, (count, width))
            for a, width, count in self.runs
        ]

    def down(self, x: Tensor) -> Tensor:
        pairs = zip(self._parts(x), self._parts(self.value), strict=True)
        return torch.cat(
            [torch.bmm(v.unsqueeze(1), part.permute(1, 2, 0))[:, 0].T for part, v in pairs], dim=1
        )  # a dot product a slice

    def up(self, u: Tensor) -> Tensor:
        return self._to_parts(
            u, u.new_empty(len(u), self.d), lambda place, part, v: torch.mul(part, v, out=place)
        )

    def add_up(self, g: Tensor, u: Tensor) -> Tensor:
        """g + Pᵀ u in one pass, in place."""
        return self._to_parts(u, g, lambda place, part, v: place.addcmul_(part, v))

    def _to_parts(self, u: Tensor, out: Tensor, put) -> Tensor:  # type: ignore[no-untyped-def]
        parts = u.split([count for _, _, count in self.runs], dim=1)
        for place, part, v in zip(self._parts(out), parts, self._parts(self.value), strict=True):
            put(place, part.unsqueeze(-1), v)
        return out

    def memory(self) -> int:
        return self.value.numel() * self.value.element_size()
