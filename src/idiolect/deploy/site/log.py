"""messages.csv: a line per message in and out, for the owner. It never holds any data.

A file that has grown large becomes messages-1.csv, the next one messages-2.csv, and so on;
messages.csv is always the newest. Nothing is deleted.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
from datetime import UTC, datetime
from pathlib import Path

from ...core.files import check_regular, private_opener
from ...core.text import csv_cell, shown

COLUMNS = ("time", "direction", "kind", "round", "bytes", "numbers", "content", "verdict")
ALLOWED = "allowed"
MOST = 50 << 20  # bytes of a file


class Log:
    """Appends lines, each flushed; one that was cut short by a kill is ended first."""

    def __init__(self, path: Path, most: int = MOST):
        self.path = path
        self.most = most
        self._open()

    def _open(self) -> None:
        if os.path.lexists(self.path):
            check_regular(self.path)
        self._file = open(self.path, "a+b", opener=private_opener)  # noqa: SIM115
        end = self._file.seek(0, os.SEEK_END)
        if not end:
            self._write(COLUMNS)
        else:
            self._file.seek(end - 1)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")
                self._file.flush()

    def write(
        self,
        direction: str,
        kind: str,
        size: int,
        *,
        round: int | None = None,
        numbers: int = 0,
        content: str = "",
        verdict: str = ALLOWED,
    ) -> None:
        """A line."""
        if self._file.seek(0, os.SEEK_END) >= self.most:
            self._file.close()
            os.rename(self.path, self._free())
            self._open()
        where = "" if round is None else round
        self._write((now(), direction, kind, where, size, numbers, content, verdict))

    def _free(self) -> Path:
        """The name for a file that is full."""
        names = (self.path.with_stem(f"{self.path.stem}-{n}") for n in itertools.count(1))
        return next(name for name in names if not os.path.lexists(name))

    def close(self) -> None:
        self._file.close()

    def _write(self, row: tuple[object, ...]) -> None:
        text = io.StringIO()
        cells = [csv_cell(shown(c, 300)) if isinstance(c, str) else c for c in row]
        csv.writer(text, lineterminator="\n").writerow(cells)
        self._file.write(text.getvalue().encode())
        self._file.flush()


def now() -> str:
    """The time, in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
