"""Rows of P that are disjoint slices of the model, with one entry per column.

One pass over the vector down, one pass up, and P Pᵀ = I exactly. What `contiguous` is, and `block`
and `layers` with one row per block.
"""

from __future__ import annotations

from itertools import accumulate, groupby

import torch
from torch import Tensor

_LARGE = 1 << 13  # numbers per row from which on a call per row costs less than a product kept


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
        parts = zip(self._parts(x), self._parts(self.value), strict=True)
        return torch.cat([dots(part, value) for part, value in parts], dim=1)

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


def dots(x: Tensor, value: Tensor) -> Tensor:  # x[K, count, width], value[count, width]
    """The dot product of each slice of each row with the same slice of `value`, [K, count].

    No product spans two rows, so that a row has the same bits whatever rows are beside it. One
    matrix product for all rows would be faster, but adds in an order that depends on their number.

    >>> dots(torch.ones(2, 2, 3), torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]])).tolist()
    [[3.0, 6.0], [3.0, 6.0]]
    """
    if value.numel() < _LARGE:
        return (x * value).sum(-1)
    out = x.new_empty(len(x), len(value))
    for row, place in zip(x, out, strict=True):
        columns = row.unsqueeze(0).permute(1, 2, 0)  # BLAS is slow with the strides of unsqueeze(2)
        place.copy_(torch.bmm(value.unsqueeze(1), columns).view(-1))
    return out
