"""The dense Gaussian projection: the paper's default, for small d."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .. import streams


class Gaussian:
    """Rows of i.i.d. N(0, 1) entries, each scaled to unit length (lp-proj, section 3). Costs dim * d numbers and products."""

    def __init__(self, dim: int, d: int, seed: int, dtype: torch.dtype, device: torch.device):
        self.dim = dim
        key = streams.keys(seed, "projection")
        rows = torch.empty(dim, d, dtype=dtype)
        even = d + d % 2  # each row starts at an even place of the stream, so rows can be made one by one
        for i in range(dim):
            row = streams.normal(key, d, start=i * even)[0]
            rows[i] = torch.from_numpy(row / np.linalg.norm(row))
        self.rows = rows.to(device)

    def down(self, x: Tensor) -> Tensor:
        return x @ self.rows.T

    def up(self, u: Tensor) -> Tensor:
        return u @ self.rows
