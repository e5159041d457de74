"""Stages that pass on or code every number: clipping, error feedback, 16 bits, 8 bits, one bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..wire.ragged import Ragged, Reader, join
from . import bits
from .stage import Coded, Form, Stage, array


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


@dataclass(frozen=True)
class Feedback(Stage):
    """x + e is coded by the stages that follow; e <- x + e - (what arrived).

    Each client keeps a row of n numbers, e. Makes biased channels (top-k, sign) converge.
    Karimireddy, Rebjock, Stich and Jaggi 2019, "Error feedback fixes SignSGD and other gradient
    compression schemes".

    >>> Feedback().client(Form(3))
    {'e': 3}
    """

    needs_receipt: ClassVar[bool] = True
    resends_losses: ClassVar[bool] = True

    def client(self, form: Form) -> dict[str, int]:
        return {"e": form.n}

    def encode(self, rows: Tensor, state: State, keys: np.ndarray, form: Form) -> Coded:
        whole = rows + state["e"]
        return Coded(Ragged.empty(len(rows)), whole, state={"e": whole})

    def acknowledge(self, rows: Tensor, received: Tensor, state: State, form: Form) -> State:
        return {"e": state["e"] - received.to(rows)}


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
        return form.n + 4 * bits.count(form.n, self.bucket)

    def down_values(self, form: Form) -> float:
        return self.limit(form) / 4

    def encode(self, rows: Tensor, state: State, keys: np.ndarray, form: Form) -> Coded:
        x = bits.split(array(rows, form), self.bucket)
        norm = bits.norms(x, "inf")
        r = bits.ratio(x, norm, 127)
        r = np.rint(r) if self.rounding == "nearest" else bits.dither(r, keys)
        code = np.clip(r, -127, 127).astype(np.int8)
        code = code.reshape(len(rows), x.shape[1] * x.shape[2])[:, : form.n]
        scales = Ragged.even(bits.to_bytes(norm, "<f4"))
        body = join([scales, Ragged.even(bits.to_bytes(code, "i1"))])
        return Coded(body, values=np.full(len(rows), self.down_values(form)))

    def read(self, reader: Reader, who: np.ndarray, form: Form) -> tuple[np.ndarray, np.ndarray]:
        """Numbers in [-1, 1] and the scales of their buckets."""
        norm = bits.from_bytes(reader.take(4 * bits.count(form.n, self.bucket), who), "<f4")
        code = bits.from_bytes(reader.take(form.n, who), "i1")
        reader.reject((code == -128).any(axis=1), who)
        return (np.maximum(code, -127) / form.kind.type(127)).astype(form.kind), norm

    def decode(
        self, info: Any, rest: Tensor | None, memory: State, form: Form
    ) -> tuple[Tensor, State]:
        unit, norm = info
        return torch.from_numpy(bits.join(unit, norm, self.bucket)), memory


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
