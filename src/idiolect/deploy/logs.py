"""Log files that do not fill a disk: the newest lines, and a few files of earlier ones."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from typing import IO

from ..core.files import private_opener

MOST_LOG = 10 << 20  # bytes of a log file, before it is set aside
EARLIER = 4  # files that are set aside; older ones are deleted


class RotatingLog:
    """A log file, for the user alone; set aside as NAME.1, NAME.2, ... when it is full.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, RotatingLog(Path(folder) / "log", 8) as log:
    ...     for line in (b"first\\n", b"second\\n", b"third\\n"):
    ...         log.write(line)
    ...     {path.name: path.read_text() for path in sorted(Path(folder).iterdir())}
    {'log': 'third\\n', 'log.1': 'second\\n', 'log.2': 'first\\n'}
    """

    def __init__(self, path: Path, most: int = MOST_LOG, earlier: int = EARLIER):
        self.path = path
        self.most = most
        self.earlier = earlier
        self._file = self._open()

    def _open(self) -> IO[bytes]:
        return open(self.path, "ab", opener=private_opener)

    def write(self, line: bytes) -> None:
        """Append a line; no more of it than a whole file may hold."""
        line = line if len(line) <= self.most else line[: self.most - 1] + b"\n"
        if self._file.tell() and self._file.tell() + len(line) > self.most:
            self._set_aside()
        self._file.write(line)
        self._file.flush()

    def _set_aside(self) -> None:
        self._file.close()
        names = [self.path, *(self._numbered(n) for n in range(1, self.earlier + 1))]
        for newer, older in reversed(list(pairwise(names))):
            if newer.exists():
                os.replace(newer, older)
        self._file = self._open()

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def __enter__(self) -> RotatingLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
