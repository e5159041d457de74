"""The dense Gaussian projection, the lp-proj paper's default, for small d; whole, or in blocks.

"orthogonal" is the same with orthonormal rows (Appendix C.7.4). `block` and `layers` are made of
the same rows: block-diagonal, k blocks over slices of the model (lp-proj, section 6.1) or over its
layers. Their time and storage are dim * d / k. The paper states storage dim * d / k²: true if one
block serves for all (`reuse`).
"""

from __future__ import annotations

from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import SettingError
from ..core.tensors import TILE, tiles
from .sparse import Slices
from .spec import Spec, shares

_PIECE = 1 << 22  # numbers generated at once: memory beyond P itself stays small


def rows(dim: int, d: int, seed: int, purpose: str, dtype: torch.dtype) -> Tensor:  # -> [dim, d]
    """i.i.d. N(0, 1) entries, each row scaled to unit length.

    Row i of a stream does not depend on how many rows are made.
    """
    key = streams.keys(seed, purpose)
    even = d + d % 2  # each row starts at an even place of the stream
    out = torch.empty(dim, d, dtype=dtype)
    at_once = max(1, _PIECE // even)
    for low in range(0, dim, at_once):
        count = min(at_once, dim - low)
        piece = streams.normal(key, count * even, start=low * even)[0].reshape(count, even)[:, :d]
        out[low : low + count] = torch.from_numpy(
            piece / np.linalg.norm(piece, axis=1, keepdims=True)
        )
    return out


def orthonormal(matrix: Tensor) -> Tensor:
    """Rows made orthonormal, each as near to its own direction as Gram-Schmidt leaves it.

    QR with a positive diagonal of R.
    """
    q, r = torch.linalg.qr(matrix.double().T)
    return (q * r.diagonal().sign()).T.to(matrix.dtype).contiguous()


# -- products of which a row has the same bits, alone or among any number of rows ------------------
def padded(x: Tensor) -> Tensor:  # [K, n] -> [a multiple of 12, n]
    """Zeros below, up to a whole number of tiles.

    >>> padded(torch.ones(1, 2)).shape, padded(torch.ones(24, 2)).shape
    (torch.Size([12, 2]), torch.Size([24, 2]))
    """
    missing = -len(x) % TILE
    return torch.cat([x, x.new_zeros(missing, x.shape[1])]) if missing else x


def down(block: Tensor, x: Tensor) -> Tensor:  # block[h, n], x[K, n] -> [K, h]
    """block x for every row x."""
    if len(block) == 1:  # BLAS multiplies by a single row with yet another kernel
        return (x * block).sum(1, keepdim=True)
    out = x.new_empty(len(x), len(block))
    for part in tiles(len(x)):  # a third faster than x @ block.T, for few rows
        out[part] = (block @ padded(x[part]).T).T[: part.stop - part.start]
    return out


def up(block: Tensor, u: Tensor) -> Tensor:  # block[h, n], u[K, h] -> [K, n]
    """blockᵀ u for every row u."""
    return (padded(u) @ block)[: len(u)]


def add_up(g: Tensor, block: Tensor, u: Tensor) -> Tensor:  # g[K, n]
    """g + blockᵀ u for every row u, in place."""
    for part in tiles(len(g)):
        rows = g[part]
        if len(rows) % TILE:
            rows.copy_(padded(rows).addmm_(padded(u[part]), block)[: len(rows)])
        else:
            rows.addmm_(u[part], block)
    return g


LIMIT = 2 << 30  # bytes of a dense P; beyond it another kind costs a thousandth of that


class DenseProjection:
    """Rows of i.i.d. N(0, 1) entries, each scaled to unit length (lp-proj, section 3).

    Costs dim * d numbers, and as many multiplications per product with one vector.
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
        d = starts[-1]
        size = spec.dim * d * dtype.itemsize
        if size > LIMIT:
            raise SettingError(
                f"projection: a dense {spec.kind!r} P of {spec.dim} x {d} takes "
                f"{size / 2**30:.1f} GiB, more than {LIMIT / 2**30:g}; use 'sparse', "
                "'contiguous', 'block' or 'layers', which cost a few passes over the model"
            )
        rows_of_p = rows(spec.dim, d, seed, "projection", dtype)
        self.rows = (orthonormal(rows_of_p) if spec.kind == "orthogonal" else rows_of_p).to(device)

    def down(self, x: Tensor) -> Tensor:
        return down(self.rows, x)

    def up(self, u: Tensor) -> Tensor:
        return up(self.rows, u)

    def add_up(self, g: Tensor, u: Tensor) -> Tensor:
        return add_up(g, self.rows, u)

    def memory(self) -> int:
        return self.rows.numel() * self.rows.element_size()


# -- blocks ----------------------------------------------------------------------------------------
class Blocks:
    """Block i maps the i-th group of columns to the i-th group of rows of P."""

    def __init__(
        self, widths: list[int], heights: list[int], blocks: list[Tensor], device: torch.device
    ):
        self.dim = sum(heights)
        self.d = sum(widths)
        self.columns = list(pairwise(accumulate(widths, initial=0)))
        self.heights = heights
        self.blocks = [b.to(device) for b in blocks]
        self.stacked: Tensor | None = None  # [k, height, width], in place of `blocks`
        alike = len(set(widths)) == len(set(heights)) == 1
        distinct = len({b.untyped_storage().data_ptr() for b in blocks}) == len(blocks)
        if alike and distinct:
            self.stacked = torch.stack(self.blocks)
            self.blocks = []

    def down(self, x: Tensor) -> Tensor:
        if self.stacked is not None:  # equal blocks: one batched product
            k, height, width = self.stacked.shape
            parts = x.view(len(x), k, width).transpose(0, 1)
            products = torch.bmm(parts, self.stacked.transpose(1, 2))
            return products.transpose(0, 1).reshape(len(x), k * height)
        pairs = zip(self.columns, self.blocks, strict=True)
        return torch.cat([x[:, a:b] @ block[:, : b - a].T for (a, b), block in pairs], dim=1)

    def up(self, u: Tensor) -> Tensor:
        if self.stacked is not None:
            k, height, width = self.stacked.shape
            parts = u.view(len(u), k, height).transpose(0, 1)
            return torch.bmm(parts, self.stacked).transpose(0, 1).reshape(len(u), k * width)
        out = u.new_empty(len(u), self.d)
        pieces = zip(self.columns, self.blocks, u.split(self.heights, dim=1), strict=True)
        for (a, b), block, part in pieces:
            torch.mm(part, block[:, : b - a], out=out[:, a:b])
        return out

    def add_up(self, g: Tensor, u: Tensor) -> Tensor:
        return g.add_(self.up(u))

    def grams(self) -> list[Tensor]:
        """The blocks of P Pᵀ."""
        if self.stacked is not None:
            return list(torch.bmm(self.stacked, self.stacked.transpose(1, 2)))
        cuts = [block[:, : b - a] for (a, b), block in zip(self.columns, self.blocks, strict=True)]
        return [cut @ cut.T for cut in cuts]

    def memory(self) -> int:
        tensors = [self.stacked] if self.stacked is not None else self.blocks
        return sum(
            {b.untyped_storage().data_ptr(): b.untyped_storage().nbytes() for b in tensors}.values()
        )


def block(
    spec: Spec, starts: tuple[int, ...], seed: int, dtype: torch.dtype, device: torch.device
) -> Slices | Blocks:
    """k blocks of about d/k columns and dim/k rows; sizes may differ by one."""
    k = spec.blocks or spec.dim
    widths = shares(starts[-1], [1] * k)
    heights = shares(spec.dim, [1] * k)
    if not spec.reuse:
        names = [f"projection block {i}" for i in range(k)]
        return _made(widths, heights, names, seed, dtype, device)
    one = rows(max(heights), max(widths), seed, "projection", dtype)
    cut = {  # by width, of which there are at most two
        w: one if w == max(widths) else _renormalised(one, w) for w in set(widths)
    }
    blocks = [cut[w][:h] for h, w in zip(heights, widths, strict=True)]
    return Blocks(widths, heights, blocks, device)


def layers(
    spec: Spec, starts: tuple[int, ...], seed: int, dtype: torch.dtype, device: torch.device
) -> Slices | Blocks:
    """Each parameter tensor of the model has rows of its own: shared out by size, or as given.

    `blocks` of about equal size within each layer: 1 is one dense block per layer, 0 one block per
    row of P.
    """
    sizes = [b - a for a, b in pairwise(starts)]
    dims = _given(spec, sizes) if spec.dims else _by_size(spec.dim, sizes)
    widths: list[int] = []
    heights: list[int] = []
    names: list[str] = []
    for i, (size, dim) in enumerate(zip(sizes, dims, strict=True)):
        k = max(1, min(spec.blocks or dim, dim))
        widths += shares(size, [1] * k)
        heights += shares(dim, [1] * k)
        names += [
            f"projection layer {i}" if k == 1 else f"projection layer {i} block {j}"
            for j in range(k)
        ]
    return _made(widths, heights, names, seed, dtype, device)


def _made(
    widths: list[int],
    heights: list[int],
    names: list[str],
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Slices | Blocks:
    blocks = [
        rows(h, w, seed, name, dtype) for h, w, name in zip(heights, widths, names, strict=True)
    ]
    if set(heights) == {1}:
        return Slices(widths, torch.cat([b[0] for b in blocks]).to(device))
    return Blocks(widths, heights, blocks, device)


def _renormalised(block: Tensor, width: int) -> Tensor:
    cut = block[:, :width]
    return cut / cut.norm(dim=1, keepdim=True)


def _by_size(dim: int, sizes: list[int]) -> list[int]:
    """Shares in proportion, none larger than its layer.

    >>> _by_size(600, [600, 10])
    [590, 10]
    """
    dims = [min(n, size) for n, size in zip(shares(dim, sizes), sizes, strict=True)]
    most_room_first = sorted(range(len(sizes)), key=lambda i: dims[i] - sizes[i])
    for i in most_room_first:
        dims[i] += min(dim - sum(dims), sizes[i] - dims[i])
    return dims


def _given(spec: Spec, widths: list[int]) -> list[int]:
    try:
        heights = [int(n) for n in spec.dims.split(",")]
    except ValueError:
        heights = []
    fits = (
        len(heights) == len(widths)
        and sum(heights) == spec.dim
        and all(0 <= h <= w for h, w in zip(heights, widths, strict=False))
    )
    if not fits:
        sizes = ", ".join(map(str, widths))
        raise SettingError(
            f"dims must be {len(widths)} numbers that sum to dim {spec.dim}, at most {sizes}, "
            f"got {spec.dims!r}"
        )
    return heights
