"""A tar archive as a stream of members, read within bounds.

Archives of others may claim anything: gigabytes behind a megabyte, a name of two gigabytes, ten
million empty members. So bytes are counted as they are unpacked, members as they are met, and only
the plain 512-byte headers are read. Headers that lengthen names (GNU, PAX) are passed over: the
names we look for are short.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import Protocol

from .ways import FetchError

BLOCK = 512
CHUNK = 1 << 20
MOST_MEMBERS = 10_000  # the most we know are 40


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Bounded:
    """A stream that gives at most `limit` bytes, and an error where there are more.

    >>> import io
    >>> Bounded(io.BytesIO(b"12345"), 4).read(10)
    Traceback (most recent call last):
        ...
    idiolect.data.ways.FetchError: the archive unpacks to more than 4 bytes
    """

    def __init__(self, stream: Readable, limit: int):
        self._stream = stream
        self._limit = limit
        self._read = 0

    def read(self, size: int, /) -> bytes:
        chunk = self._stream.read(min(size, CHUNK))
        self._read += len(chunk)
        if self._read > self._limit:
            raise FetchError(f"the archive unpacks to more than {self._limit} bytes")
        return chunk


class Body:
    """The bytes of one member."""

    def __init__(self, stream: Readable, size: int):
        self._stream = stream
        self.left = size

    def read(self, size: int = CHUNK, /) -> bytes:
        chunk = self._stream.read(min(size, self.left, CHUNK))
        self.left -= len(chunk)
        if not chunk and self.left and size:
            raise FetchError(f"the archive ends {self.left} bytes too early")
        return chunk


def members(stream: Readable) -> Iterator[tuple[tarfile.TarInfo, Body]]:
    """The members of a tar archive that is not compressed (any more), in their order.

    What is not read of a body is skipped when the next member is asked for.
    """
    met = 0
    while any(block := stream.read(BLOCK)):  # the end: nothing more, or a block of zeros
        met += 1
        if met > MOST_MEMBERS:
            raise FetchError(f"the archive has more than {MOST_MEMBERS} members")
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        size = max(info.size, 0) if _has_body(info) else 0
        body = Body(stream, size)
        yield info, body
        rest = Body(stream, body.left + -size % BLOCK)
        while rest.left:
            rest.read()


def is_file(info: tarfile.TarInfo) -> bool:
    """A plain file: no link, folder, device or sparse file."""
    return info.type in (tarfile.REGTYPE, tarfile.AREGTYPE)


def _has_body(info: tarfile.TarInfo) -> bool:
    """Links, folders and devices have none, whatever size they name."""
    extended = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
    known = info.type in tarfile.SUPPORTED_TYPES
    return info.isreg() or info.type in extended or not known
