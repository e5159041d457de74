"""Half precision: every number as 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..wire.ragged import Ragged, Reader
from . import bits
from .stage import Coded, Form, Stage


@dataclass(frozen=True)
class Half(Stage):
    """16 bits per number; what is not finite arrives so. Bytes: 2 n.

    float16: relative error at most 2^-11 from 6.1e-5 up; beyond 65,504 a number is cut to that.
    bfloat16: relative error at most 2^-8, with the range of float32.

    >>> coded = Half().encode(torch.tensor([[1.0, 1e9]]), {}, np.zeros(1, np.uint64), Form(2))
    >>> coded.body.lengths.tolist()
    [4]
    """

    kind: str = knob("float16", "which 16 bits", choices=("float16", "bfloat16"))

    @property
    def dtype(self) -> torch.dtype:
        return torch.float16 if self.kind == "float16" else torch.bfloat16

    def numbers(self, form: Form) -> int:
        return 0

    def limit(self, form: Form) -> int:
        return 2 * form.n

    def down_values(self, form: Form) -> float:
        return form.n / 2

    def encode(self, rows: Tensor, state: State, keys: np.ndarray, form: Form) -> Coded:
        top = torch.finfo(self.dtype).max
        cut = torch.where(rows.isinf(), rows, rows.clamp(-top, top))
        small = cut.detach().to("cpu", self.dtype).contiguous()
        body = Ragged.even(bits.to_bytes(small.view(torch.int16).numpy(), "<i2"))
        return Coded(body, values=np.full(len(rows), self.down_values(form)))

    def read(self, reader: Reader, who: np.ndarray, form: Form) -> np.ndarray:
        return bits.from_bytes(reader.take(2 * form.n, who), "<i2").copy()

    def decode(
        self, info: Any, rest: Tensor | None, memory: State, form: Form
    ) -> tuple[Tensor, State]:
        return torch.from_numpy(info).view(self.dtype).to(form.dtype), memory
