"""Signs: one bit per number, and how large they are on average."""

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
from .stage import Coded, Form, Stage, array


@dataclass(frozen=True)
class Sign(Stage):
    """x becomes (||x||_1 / n) sign(x), over the whole row or over each tensor; zero counts as plus.

    Biased: ||C(x) - x||^2 = (1 - ||x||_1^2 / (n ||x||^2)) ||x||^2; put `feedback` before it. With
    scale="none" only the signs arrive, as +1 and -1, for signSGD with a server step size (a
    majority vote is the sign of their mean); a row that is not finite then has no bytes and is
    rejected. Bytes: ceil(n / 8), and 4 per scale.

    Bernstein et al. 2018, "signSGD: compressed optimisation for non-convex problems"; Karimireddy
    et al. 2019, "Error feedback fixes SignSGD".

    >>> stage, form = Sign(), Form(3)
    >>> body = stage.encode(torch.tensor([[1.0, -2.0, 0.0]]), {}, np.zeros(1, np.uint64), form).body
    >>> stage.decode(stage.read(Reader(body), np.ones(1, bool), form), None, {}, form)[0].tolist()
    [[1.0, -1.0, 1.0]]
    """

    scale: str = knob("l1", "mean magnitude, or none", choices=("l1", "none"))
    layers: bool = knob(False, "a scale for each tensor of the message instead of one")

    def edges(self, form: Form) -> np.ndarray:
        """Where the parts with a scale of their own begin, and n."""
        return np.array(sorted({0, form.n, *(form.starts if self.layers else ())}))

    def scales(self, form: Form) -> int:
        """How many scales are sent."""
        return 0 if self.scale == "none" else len(self.edges(form)) - 1

    def numbers(self, form: Form) -> int:
        return 0

    def limit(self, form: Form) -> int:
        return 4 * self.scales(form) + bits.size(form.n, 1)

    def down_values(self, form: Form) -> float:
        return self.scales(form) + form.n / 32

    def encode(self, rows: Tensor, state: State, keys: np.ndarray, form: Form) -> Coded:
        x = array(rows, form)
        edges = self.edges(form)
        body = Ragged.even(bits.pack(x < 0, 1))
        if self.scale == "none":
            body.lengths[~np.isfinite(x).all(axis=1)] = 0
        else:
            mean = np.add.reduceat(np.abs(x), edges[:-1], axis=1, dtype=np.float64) / np.diff(edges)
            body = join([Ragged.even(bits.to_bytes(bits.ceil32(mean), "<f4")), body])
        return Coded(body, values=np.full(len(rows), self.down_values(form)))

    def read(self, reader: Reader, who: np.ndarray, form: Form) -> tuple[np.ndarray, np.ndarray]:
        scale = bits.from_bytes(reader.take(4 * self.scales(form), who), "<f4")
        raw = reader.take(bits.size(form.n, 1), who)
        reader.reject(bits.stray_bits(raw, form.n), who)
        return scale, bits.unpack(raw, 1, form.n)

    def decode(
        self, info: Any, rest: Tensor | None, memory: State, form: Form
    ) -> tuple[Tensor, State]:
        scale, negative = info
        signs = (1 - 2 * negative.astype(np.int8)).astype(form.kind)
        if self.scale == "l1":
            with np.errstate(invalid="ignore"):  # a hostile scale
                signs *= np.repeat(scale.astype(form.kind), np.diff(self.edges(form)), axis=1)
        return torch.from_numpy(signs), memory
