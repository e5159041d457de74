"""Clipping: no row is longer than a given norm."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..wire.ragged import Ragged
from .stage import Coded, Form, Stage


@dataclass(frozen=True)
class Clip(Stage):
    """x becomes x min(1, norm / ||x||_2).

    No bytes of its own; what is cut off is lost, unless `feedback` stands before it.
    Pascanu, Mikolov and Bengio 2013, "On the difficulty of training recurrent neural networks".

    >>> x = torch.tensor([[3.0, 4.0]])
    >>> Clip(norm=1.0).encode(x, {}, np.zeros(1, np.uint64), Form(2)).rest.norm().item()
    1.0
    """

    norm: float = knob(1.0, "the longest a row can be", above=0)

    def encode(self, rows: Tensor, state: State, keys: np.ndarray, form: Form) -> Coded:
        return Coded(Ragged.empty(len(rows)), clipped(rows, self.norm))


def clipped(rows: Tensor, norm: float) -> Tensor:
    """Rows cut to an l2 norm. A row that is not finite stays so."""
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
    return (rows * (norm / length).clamp(max=1)).to(rows.dtype)
