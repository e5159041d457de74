"""Rows of P that are disjoint slices of the model, with one entry per column.

One pass over the vector down, one pass up, and P Pᵀ = I exactly. What `contiguous` is, and `block`
and `layers` with one row per block.
"""

from __future__ import annotations

from itertools import accumulate, groupby

import torch
from torch import Tensor


class Slices:
    """Row i of P sums slice i of the columns, weighted by `value[d]`.

    The slices follow one another; `widths` are their lengths.

    >>> P = Slices([2, 1], torch.tensor([3.0, 4.0, 5.0]))
    >>> P.down(torch.ones(1, 3)).tolist()
    [[7.0, 5.0]]
    """

    def __init__(self, widths: list[int], value: Tensor):
        self.dim = len(widths)
        self.d = sum(widths)
        self.value = value
        counts = [(width, len(list(same))) for width, same in groupby(widths)]
        begins = accumulate((width * count for width, count in counts), initial=0)
        self.runs = [  # neighbouring slices of one length
            (begin, width, count) for (width, count), begin in zip(counts, begins, strict=False)
        ]

    def _parts(self, v: Tensor) -> list[Tensor]:  # [..., d] -> [..., count, width] for every run
        return [
            v[..., begin : begin + width * count].unflatten(-1, (count, width))
            for begin, width, count in self.runs
        ]

    def down(self, x: Tensor) -> Tensor:
        sums = []
        for part, value in zip(self._parts(x), self._parts(self.value), strict=True):
            products = torch.bmm(
                value.unsqueeze(1), part.permute(1, 2, 0)
            )
            sums.append(products[:, 0].T)
        return torch.cat(sums, dim=1)

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
