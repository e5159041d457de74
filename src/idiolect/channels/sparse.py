"""Stages that send some numbers of a row: the largest (top-k), or those at random places."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import knob
from ..core.types import State
from ..wire.ragged import Ragged, Reader
from . import bits
from .stage import Coded, Form, Stage, array


@dataclass(frozen=True)
class TopK(Stage):
    """The k = max(1, round(share n)) numbers of largest magnitude go on; the others count as zero.

    They go on in the order of their places. Ties go to the lower place.
    Biased: ||C(x) - x||^2 <= (1 - k / n) ||x||^2; put `feedback` before it. Bytes: the places as an
    Elias-Fano code, about k (2 + log2(n / k)) / 8.

    Stich, Cordonnier and Jaggi 2018, "Sparsified SGD with memory".

    >>> x = torch.tensor([[1.0, -3.0, 2.0, 0.0]])
    >>> coded = TopK(share=0.5).encode(x, {}, np.zeros(1, np.uint64), Form(4))
    >>> coded.rest.tolist(), coded.body.lengths.tolist()
    ([[-3.0, 2.0]], [1])
    """

    moves_coordinates: ClassVar[bool] = True

    share: float = knob(0.01, "part of the numbers that is sent", above=0, high=1)

    def check(self, form: Form) -> str:
        all_sent = self.numbers(form) == form.n
        return f"channel: all {form.n:,} numbers of a message are sent" if all_sent else ""

    def numbers(self, form: Form) -> int:
        return max(1, round(self.share * form.n))

    def limit(self, form: Form) -> int:
        return bits.places_size(self.numbers(form), form.n)

    def encode(self, rows: Tensor, state: State, keys: np.ndarray, form: Form) -> Coded:
        places = largest(array(rows, form), self.numbers(form))
        return Coded(Ragged.even(bits.pack_places(places, form.n)), pick(rows, places))

    def read(self, reader: Reader, who: np.ndarray, form: Form) -> np.ndarray:
        return bits.read_places(reader, who, self.numbers(form), form.n)

    def decode(
        self, info: Any, rest: Tensor | None, memory: State, form: Form
    ) -> tuple[Tensor, State]:
        assert rest is not None
        return place(rest, info, form), memory


def largest(x: np.ndarray, k: int) -> np.ndarray:  # x[K, n] -> int64[K, k], increasing
    """The places of the k largest magnitudes of every row; of equal ones the first.

    NaN counts as infinite.

    >>> largest(np.array([[2.0, 5.0, -2.0, 0.0]]), 2).tolist()
    [[0, 1]]
    """
    rows, n = x.shape
    magnitude = np.abs(x)
    magnitude[np.isnan(magnitude)] = np.inf
    least = np.partition(magnitude, n - k, axis=1)[:, n - k, None]  # of the k largest
    above_least = magnitude > least
    ties = magnitude == least
    wanted = k - above_least.sum(axis=1)
    crowded = ties.sum(axis=1) > wanted  # more equal ones than places left
    if crowded.any():
        ties[crowded] &= np.cumsum(ties[crowded], axis=1) <= wanted[crowded, None]
    return np.flatnonzero(above_least | ties).reshape(rows, k) - n * np.arange(rows)[:, None]


def pick(rows: Tensor, places: np.ndarray) -> Tensor:  # -> [K, k]
    """The numbers at these places."""
    return rows.gather(1, torch.from_numpy(places).to(rows.device))


def place(values: Tensor, places: np.ndarray, form: Form) -> Tensor:  # -> [K, n]
    """Numbers at their places among zeros."""
    out = torch.zeros(len(places), form.n, dtype=form.dtype)
    return out.scatter_(1, torch.from_numpy(places), values.to("cpu", form.dtype))


@dataclass(frozen=True)
class RandomK(Stage):
    """The numbers at k = max(1, round(share n)) places go on, uniform without replacement.

    The receiver draws the same places from the seed that is sent: 8 bytes, whatever k.
    `unbiased` multiplies by n / k: E C(x) = x, E ||C(x) - x||^2 = (n / k - 1) ||x||^2.
    Otherwise E ||C(x) - x||^2 = (1 - k / n) ||x||^2, the form that `feedback` needs.

    Wangni et al. 2018, "Gradient sparsification for communication-efficient distributed
    optimization"; Stich et al. 2018, "Sparsified SGD with memory".

    >>> import torch
    >>> x = torch.arange(6.0)[None]
    >>> coded = RandomK(share=0.5).encode(x, {}, np.zeros(1, np.uint64), Form(6))
    >>> list(coded.rest.shape), coded.body.lengths.tolist()
    ([1, 3], [8])
    """

    moves_coordinates: ClassVar[bool] = True

    share: float = knob(0.01, "part of the numbers that is sent", above=0, high=1)
    unbiased: bool = knob(True, "multiply by n / k, so that the mean is right")

    def check(self, form: Form) -> str:
        all_sent = self.numbers(form) == form.n
        return f"channel: all {form.n:,} numbers of a message are sent" if all_sent else ""

    def numbers(self, form: Form) -> int:
        return max(1, round(self.share * form.n))

    def limit(self, form: Form) -> int:
        return 8

    def encode(self, rows: Tensor, state: State, keys: np.ndarray, form: Form) -> Coded:
        seeds = streams.bits(keys, 0, 1)
        places = _places(seeds[:, 0], self.numbers(form), form.n)
        return Coded(Ragged.even(bits.to_bytes(seeds, "<u8")), pick(rows, places))

    def read(self, reader: Reader, who: np.ndarray, form: Form) -> np.ndarray:
        seeds = bits.from_bytes(reader.take(8, who), "<u8")
        return _places(seeds[:, 0], self.numbers(form), form.n)

    def decode(
        self, info: Any, rest: Tensor | None, memory: State, form: Form
    ) -> tuple[Tensor, State]:
        assert rest is not None
        if self.unbiased:
            rest = rest * (form.n / self.numbers(form))
        return place(rest, info, form), memory


def _places(seeds: np.ndarray, k: int, n: int) -> np.ndarray:  # -> int64[K, k], increasing
    """Where the k smallest of the first n words of every stream are.

    The words of a stream are all different.
    """
    words = streams.bits(seeds, 0, n)
    largest = np.partition(words, k - 1, axis=1)[:, k - 1, None]  # of the k smallest
    flat = np.flatnonzero(words <= largest).reshape(len(seeds), k)
    return flat - n * np.arange(len(seeds))[:, None]
