"""P = I: nothing is projected, so that lp-proj is regularised in the whole space."""

from __future__ import annotations

import torch
from torch import Tensor

from .spec import Spec


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
