"""Archives of a download: which members are taken out of them, and within which bounds.

Archives are read member by member under the names we expect, never unpacked as a whole, and nothing
in them is run. They may claim anything: gigabytes behind a megabyte, a name of two gigabytes, ten
million empty members. So bytes are counted as they are unpacked and members as they are met, and of
a tar archive only the plain 512-byte headers are read. Headers that lengthen names (GNU, PAX) are
skipped: the names we look for are short.
"""

from __future__ import annotations

import contextlib
import gzip
import re
import shutil
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol, cast

from ..core.knobs import SettingError

LIMIT = 1 << 29  # bytes of one download or member, and of an unpacked tar archive
TOTAL = 1 << 27  # bytes of all members taken under a pattern; the largest we know have 75 MB
MOST_MEMBERS = 10_000  # of a tar archive; the most we know are 40
BLOCK = 512
CHUNK = 1 << 20


class FetchError(SettingError):
    """A data set could not be obtained; the message lists every source and why it failed."""

    several_lines = True  # of its message, each shown as text


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Member:
    """A file in an archive."""

    name: str
    regular: bool  # a plain file of at most `LIMIT` bytes
    open: Callable[[], AbstractContextManager[Any]]


def extract(
    members: Iterable[Member],
    wanted: Mapping[str, str],
    sizes: Mapping[str, int],
    folder: Path,
    many: str = "",
) -> None:
    """The wanted members of an archive as files of a folder.

    `wanted` maps our file names to the exact names of members. Further members whose whole name
    matches `many` are written under its first group, with at most `TOTAL` bytes together. Others
    are skipped. `sizes`: the bytes that a file may have, where they are known.
    """
    missing = {member.removeprefix("./"): file for file, member in wanted.items()}
    matched = 0
    room = TOTAL
    for member in members:
        match = re.fullmatch(many, member.name) if many else None
        file = match[1] if match else missing.pop(member.name.removeprefix("./"), None)
        if file is None:
            continue
        target = folder / file
        leaves_folder = file in ("", ".", "..") or re.search(r"[/\\\0:]", file)
        if leaves_folder or target.exists():
            raise FetchError(f"a member must have the name of a new file, got {member.name!r}")
        if not member.regular:
            raise FetchError(f"{member.name}: not a regular file of at most {LIMIT} bytes")
        with member.open() as body:
            copy(body, target, room if match else sizes.get(file, LIMIT))
        if match:
            matched += 1
            room -= target.stat().st_size
        if not missing and not many:
            return
    if missing or (many and not matched):
        raise FetchError(f"the archive has no {', '.join(sorted(missing)) or many}")


def gunzip(packed: Path, target: Path, limit: int) -> None:
    """A gzipped file, unpacked."""
    with gzip.open(packed) as body:
        copy(cast(IO[bytes], body), target, limit)


def copy(stream: Readable, target: Path, limit: int) -> None:
    """A stream into a file, of at most `limit` bytes."""
    size = 0
    with open(target, "wb") as out:
        while chunk := stream.read(CHUNK):
            size += len(chunk)
            if size > limit:
                raise FetchError(
                    f"corrupt download: {target.name} has more than the {limit} bytes expected"
                )
            out.write(chunk)


# -- archives as members ---------------------------------------------------------------------------
@contextlib.contextmanager
def open_archive(archive: Path) -> Iterator[Iterable[Member]]:
    """The members of a wheel, a gzipped tar archive or a Debian package, unpacked as they are read.

    Gzip is the only compression of tar accepted: it unpacks to a thousandfold at most.
    """
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield [_wheel_member(wheel, info) for info in wheel.infolist()]
    elif archive.suffix != ".deb":
        with gzip.open(archive) as stream:
            yield tar_members(Bounded(cast(IO[bytes], stream), LIMIT))
    else:
        if not shutil.which("dpkg-deb"):
            raise FetchError("dpkg-deb is not installed")
        command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
        ) as process:
            try:
                yield tar_members(Bounded(cast(IO[bytes], process.stdout), LIMIT))
            finally:
                process.kill()


def _wheel_member(wheel: zipfile.ZipFile, info: zipfile.ZipInfo) -> Member:
    encrypted = bool(info.flag_bits & 1)
    regular = (
        not encrypted
        and info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        and stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG)
        and not info.is_dir()
        and info.file_size <= LIMIT
    )
    return Member(info.orig_filename, regular, lambda: wheel.open(info))


class Bounded:
    """A stream that gives at most `limit` bytes, and an error where there are more.

    >>> import io
    >>> Bounded(io.BytesIO(b"12345"), 4).read(10)
    Traceback (most recent call last):
        ...
    idiolect.data.archives.FetchError: the archive unpacks to more than 4 bytes
    """

    def __init__(self, stream: Readable, limit: int):
        self._stream = stream
        self._limit = limit
        self._size = 0

    def read(self, size: int, /) -> bytes:
        chunk = self._stream.read(min(size, CHUNK))
        self._size += len(chunk)
        if self._size > self._limit:
            raise FetchError(f"the archive unpacks to more than {self._limit} bytes")
        return chunk


class Body:
    """The bytes of one member."""

    def __init__(self, stream: Readable, size: int):
        self._stream = stream
        self.rest = size

    def read(self, size: int = CHUNK, /) -> bytes:
        chunk = self._stream.read(min(size, self.rest, CHUNK))
        self.rest -= len(chunk)
        if not chunk and self.rest and size:
            raise FetchError(f"the archive ends {self.rest} bytes too early")
        return chunk


def tar_members(stream: Readable) -> Iterator[Member]:
    """The members of an uncompressed tar archive in order; gzipped ones are unpacked when read.

    The unread rest of a member is skipped.
    """
    count = 0
    while any(block := stream.read(BLOCK)):  # the end: nothing more, or a block of zeros
        count += 1
        if count > MOST_MEMBERS:
            raise FetchError(f"the archive has more than {MOST_MEMBERS} members")
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        # links, folders and devices have no body, whatever size they name
        lengthened = info.type in (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
        has_body = info.isreg() or lengthened or info.type not in tarfile.SUPPORTED_TYPES
        size = max(info.size, 0) if has_body else 0
        body = Body(stream, size)
        regular = info.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and 0 <= info.size <= LIMIT
        if info.name.endswith(".gz"):
            yield Member(info.name, regular, partial(gzip.open, cast(IO[bytes], body)))
        else:
            yield Member(info.name, regular, partial(contextlib.nullcontext, body))
        padding = Body(stream, body.rest + -size % BLOCK)
        while padding.rest:
            padding.read()
