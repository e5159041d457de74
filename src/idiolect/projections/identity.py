"""P = I: nothing is projected, so that lp-proj is regularised in the whole space."""

from __future__ import annotations

import torch
from torch import Tensor


class Identity:
    def __init__(self, dim: int, d: int, seed: int, dtype: torch.dtype, device: torch.device):
        self.dim = d

    def down(self, x: Tensor) -> Tensor:
        return x

    def up(self, u: Tensor) -> Tensor:
        return u
