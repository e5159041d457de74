"""Eight bits per number, with a scale for every bucket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..wire.ragged import Ragged, Reader, join
from . import bits
from . import bits as buckets
from .stage import Coded, Form, Stage, array


@dataclass(frozen=True)
class Int8(Stage):
    """v becomes c max|v| / 127, c a whole number from -127 to 127.

    max|v| over the bucket is sent as float32. Rounded to the nearest c, a number is off by at most
    max|v| / 254; with stochastic rounding by less than max|v| / 127, and right on average.
    Bytes: n + 4 ceil(n / bucket).

    Linear quantisation as in Jacob et al. 2018, "Quantization and training of neural networks for
    efficient integer-arithmetic-only inference", symmetric, so that zero stays zero.

    >>> stage, form = Int8(), Form(2)
    >>> body = stage.encode(torch.tensor([[1.0, -2.0]]), {}, np.zeros(1, np.uint64), form).body
    >>> stage.decode(stage.read(Reader(body), np.ones(1, bool), form), None, {}, form)[0].tolist()
    [[1.0078740119934082, -2.0]]
    """

    bucket: int = knob(512, "numbers that share one scale", low=1)
    rounding: str = knob(
        "nearest", "how numbers between two levels are rounded", choices=("nearest", "stochastic")
    )

    def numbers(self, form: Form) -> int:
        return 0

    def limit(self, form: Form) -> int:
        return form.n + 4 * buckets.count(form.n, self.bucket)

    def down_values(self, form: Form) -> float:
        return self.limit(form) / 4

    def encode(self, rows: Tensor, state: State, keys: np.ndarray, form: Form) -> Coded:
        x = buckets.split(array(rows, form), self.bucket)
        norm = buckets.norms(x, "inf")
        r = buckets.ratio(x, norm, 127)
        r = np.rint(r) if self.rounding == "nearest" else buckets.dither(r, keys)
        code = np.clip(r, -127, 127).astype(np.int8)
        code = code.reshape(len(rows), x.shape[1] * x.shape[2])[:, : form.n]
        scales = Ragged.even(bits.to_bytes(norm, "<f4"))
        body = join([scales, Ragged.even(bits.to_bytes(code, "i1"))])
        return Coded(body, values=np.full(len(rows), self.down_values(form)))

    def read(self, reader: Reader, who: np.ndarray, form: Form) -> tuple[np.ndarray, np.ndarray]:
        """Numbers in [-1, 1] and the scales of their buckets."""
        norm = bits.from_bytes(reader.take(4 * buckets.count(form.n, self.bucket), who), "<f4")
        code = bits.from_bytes(reader.take(form.n, who), "i1")
        reader.reject((code == -128).any(axis=1), who)
        return (np.maximum(code, -127) / form.kind.type(127)).astype(form.kind), norm

    def decode(
        self, info: Any, rest: Tensor | None, memory: State, form: Form
    ) -> tuple[Tensor, State]:
        unit, norm = info
        return torch.from_numpy(buckets.join(unit, norm, self.bucket)), memory
