"""The dense Gaussian projection, the lp-proj paper's default, for small d; and its blocks of rows.

"orthogonal" is the same with orthonormal rows (Appendix C.7.4); `block` and `layers` are made of
the same rows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import SettingError
from ..core.tensors import TILE, tiles
from .spec import Spec

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
