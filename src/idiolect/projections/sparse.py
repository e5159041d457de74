"""Projections with few entries per column: a few passes over the model whatever dim is.

Slices: rows of P that are disjoint slices of the model, with one entry per column (`contiguous`,
and `block` and `layers` with one row per block). Sparse: signs and places only. With one entry per
column the rows are disjoint, so P Pᵀ = I exactly: the assumption of the theory holds, with all
singular values 1. Identity: nothing is projected: lp-proj is regularised in the whole space.
"""

from __future__ import annotations

from itertools import accumulate, groupby

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from .spec import Spec, shares


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
            products = torch.bmm(value.unsqueeze(1), part.permute(1, 2, 0))
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


def _signs(key: np.ndarray, count: int, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(
        (streams.bits(key, 0, count)[0] >> np.uint64(63)).astype(np.int8) * 2 - 1
    ).to(dtype)


_TILE = 4096  # columns after which places repeat (d/64 where that is more); signs never do


class Sparse:
    """Column j has `per_column` signed entries in random rows; every row is scaled to unit length.

    Places are drawn for a tile of some thousand columns and repeat, every row equally often; signs
    are drawn for every column. So P x is one pass that adds up the tiles, and only one tile is
    scattered: a random place for each of a million columns would cost ten times as much as the step
    that P regularises.
    """

    def __init__(
        self,
        spec: Spec,
        starts: tuple[int, ...],
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.dim = spec.dim
        self.d = starts[-1]
        self.tile = min(self.d, -(-max(_TILE, self.d // 64) // self.dim) * self.dim)
        self.maps = []
        for s in range(spec.per_column):
            row = _balanced_rows(seed, s, self.dim, self.tile)
            sign = _signs(streams.keys(seed, f"projection signs {s}"), self.d, dtype)
            self.maps.append((row.to(device), sign.to(device)))
        if spec.per_column == 1:  # rows are disjoint: their squared lengths are their counts
            every = self.maps[0][0].repeat(-(-self.d // self.tile))[: self.d]
            length = torch.bincount(every, minlength=self.dim).to(device=device, dtype=dtype)
        else:  # two entries of a column may fall into one row: measured
            length = torch.zeros(self.dim, dtype=dtype, device=device)
            for j in range(0, self.dim, 64):
                one_hot = torch.eye(self.dim, dtype=dtype, device=device)[j : j + 64]
                length[j : j + 64] = self.up(one_hot).square().sum(1)
        scale = length.rsqrt()
        # the scale goes into the entries: no pass of its own
        self.maps = [(row, self._tiled(scale[row], sign)) for row, sign in self.maps]

    def _tiled(self, scale: Tensor, sign: Tensor) -> Tensor:
        for a in range(0, self.d, self.tile):
            sign[a : a + self.tile] *= scale[: self.d - a]
        return sign

    def down(self, x: Tensor) -> Tensor:
        out = x.new_zeros(len(x), self.dim)
        for row, value in self.maps:
            total = x.new_zeros(len(x), self.tile)
            for a in range(0, self.d, self.tile):
                b = min(a + self.tile, self.d)
                total[:, : b - a].addcmul_(x[:, a:b], value[a:b])
            out.index_add_(1, row, total)
        return out

    def up(self, u: Tensor) -> Tensor:
        return self.add_up(u.new_zeros(len(u), self.d), u)

    def add_up(self, g: Tensor, u: Tensor) -> Tensor:
        for row, value in self.maps:
            tile = u.index_select(1, row)
            for a in range(0, self.d, self.tile):
                b = min(a + self.tile, self.d)
                g[:, a:b].addcmul_(tile[:, : b - a], value[a:b])
        return g

    def memory(self) -> int:
        return sum(
            row.numel() * row.element_size() + v.numel() * v.element_size() for row, v in self.maps
        )


def _balanced_rows(seed: int, s: int, dim: int, d: int) -> Tensor:  # -> int32[d]
    """A random place for every column, every row equally often (to within one).

    A shuffled repetition of 0 ... dim - 1.
    """
    order = np.argsort(
        streams.bits(streams.keys(seed, f"projection rows {s}"), 0, d)[0], kind="stable"
    )
    row = np.empty(d, dtype=np.int32)
    row[order] = np.arange(d, dtype=np.int64) % dim
    return torch.from_numpy(row)


class Contiguous(Slices):
    """Row i sums a slice of about d/dim neighbouring coordinates under random signs.

    One pass over the vector; nothing is kept but the signs.
    """

    def __init__(
        self,
        spec: Spec,
        starts: tuple[int, ...],
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        widths = shares(starts[-1], [1] * spec.dim)  # ceil(d/dim), then one less
        lengths = torch.tensor(widths, dtype=dtype)
        sign = _signs(streams.keys(seed, "projection signs"), starts[-1], dtype)
        super().__init__(
            widths, (sign / lengths.sqrt().repeat_interleave(torch.tensor(widths))).to(device)
        )


class Identity:
    def __init__(
        self,
        spec: Spec,
        starts: tuple[int, ...],
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
    ):
        self.dim = starts[-1]

    def down(self, x: Tensor) -> Tensor:
        return x

    def up(self, u: Tensor) -> Tensor:
        return u

    def add_up(self, g: Tensor, u: Tensor) -> Tensor:
        return g.add_(u)

    def memory(self) -> int:
        return 0
