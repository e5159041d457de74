"""The count sketch: a linear map to a small table from which large coordinates can be read back."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from .topk import largest


class CountSketch:
    """R^n to a table T of `rows` x `columns`.

        T[i, c] = sum of s_i(j) x_j over the j with h_i(j) = c, with signs s = ±1

    Hashes h and signs s are words of the stream of a fixed seed, so that both sides have them
    without sending them. In one row s_i(j) T[i, h_i(j)] has mean x_j and variance at most
    ||x||^2 / columns over the seeds; the median over five rows is off by more than
    3 ||x|| / sqrt(columns) with probability at most 0.012 (one row: 1/9, Chebyshev; three of five
    must be off). Linear: sketch(a) + sketch(b) = sketch(a + b). Memory: 5 rows n bytes.

    Charikar, Chen and Farach-Colton 2002, "Finding frequent items in data streams".

    >>> s = CountSketch(n=1000, rows=5, columns=100)
    >>> x = torch.zeros(1000); x[7] = 3.0; x[70] = -2.0
    >>> table = s.sketch(x[None])[0]
    >>> list(table.shape), s.heavy(table, 2).tolist(), s.estimate(table)[[7, 70]].tolist()
    ([500], [7, 70], [3.0, -2.0])
    """

    def __init__(
        self, n: int, rows: int, columns: int, seed: int = 0, device: torch.device | str = "cpu"
    ):
        self.n = n
        self.rows = rows
        self.columns = columns
        place = np.empty((rows, n), dtype=np.int32)
        sign = np.empty((rows, n), dtype=np.int8)
        for i in range(rows):
            word = streams.bits(streams.keys(seed, "count sketch", i), 0, n)[0]
            place[i] = streams.below(word, np.array(columns))  # the upper half of the word
            sign[i] = (word & np.uint64(1)).astype(np.int8) * 2 - 1  # its last bit
        self.place = torch.from_numpy(place).to(device)
        self.sign = torch.from_numpy(sign).to(device)

    def sketch(self, x: Tensor) -> Tensor:  # [K, n] -> [K, rows * columns]
        """The table of every row of x."""
        table = x.new_zeros(len(x), self.rows, self.columns)
        for i, (place, sign) in enumerate(zip(self.place, self.sign, strict=True)):
            table[:, i].scatter_add_(1, place.long().expand(len(x), -1), x * sign)
        return table.flatten(1)

    def estimate(self, table: Tensor) -> Tensor:  # [rows * columns] -> [n]
        """The median over the rows (of an even number of rows: the mean of the middle two)."""
        seen = table.view(self.rows, self.columns).gather(1, self.place.long()) * self.sign
        low = seen.median(0).values
        return low if self.rows % 2 else (low - (-seen).median(0).values) / 2

    def heavy(self, table: Tensor, k: int) -> Tensor:  # -> int64[k], sorted
        """The k coordinates whose estimates have the largest magnitudes."""
        return heaviest(self.estimate(table), k)


def heaviest(x: Tensor, k: int) -> Tensor:  # [n] -> int64[k], sorted
    """The places of the k largest magnitudes; of equal ones the first, on every machine.

    >>> heaviest(torch.tensor([1.0, -3.0, 1.0, 2.0]), 3).tolist()
    [0, 1, 3]
    """
    return torch.from_numpy(largest(x.detach().cpu().numpy()[None], k)[0]).to(x.device)


@lru_cache(maxsize=4)
def shared(n: int, rows: int, columns: int, seed: int, device: str) -> CountSketch:
    """The operator, made once per process."""
    return CountSketch(n, rows, columns, seed, device)
