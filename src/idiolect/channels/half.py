"""Half precision: every number as 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..method import State
from .ragged import Ragged, Reader
from .stage import Coded, Form, Stage


@dataclass(frozen=True)
class Half(Stage):
    """IEEE 16-bit numbers: relative error at most 2^-11; beyond 65,504 a number is cut to that.

    >>> coded = Half().encode(torch.tensor([[1.0, 1e9]]), {}, np.zeros(1, np.uint64), Form(2))
    >>> coded.body.lengths.tolist()
    [4]
    """

    def numbers(self, form: Form) -> int:
        return 0

    def limit(self, form: Form) -> int:
        return 2 * form.n

    def down_values(self, form: Form) -> float:
        return form.n / 2

    def encode(self, rows: Tensor, state: State, keys: np.ndarray, form: Form) -> Coded:
        top = torch.finfo(torch.float16).max
        small = rows.clamp(-top, top).to(torch.float16).cpu().contiguous().numpy().astype("<f2", copy=False)
        return Coded(Ragged.even(small.view(np.uint8).reshape(len(rows), 2 * form.n)), values=np.full(len(rows), form.n / 2))

    def read(self, reader: Reader, who: np.ndarray, form: Form) -> np.ndarray:
        return np.ascontiguousarray(reader.take(2 * form.n, who)).view("<f2").astype(np.float16)

    def decode(self, info: Any, rest: Tensor | None, memory: State, form: Form) -> tuple[Tensor, State]:
        return torch.from_numpy(info).to(form.dtype), memory
