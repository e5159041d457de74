"""messages.csv: a line per message in and out, for the owner. It never holds any data."""

from __future__ import annotations

import csv
import io
import os
from datetime import UTC, datetime
from pathlib import Path

from ...core.files import check_regular, private_opener
from ...core.text import csv_cell, shown

COLUMNS = ("time", "direction", "kind", "round", "bytes", "numbers", "content", "verdict")
ALLOWED = "allowed"


class Log:
    """Appends lines, each flushed; one that was cut short by a kill is ended first."""

    def __init__(self, path: Path):
        self.path = path
        if os.path.lexists(path):
            check_regular(path)
        self._file = open(path, "a+b", opener=private_opener)  # noqa: SIM115
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
        where = "" if round is None else round
        self._write((now(), direction, kind, where, size, numbers, content, verdict))

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
