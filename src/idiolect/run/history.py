"""The figures of evaluated rounds: 8 bytes each, by column."""

from __future__ import annotations

import sys
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

Row = dict[str, float]
_WHOLE, _REAL = "q", "d"  # kinds of columns: 64 bits each


class History(Sequence[Row]):
    """A row per evaluated round, as a list of dicts has it; all rows have the same columns.

    >>> history = History([{"round": 1, "loss": 0.5}])
    >>> history.append({"round": 2, "loss": 0.25})
    >>> history[-1], history.column("loss"), History.unpacked(history.packed()) == history
    ({'round': 2, 'loss': 0.25}, array('d', [0.5, 0.25]), True)
    """

    def __init__(self, rows: Iterable[Mapping[str, float]] = ()):
        self._columns: dict[str, array[Any]] = {}
        for row in rows:
            self.append(row)

    def append(self, row: Mapping[str, float]) -> None:
        if not len(self):
            self._columns = {
                name: array(_WHOLE if type(value) is int else _REAL) for name, value in row.items()
            }
        for name, column in self._columns.items():
            if column.typecode == _WHOLE and type(row[name]) is not int:
                column = self._columns[name] = array(_REAL, column)
            column.append(row[name])

    def pop(self) -> Row:
        """Remove the last row."""
        return {name: column.pop() for name, column in self._columns.items()}

    def column(self, name: str) -> Sequence[float]:
        """One figure of all rounds."""
        return self._columns[name]

    def packed(self) -> dict[str, str]:
        """For a file: the kind of each column and its numbers, little-endian, in base64."""
        return {
            name: column.typecode + b64encode(_little_endian(column).tobytes()).decode()
            for name, column in self._columns.items()
        }

    @classmethod
    def unpacked(cls, packed: Mapping[str, str]) -> History:
        """The inverse of `packed`; ValueError for what it cannot have written."""
        history = cls()
        for name, text in packed.items():
            if text[:1] not in (_WHOLE, _REAL):
                raise ValueError(f"history: {name[:80]!r} has no kind of numbers")
            column: array[Any] = array(text[0])
            column.frombytes(b64decode(text[1:].encode(), validate=True))
            history._columns[name] = _little_endian(column)
        if len(set(map(len, history._columns.values()))) > 1:
            raise ValueError("history: its columns must be of the same length")
        return history

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> list[Row]: ...
    def __getitem__(self, at: int | slice) -> Row | list[Row]:
        if isinstance(at, slice):
            return [self[i] for i in range(*at.indices(len(self)))]
        if not -len(self) <= at < len(self):
            raise IndexError("history index out of range")
        return {name: column[at] for name, column in self._columns.items()}

    def __iter__(self) -> Iterator[Row]:
        return (self[at] for at in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


def _little_endian(column: array[Any]) -> array[Any]:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column
