"""Sparse projections: signs and places only, a few passes over the model whatever dim is.

With one entry a column the rows are disjoint, so P Pᵀ = I exactly: the theory's assumption holds with both singular values 1.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .. import streams
from .spec import Spec


def _signs(key: np.ndarray, count: int, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy((streams.bits(key, 0, count)[0] >> np.uint64(63)).astype(np.int8) * 2 - 1).to(dtype)


class Sparse:
    """Column j has `per_column` signed entries in random rows; every row is scaled to unit length."""

    def __init__(self, spec: Spec, starts: tuple[int, ...], seed: int, dtype: torch.dtype, device: torch.device):
        self.dim, self.d = spec.dim, starts[-1]
        self.maps = []
        for s in range(spec.per_column):
            row, sign = _balanced_rows(seed, s, self.dim, self.d), _signs(streams.keys(seed, f"projection signs {s}"), self.d, dtype)
            self.maps.append((row.to(device), sign.to(device)))
        if spec.per_column == 1:  # the usual case: rows are disjoint, their lengths are their counts
            length = torch.bincount(self.maps[0][0].long(), minlength=self.dim).to(device=device, dtype=dtype)
        else:  # two entries of a column may fall into one row: measure
            length = torch.zeros(self.dim, dtype=dtype, device=device)
            for j in range(0, self.dim, 64):
                one_hot = torch.eye(self.dim, dtype=dtype, device=device)[j : j + 64]
                length[j : j + 64] = self._spread(one_hot).square().sum(1)
        scale = length.rsqrt()
        self.maps = [(row, sign * scale[row.long()]) for row, sign in self.maps]  # the scale goes into the entries: no pass of its own

    def down(self, x: Tensor) -> Tensor:
        out = x.new_zeros(len(x), self.dim)
        for row, value in self.maps:
            out.scatter_add_(1, row.long().expand(len(x), -1), x * value)
        return out

    def up(self, u: Tensor) -> Tensor:
        return self._spread(u)

    def add_up(self, g: Tensor, u: Tensor) -> Tensor:
        return g.add_(self._spread(u))

    def _spread(self, u: Tensor) -> Tensor:
        row, value = self.maps[0]
        out = u.index_select(1, row).mul_(value)
        for row, value in self.maps[1:]:
            out += u.index_select(1, row) * value
        return out

    def memory(self) -> int:
        return sum(row.numel() * row.element_size() + v.numel() * v.element_size() for row, v in self.maps)


def _balanced_rows(seed: int, s: int, dim: int, d: int) -> Tensor:  # -> int32[d]
    """A random place for every column, every row equally often (to within one): a shuffled repetition of 0 ... dim - 1."""
    order = np.argsort(streams.bits(streams.keys(seed, f"projection rows {s}"), 0, d)[0], kind="stable")
    row = np.empty(d, dtype=np.int32)
    row[order] = np.arange(d, dtype=np.int64) % dim
    return torch.from_numpy(row)


class Contiguous:
    """Row i sums a slice of about d/dim neighbouring coordinates under random signs: one pass over the vector, nothing else kept."""

    def __init__(self, spec: Spec, starts: tuple[int, ...], seed: int, dtype: torch.dtype, device: torch.device):
        self.dim, self.d = spec.dim, starts[-1]
        self.long = -(-self.d // self.dim)  # slices of ceil(d/dim), then of one less
        self.many = self.d - (self.long - 1) * self.dim  # how many of the long ones
        sign = _signs(streams.keys(seed, "projection signs"), self.d, dtype)
        cut = self.many * self.long
        sign[:cut] /= self.long**0.5
        sign[cut:] /= max(self.long - 1, 1) ** 0.5
        self.value = sign.to(device)

    def _parts(self, v: Tensor) -> tuple[Tensor, Tensor]:  # [..., d] -> [..., many, long], [..., dim - many, long - 1]
        cut = self.many * self.long
        return v[..., :cut].unflatten(-1, (self.many, self.long)), v[..., cut:].unflatten(-1, (self.dim - self.many, self.long - 1))

    def down(self, x: Tensor) -> Tensor:
        pairs = zip(self._parts(x), self._parts(self.value), strict=True)
        return torch.cat([torch.bmm(v.unsqueeze(1), part.permute(1, 2, 0))[:, 0].T for part, v in pairs], dim=1)  # a dot product a slice

    def up(self, u: Tensor) -> Tensor:
        out = u.new_empty(len(u), self.d)
        for part, value, place in zip(
            u.split([self.many, self.dim - self.many], dim=1), self._parts(self.value), self._parts(out), strict=True
        ):
            torch.mul(part.unsqueeze(-1), value, out=place)
        return out

    def add_up(self, g: Tensor, u: Tensor) -> Tensor:
        """g + Pᵀ u in one pass, in place."""
        for part, value, place in zip(
            u.split([self.many, self.dim - self.many], dim=1), self._parts(self.value), self._parts(g), strict=True
        ):
            place.addcmul_(part.unsqueeze(-1), value)
        return g

    def memory(self) -> int:
        return self.value.numel() * self.value.element_size()
