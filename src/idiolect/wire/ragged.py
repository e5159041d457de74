"""Byte strings of different lengths, one per client, as one matrix: no Python runs per client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WIDE = 1024  # rows of at least this many bytes are copied one by one instead of byte by byte


@dataclass(frozen=True)
class Ragged:
    """Row k holds lengths[k] bytes at the left of matrix[k]; the bytes to their right mean nothing.

    >>> Ragged.of([b"ab", b"", b"c"]).lengths.tolist()
    [2, 0, 1]
    """

    matrix: np.ndarray  # uint8[K, longest]
    lengths: np.ndarray  # int64[K]

    @classmethod
    def even(cls, matrix: np.ndarray) -> Ragged:
        """Rows that all use the whole width."""
        return cls(matrix, np.full(len(matrix), matrix.shape[1], dtype=np.int64))

    @classmethod
    def empty(cls, rows: int) -> Ragged:
        """Rows without a byte."""
        return cls.even(np.zeros((rows, 0), dtype=np.uint8))

    @classmethod
    def of(cls, strings: Sequence[bytes | memoryview]) -> Ragged:
        """One row per byte string."""
        lengths = np.array([len(s) for s in strings], dtype=np.int64)
        matrix = np.zeros((len(strings), int(lengths.max(initial=0))), dtype=np.uint8)
        for row, s in zip(matrix, strings, strict=True):
            row[: len(s)] = np.frombuffer(s, dtype=np.uint8)
        return cls(matrix, lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def row(self, k: int) -> bytes:
        """The bytes of row k."""
        return self.matrix[k, : self.lengths[k]].tobytes()

    def __getitem__(self, rows: np.ndarray) -> Ragged:
        """Some of the rows."""
        return Ragged(self.matrix[rows], self.lengths[rows])

    def clean(self) -> Ragged:
        """The same strings with nothing beside them: zeros to their right, no column unused.

        >>> Ragged(np.full((1, 3), 7, dtype=np.uint8), np.array([1])).clean().matrix.tolist()
        [[7]]
        """
        width = int(self.lengths.max(initial=0))
        if (self.lengths == self.matrix.shape[1]).all():
            return self
        inside = np.arange(width) < self.lengths[:, None]
        return Ragged(self.matrix[:, :width] * inside, self.lengths)

    def spread(self, where: np.ndarray) -> Ragged:
        """The rows at the places where `where[K']` is true, empty rows at the others."""
        matrix = np.zeros((len(where), self.matrix.shape[1]), dtype=np.uint8)
        lengths = np.zeros(len(where), dtype=np.int64)
        matrix[where] = self.matrix
        lengths[where] = self.lengths
        return Ragged(matrix, lengths)


def join(parts: Sequence[Ragged]) -> Ragged:
    """Row k of the result: row k of every part, one after the other.

    >>> join([Ragged.of([b"a", b""]), Ragged.of([b"bc", b"d"])]).row(1)
    b'd'
    """
    parts = [p for p in parts if p.matrix.shape[1]] or [parts[0]]
    if len(parts) == 1:
        return parts[0]
    lengths = np.sum([p.lengths for p in parts], axis=0)
    if all((p.lengths == p.matrix.shape[1]).all() for p in parts[:-1]):  # matrices side by side
        return Ragged(np.concatenate([p.matrix for p in parts], axis=1), lengths)
    matrix = np.zeros((len(lengths), int(lengths.max(initial=0))), dtype=np.uint8)
    column = np.arange(matrix.shape[1])
    begin = np.zeros((len(lengths), 1), dtype=np.int64)
    for p in parts:
        end = begin + p.lengths[:, None]
        used = np.arange(p.matrix.shape[1]) < p.lengths[:, None]
        matrix[(column >= begin) & (column < end)] = p.matrix[used]
        begin = end
    return Ragged(matrix, lengths)


def stacked(parts: Sequence[Ragged]) -> Ragged:
    """The rows of every part, one part below the other.

    >>> stacked([Ragged.of([b"a"]), Ragged.of([b"bc", b""])]).row(1)
    b'bc'
    """
    if not parts:
        return Ragged.empty(0)
    if len(parts) == 1:
        return parts[0]
    width = max(p.matrix.shape[1] for p in parts)
    padded = [np.pad(p.matrix, ((0, 0), (0, width - p.matrix.shape[1]))) for p in parts]
    return Ragged(np.concatenate(padded), np.concatenate([p.lengths for p in parts]))


class Reader:
    """Reads rows of bytes from left to right.

    A row that ends too soon is marked in `bad` and reads as zeros.
    """

    def __init__(self, bodies: Ragged):
        self.bodies = bodies
        self.at = np.zeros(len(bodies), dtype=np.int64)  # bytes read of each row
        self.bad = np.zeros(len(bodies), dtype=bool)

    def take(
        self, count: int | np.ndarray, who: np.ndarray | None = None
    ) -> np.ndarray:  # -> uint8[rows of who, largest count]
        """The next `count` bytes (one number, or one per row) of every row, or of the rows `who`.

        `who` is bool[K].
        """
        rows = np.arange(len(self.at)) if who is None else np.flatnonzero(who)
        counts = np.broadcast_to(np.asarray(count, dtype=np.int64), (len(rows),))
        begin = self.at[rows]
        short = (counts < 0) | (begin + counts > self.bodies.lengths[rows])
        self.bad[rows] |= short
        counts = np.where(short, 0, counts)
        width = int(counts.max(initial=0)) if isinstance(count, np.ndarray) else int(count)
        self.at[rows] += counts
        aligned = not short.any() and len(rows) > 0 and bool((begin == begin[0]).all())
        if aligned and begin[0] + width <= self.bodies.matrix.shape[1]:  # the usual case: a slice
            out = self.bodies.matrix[:, begin[0] : begin[0] + width]
            out = out if len(out) == len(rows) else out[rows]
            if (counts == width).all():
                return out
            return np.where(np.arange(width) < counts[:, None], out, 0).astype(np.uint8)
        return self._scattered(rows, begin, counts, width)

    def _scattered(
        self, rows: np.ndarray, begin: np.ndarray, counts: np.ndarray, width: int
    ) -> np.ndarray:  # -> uint8[rows, width]
        """Bytes that begin at another place in every row, then zeros."""
        matrix = self.bodies.matrix
        out = np.zeros((len(rows), width), dtype=np.uint8)
        if width >= WIDE:
            for line, row, first, count in zip(out, rows, begin, counts, strict=True):
                line[:count] = matrix[row, first : first + count]
        elif matrix.shape[1]:
            inside = np.arange(width) < counts[:, None]
            column = (begin[:, None] + np.arange(width))[inside]
            out[inside] = matrix[np.repeat(rows, counts), column]
        return out

    def reject(self, rows: np.ndarray, who: np.ndarray | None = None) -> None:
        """Mark rows whose content makes no sense: bool over all rows, or over those of `who`."""
        if who is None:
            self.bad |= rows
        else:
            self.bad[np.flatnonzero(who)[rows]] = True

    def finished(self) -> np.ndarray:  # -> bool[K]
        """Which rows were read to their end and made sense."""
        return ~self.bad & (self.at == self.bodies.lengths)
