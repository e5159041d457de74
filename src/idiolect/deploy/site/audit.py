"""What has left a site: counters on disk, and a log of all messages for its owner.

Counters (spent.json) are written before anything leaves, so that caps hold over restarts. The log
(messages.csv) has a line per message in and out and never holds any data; a file that has grown
large becomes messages-1.csv, the next one messages-2.csv, and so on. Nothing is deleted.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_type_hints

from ...core.files import check_regular, private_opener, read_json_object, write_json
from ...core.knobs import SettingError
from ...core.text import csv_cell, shown

FILE = "spent.json"


@dataclass
class Usage:
    """Counts over all runs since the state directory was created."""

    rounds: int = 0  # orders to train that were answered
    messages: int = 0  # replies
    numbers: int = 0  # in them
    bytes_out: int = 0
    bytes_in: int = 0
    refused: int = 0
    metrics: dict[str, int] = field(default_factory=dict)  # name -> how often it left
    last_contact: str = ""  # time of the last message in
    last_order: str = ""  # SHA-256 of the last order: repeated, it is not counted again

    @classmethod
    def load(cls, folder: Path) -> Usage:
        """As it is on disk; zeros where there is no file."""
        path = folder / FILE
        if not path.exists():
            return cls()
        hints = get_type_hints(cls)
        document = read_json_object(path, {**hints, "metrics": dict[str, int]}, limit=1 << 20)
        whole = [
            v for v in (*document.values(), *document["metrics"].values()) if isinstance(v, int)
        ]
        if min(whole, default=0) < 0:
            raise SettingError(f"state: cannot use {path}: counts are whole numbers >= 0")
        return cls(**document)

    def save(self, folder: Path) -> None:
        """On disk, before anything of it leaves."""
        write_json(folder / FILE, self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


COLUMNS = ("time", "direction", "kind", "round", "bytes", "numbers", "content", "verdict")
ALLOWED = "allowed"
MOST = 50 << 20  # bytes of a file


class AuditLog:
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
