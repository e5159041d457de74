"""A file that only grows while a run is at work, and goes back to where a checkpoint left it."""

from __future__ import annotations

import os
import stat
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core.files import private_opener, write_atomic
from ..core.knobs import SettingError

PIECE = 1 << 20  # bytes read at once
MAPPED = 8 << 20  # bytes from which on an array is mapped from its file, not read


class Mark(NamedTuple):
    """How far a file had grown: what a checkpoint keeps of it."""

    size: int = 0  # bytes
    crc: int = 0  # CRC-32 of all of them

    @classmethod
    def of(cls, saved: Any) -> Mark:
        """From JSON; ValueError for anything else.

        >>> Mark.of([8, 3])
        Mark(size=8, crc=3)
        """
        whole = isinstance(saved, list) and all(type(n) is int and 0 <= n < 2**63 for n in saved)
        if not whole or len(saved) != 2:
            raise ValueError(f"{saved!r} is not a size and a CRC-32")
        return cls(*saved)

    def and_then(self, content: bytes) -> Mark:
        """The mark with this content appended."""
        return Mark(self.size + len(content), zlib.crc32(content, self.crc))


class GrowingFile:
    """Appended to piece by piece. What cannot be written waits in memory and is tried again.

    Without a path it is a temporary file without a name, which ends with the process.

    >>> file = GrowingFile(None)
    >>> file.append(b"round 1;")
    >>> mark = file.mark
    >>> file.append(b"round 2;")
    >>> file.back_to(mark)
    True
    >>> file.append(b"another 2;")
    >>> file.read()
    b'round 1;another 2;'
    """

    def __init__(self, path: Path | None):
        self.path = path
        self.mark = Mark()  # of all that was appended, written or not
        self._written = 0  # bytes of it that are in the file; what follows them there is void
        self._waiting: list[bytes] = []
        self._handle = -1  # opened when it is first needed

    def append(self, content: bytes) -> None:
        """More at the end. OSError where it could not be written: it is kept all the same."""
        self.mark = self.mark.and_then(content)
        self._waiting.append(content)
        self.flush()

    def flush(self) -> None:
        """Write what waits, and cut off what is void."""
        handle = self._open(create=bool(self._waiting))
        if handle < 0:
            return
        if os.fstat(handle).st_size != self._written:
            os.ftruncate(handle, self._written)
        while self._waiting:
            os.lseek(handle, self._written, os.SEEK_SET)
            left = memoryview(self._waiting[0])
            while left:
                left = left[os.write(handle, left) :]
            self._written += len(self._waiting[0])
            del self._waiting[0]

    def sync(self) -> Mark:
        """All of it on the disk itself; how far it has grown."""
        self.flush()
        if self._handle >= 0 and self.path is not None:
            os.fsync(self._handle)
        return self.mark

    def back_to(self, mark: Mark) -> bool:
        """Whether the file begins with what was marked; if so, that alone is its content now."""
        found = Mark()
        for piece in self._pieces(mark.size):
            found = found.and_then(piece)
        if found != mark:
            return False
        longer = self._handle >= 0 and os.fstat(self._handle).st_size > mark.size
        if longer and self.path is not None:
            # a new file: the old one may be mapped by the result of an earlier run
            write_atomic(self.path, self._pieces(mark.size))
            self.close()
        self.mark = mark
        self._written = mark.size
        self._waiting = []
        return True

    def cut(self, size: int) -> None:
        """Take so many bytes off the end.

        >>> file = GrowingFile(None)
        >>> file.append(b"round 1;round 2;")
        >>> file.cut(8)
        >>> file.read()
        b'round 1;'
        """
        mark = Mark()
        for piece in self._pieces(self.mark.size - size):
            mark = mark.and_then(piece)
        self.back_to(mark)

    def read(self) -> bytes:
        """The content, written or not."""
        return b"".join([*self._pieces(self._written), *self._waiting])

    def array(self, columns: int) -> np.ndarray:
        """The content as rows of float32: in memory while small or unwritten, else mapped."""
        if self.mark.size < MAPPED or self._waiting:
            return np.frombuffer(bytearray(self.read()), np.float32).reshape(-1, columns)
        with os.fdopen(os.dup(self._open()), "rb") as file:
            flat = np.memmap(file, np.float32, mode="c", shape=(self.mark.size // 4,))
        return np.asarray(flat).reshape(-1, columns)

    def close(self) -> None:
        """Nothing more comes, or not by this handle."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1

    def __del__(self) -> None:
        self.close()

    def _pieces(self, size: int) -> Iterator[bytes]:
        handle = self._open()
        at = 0
        while handle >= 0 and at < size:
            os.lseek(handle, at, os.SEEK_SET)
            piece = os.read(handle, min(PIECE, size - at))
            if not piece:
                return
            at += len(piece)
            yield piece

    def _open(self, create: bool = False) -> int:
        """The handle of the file; -1 where there is none (yet)."""
        if self._handle < 0 and self.path is not None:
            self._handle = _opened(self.path, create)
        elif self._handle < 0 and create:
            try:
                with tempfile.TemporaryFile() as file:
                    self._handle = os.dup(file.fileno())
            except OSError:  # no folder for temporary files: it all stays in memory
                return -1
        return self._handle


def _opened(path: Path, create: bool) -> int:
    flags = os.O_RDWR | (os.O_CREAT if create else 0)
    flags |= getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        handle = private_opener(str(path), flags)
    except FileNotFoundError:
        if create:
            raise
        return -1
    except OSError as error:
        if create and not (path.exists() or path.is_symlink()):
            raise  # no room for a new file
        raise SettingError(f"directory: cannot write to {path}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise SettingError(f"directory: {path} is not a regular file")
    return handle
