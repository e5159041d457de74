"""Which rounds a seed has begun, written to the disk before anything of them is sent.

A process that is killed in a round may have sent its model or its messages already. So a round is
written down when it is opened, and a resumed run counts every line that its checkpoint does not
know: `privacy-seed-0.log`, a line per round begun.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..core.files import private_opener
from ..core.knobs import SettingError

MOST_LINES = 10_000_000
WIDTH = 20  # bytes of a line


class PrivacyLog:
    """The rounds begun, in their order; one that was killed and begun again stands there twice."""

    def __init__(self, path: Path):
        self.path = path

    def append(self, round: int) -> None:
        """A round is about to begin; on the disk when this returns."""
        descriptor = private_opener(str(self.path), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(descriptor, f"{round:>{WIDTH - 1}}\n".encode())
            os.fsync(descriptor)
        except OSError as error:
            raise SettingError(
                f"directory: cannot write to {self.path}: {error.strerror}; a round must be "
                "written down before it spends privacy"
            ) from None
        finally:
            os.close(descriptor)

    def after(self, count: int) -> list[int]:
        """The rounds begun after the first `count`; a line that was cut off counts.

        ValueError where there are fewer: then what was spent is not known.
        """
        try:
            size = self.path.stat().st_size
            content = self.path.read_bytes() if size <= WIDTH * MOST_LINES else b""
        except FileNotFoundError:
            content = b""
        lines = content.split(b"\n")
        lines = lines if lines[-1] else lines[:-1]
        if len(lines) < count:
            raise ValueError(
                f"{self.path} has {len(lines):,} rounds and the checkpoint {count:,}: what was "
                "spent is not known; put the file back"
            )
        rounds = [int(line) if line.strip().isdigit() else 0 for line in lines[count:]]
        return rounds
