"""Dense blocks of Gaussian rows: what `gaussian`, `orthogonal`, `block` and `layers` are made of."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..core import streams

_PIECE = 1 << 22  # numbers generated at once: memory beyond P itself stays small


def rows(dim: int, d: int, seed: int, purpose: str, dtype: torch.dtype) -> Tensor:  # -> [dim, d]
    """i.i.d. N(0, 1) entries, each row scaled to unit length; row i of a stream does not depend on how many rows are made."""
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
    """Rows made orthonormal, each as near to its own direction as Gram-Schmidt leaves it (QR with positive diagonal)."""
    q, r = torch.linalg.qr(matrix.double().T)
    return (q * r.diagonal().sign()).T.to(matrix.dtype).contiguous()
