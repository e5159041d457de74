"""QSGD: numbers rounded at random to a few levels of their bucket's norm."""

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
class QSGD(Stage):
    """Every number v of a bucket becomes norm * sign(v) * l / s, s = levels - 1.

    l in {0, ..., s} is random with E l = s |v| / norm, so the result is unbiased. With the l2 norm
    and buckets of b numbers, E ||Q(v) - v||^2 <= min(b / s^2, sqrt(b) / s) ||v||^2; with the inf
    norm each number is off by less than norm / s. A bucket with a number that is not finite arrives
    as not finite.

    Bytes: 4 ceil(n / bucket) for the norms, and ceil(n (1 + ceil(log2 levels)) / 8) packed.
    `coding="elias"` sends the gaps between the numbers that are not zero, their signs and their
    levels as gamma codes: shorter where many are zero (l2 norm, few levels or large buckets),
    longer where few are. Words as the lp-proj paper counts:
    ceil(n / bucket) + n (1 + ceil(log2 levels)) / 32.

    Alistarh, Grubic, Li, Tomioka and Vojnovic 2017, "QSGD: Communication-efficient SGD via gradient
    quantization and encoding".

    >>> coded = QSGD(levels=4).encode(torch.ones(1, 1000), {}, np.zeros(1, np.uint64), Form(1000))
    >>> coded.body.lengths.tolist()  # two norms, 3 bits per number
    [383]
    """

    levels: int = knob(
        16,
        "magnitudes a number can take, zero included: q of lp-proj, s + 1 of QSGD",
        low=2,
        high=2**15,
    )
    bucket: int = knob(512, "numbers that share one norm", low=1)
    norm: str = knob("l2", "the norm of a bucket", choices=("l2", "inf"))
    coding: str = knob(
        "packed", "fixed width, or gamma codes of what is not zero", choices=("packed", "elias")
    )

    @property
    def width(self) -> int:
        """Bits of a packed number: its level, then its sign."""
        return (self.levels - 1).bit_length() + 1

    def numbers(self, form: Form) -> int:
        return 0

    def limit(self, form: Form) -> int:
        scales = 4 * buckets.count(form.n, self.bucket)
        if self.coding == "packed":
            return scales + bits.size(form.n, self.width)
        # A gap g takes at most 1.5 g bits, and the gaps sum to n at most.
        gaps = 4 + bits.size(3 * form.n // 2, 1)
        return scales + 4 + gaps + bits.size(form.n, 1) + bits.gamma_limit(form.n, self.levels - 1)

    def down_values(self, form: Form) -> float:
        return buckets.count(form.n, self.bucket) + form.n * self.width / 32

    def encode(self, rows: Tensor, state: State, keys: np.ndarray, form: Form) -> Coded:
        x = buckets.split(array(rows, form), self.bucket)
        flat = (len(rows), x.shape[1] * x.shape[2])
        norm = buckets.norms(x, self.norm)
        level = buckets.dither(buckets.ratio(np.abs(x), norm, self.levels - 1), keys)
        level = np.minimum(level, self.levels - 1).astype(np.uint16).reshape(flat)[:, : form.n]
        negative = (x < 0).reshape(flat)[:, : form.n]
        if self.coding == "packed":
            codes = level | (negative.astype(np.uint16) << (self.width - 1))
            numbers = [Ragged.even(bits.pack(codes, self.width))]
        else:
            numbers = _sparse(level, negative)
        body = join([Ragged.even(bits.to_bytes(norm, "<f4")), *numbers])
        return Coded(body, values=np.full(len(rows), self.down_values(form)))

    def read(self, reader: Reader, who: np.ndarray, form: Form) -> tuple[np.ndarray, np.ndarray]:
        """Numbers in [-1, 1] and the norms of their buckets."""
        norm = bits.from_bytes(reader.take(4 * buckets.count(form.n, self.bucket), who), "<f4")
        if self.coding == "elias":
            level = _read_sparse(reader, who, form.n, self.levels - 1)
            return (level / (self.levels - 1)).astype(form.kind), norm
        raw = reader.take(bits.size(form.n, self.width), who)
        reader.reject(bits.stray_bits(raw, form.n * self.width), who)
        code = bits.unpack(raw, self.width, form.n)
        half = 2 ** (self.width - 1)
        if half > self.levels:
            reader.reject(((code & (half - 1)) >= self.levels).any(axis=1), who)
        magnitude = np.minimum(np.arange(half) / (self.levels - 1), 1.0)
        return np.concatenate([magnitude, -magnitude]).astype(form.kind)[code], norm

    def decode(
        self, info: Any, rest: Tensor | None, memory: State, form: Form
    ) -> tuple[Tensor, State]:
        unit, norm = info
        return torch.from_numpy(buckets.join(unit, norm, self.bucket)), memory


def _sparse(level: np.ndarray, negative: np.ndarray) -> list[Ragged]:
    """How many numbers are not zero (4 bytes), the gaps between them, their signs, their levels."""
    nonzero = level != 0
    counts = nonzero.sum(axis=1)
    at = np.flatnonzero(nonzero)  # in the numbers of all rows
    row = np.repeat(np.arange(len(level)), counts)
    place = at - row * level.shape[1]
    gaps = np.diff(place, prepend=-1)
    first = (np.cumsum(counts) - counts)[counts > 0]
    gaps[first] = place[first] + 1
    signs = np.zeros((len(level), int(counts.max(initial=0))), dtype=bool)
    signs[np.arange(signs.shape[1]) < counts[:, None]] = negative.ravel().take(at)
    return [
        Ragged.even(bits.to_bytes(counts[:, None], "<u4")),
        bits.pack_gamma(gaps, counts),
        Ragged(bits.pack(signs, 1), -(-counts // 8)),
        bits.pack_gamma(level.ravel().take(at), counts),
    ]


def _read_sparse(
    reader: Reader, who: np.ndarray, n: int, top: int
) -> np.ndarray:  # -> int32[rows of who, n]
    """Levels with their signs, at most `top`, as `_sparse` wrote them."""
    counts = bits.from_bytes(reader.take(4, who), "<u4")[:, 0].astype(np.int64)
    room = 8 * (reader.bodies.lengths - reader.at)[who]  # bits that are left
    many = (counts > n) | (3 * counts > room)  # a number takes at least three bits
    reader.reject(many, who)
    counts = np.where(many, 0, counts)
    gaps = bits.read_gamma(reader, who, counts, n)
    flags = np.unpackbits(reader.take(-(-counts // 8), who), axis=1, bitorder="little")
    flags = np.pad(flags, ((0, 0), (0, max(0, int(counts.max(initial=0)) - flags.shape[1]))))
    used = np.arange(flags.shape[1]) < counts[:, None]
    stray = np.any(flags.astype(bool) & ~used, axis=1)  # no encoder writes that
    reader.reject(stray, who)
    negative = flags[used]
    level = bits.read_gamma(reader, who, counts, top)
    row = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    reach = np.concatenate([[0], np.cumsum(gaps)])
    place = reach[1:] - reach[ends - counts][row] - 1
    beyond = place >= n
    reader.reject(np.bincount(row[beyond], minlength=len(counts)) > 0, who)
    out = np.zeros((len(counts), n), dtype=np.int32)
    out[row, np.minimum(place, n - 1)] = np.where(negative, -level, level)
    return out
