"""What a seed has begun, written to the disk before anything of it is sent: `privacy-seed-0.log`.

The first line is the mechanism, chosen when the run was new: a resumed run keeps it, whatever its
rounds are now. Then there is a line for every round begun. A process that is killed in a round may
have sent its model or its messages already. So a round is written down when it is opened, and a
resumed run counts every line that its checkpoint does not know.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from pathlib import Path

from ..core.documents import decode, encode, sealed, unsealed
from ..core.files import private_opener, read_bytes, write_atomic
from ..core.knobs import SettingError
from ..privacy.plan import Mechanism

MOST_BYTES = 256 << 20
CUT_OFF = re.compile(rb"\d{0,19}( [0-9a-f]{0,7})?")  # a line, but for its end
PUT_BACK = "what was spent is not known; put the file back"


class PrivacyLog:
    """The rounds begun, in their order; one that was killed and begun again stands there twice.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> log = PrivacyLog.of(Path(folder.name), seed=0)
    >>> log.create(Mechanism(noise=1.5, rate=0.1, rounds=30, sample=10, clients=100))
    >>> log.append(0), log.append(1)
    (None, None)
    >>> log.mechanism().noise, log.after(1)
    (1.5, [1])
    """

    def __init__(self, path: Path):
        self.path = path

    @classmethod
    def of(cls, folder: Path, seed: int) -> PrivacyLog:
        """That of a seed in a run directory."""
        return cls(folder / f"privacy-seed-{seed}.log")

    def create(self, mechanism: Mechanism) -> None:
        """A seed that has begun nothing."""
        try:
            write_atomic(self.path, (json.dumps(sealed(encode(mechanism))) + "\n").encode())
        except OSError as error:
            raise SettingError(
                f"directory: cannot write to {self.path}: {error.strerror}"
            ) from None

    def append(self, round: int) -> None:
        """A round is about to begin; on the disk when this returns."""
        try:
            descriptor = private_opener(str(self.path), os.O_RDWR | os.O_APPEND)
            try:
                size = os.fstat(descriptor).st_size
                os.lseek(descriptor, max(size - 1, 0), os.SEEK_SET)
                ended = os.read(descriptor, 1) == b"\n"  # else a line was cut off: it stays one
                rest = (b"" if ended else b"\n") + _line(round)
                while rest:
                    rest = rest[os.write(descriptor, rest) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise SettingError(
                f"directory: cannot write to {self.path}: {error.strerror}; a round must be "
                "written down before it spends privacy"
            ) from None

    def mechanism(self) -> Mechanism:
        """That with which the seed began; ValueError where it is not known."""
        return self._read()[0]

    def after(self, count: int) -> list[int | None]:
        """The rounds begun after the first `count`; None for a line that was cut off.

        ValueError where there are fewer: then what was spent is not known.
        """
        _, rounds = self._read()
        if len(rounds) < count:
            raise ValueError(
                f"{self.path} has {len(rounds):,} rounds and the checkpoint {count:,}: {PUT_BACK}"
            )
        return rounds[count:]

    def _read(self) -> tuple[Mechanism, list[int | None]]:
        if not os.path.lexists(self.path):
            raise ValueError(f"{self.path} is missing: {PUT_BACK}")
        try:
            content = read_bytes(self.path, MOST_BYTES)
        except OSError as error:
            raise ValueError(f"cannot use {self.path}: {error}") from None
        first, *lines = content.split(b"\n")
        if lines and not lines[-1]:
            lines.pop()
        try:
            mechanism: Mechanism = decode(unsealed(json.loads(first)), Mechanism)
            return mechanism, [_round_of(line) for line in lines]
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.path} cannot be used ({error}): {PUT_BACK}") from None


def _line(round: int) -> bytes:
    """A round with a checksum.

    >>> _line(7)
    b'7 6abf4a82\\n'
    """
    number = str(round).encode()
    return number + f" {zlib.crc32(number):08x}\n".encode()


def _round_of(line: bytes) -> int | None:
    """The inverse; None for a line that was cut off, ValueError for any other.

    >>> _round_of(b"7 6abf4a82"), _round_of(b"7 6a")
    (7, None)
    """
    number, _, _ = line.partition(b" ")
    if number.isdigit() and _line(int(number)) == line + b"\n":
        return int(number)
    if CUT_OFF.fullmatch(line):
        return None
    raise ValueError(f"a line is not as it was written: {line[:40]!r}")
