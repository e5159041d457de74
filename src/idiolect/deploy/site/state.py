"""The state directory of a site: one process at a time, for its user alone.

lock            held by the process, with its id
host.sock       where it is reached, while it runs
site.json       whose data, and how they are read
messages.csv    a line per message in and out, without any data; a file that has grown large becomes
                messages-1.csv, the next one messages-2.csv, and so on; nothing is deleted
consent.json    what the owner has agreed to, signed; proposed.json: what they have not (consent.py)
node.key        the site's private key; node.pub: its public half
spent.json      how much has left; written before anything leaves, so that caps hold over restarts;
                also which other files must be there, and up to which round
rows.json       a checksum of which rows of the data are used, for all runs
sums.json       of which columns sums have left
current.json    which run it is in
run-00c0ffee/   of each run: agreement.json, members.json, enrolled.json, rows/ (host/durable.py)
"""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
import shutil
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...core.documents import encode
from ...core.files import (
    check_regular,
    private_folder,
    private_opener,
    read_document,
    sha256_of,
    write_document,
)
from ...core.knobs import SettingError
from ...core.text import csv_cell, shown
from ...host.durable import versions_on_disk
from ..pidfile import hold, holder
from .agreement import Agreement
from .data import FILE as SUMS_FILE
from .data import ROWS_FILE, SiteData
from .spent import RunSpent

FORMAT = 2
WITH_FILES = 2  # of spent.json: it says which other files must be there
LOCK = "lock"
SOCKET = "host.sock"
SITE = "site.json"
MESSAGES = "messages.csv"
USAGE = "spent.json"
CURRENT = "current.json"
ROWS = "rows"
_RUN = re.compile(r"run-([0-9a-f]{8})")
GO_ON = (
    "Put the directory back from a backup, all of it; or begin with a new one (--state), in which "
    "caps and what was spent of privacy start at zero, and clients with new rows"
)
MOST_PATH = 100  # bytes of the path of a Unix socket, at most 107 on Linux and 103 on macOS


@dataclass(frozen=True)
class SiteDescription:
    """Whose data, how they are read, what may leave, and what it computes with."""

    format: int
    site: str
    data: SiteData
    rules: dict[str, Any]
    machine: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CurrentRun:
    """The run that a site is in, or was in last."""

    run: int


class StateFolder:
    """Where a site keeps what it keeps."""

    def __init__(self, path: Path):
        self.path = path
        self._lock: Any = None

    # -- one process at a time -------------------------------------------------------------------
    def open(self) -> None:
        """Make the folder if need be, and take it for this process."""
        if len(os.fsencode(self.socket.absolute())) > MOST_PATH:
            raise SettingError(
                f"state: the path of the socket in it must have at most {MOST_PATH} bytes, got "
                f"{self.socket.absolute()}: choose a shorter directory"
            )
        try:
            private_folder(self.path)
        except OSError as error:
            raise SettingError(f"state: cannot use {self.path}: {error.strerror}") from None
        self.check_private()
        try:
            self._lock = hold(self.path / LOCK, 0.5, self._in_use)
        except OSError as error:
            raise SettingError(f"state: cannot write to {self.path}: {error.strerror}") from None

    def _in_use(self, pid: int | None) -> str:
        return (
            f"state: {self.path} is in use by the process with the id {pid or 'unknown'}; stop it "
            f"first (kill {pid or 'unknown'}), or choose another directory"
        )

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def check_private(self) -> None:
        """Refuse a folder that others may look into."""
        status = self.path.stat()
        if status.st_uid != os.getuid():
            raise SettingError(f"state: {self.path} belongs to another user; choose one of yours")
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o077:
            raise SettingError(
                f"state: {self.path} can be read by others (mode {mode:o}); "
                f"make it yours alone: chmod 700 {self.path}"
            )

    def pid(self) -> int | None:
        """The process that holds the folder; None where none does."""
        return holder(self.path / LOCK)

    def running(self) -> bool:
        """Whether a process holds the folder now."""
        return self.pid() is not None

    # -- what is in it ---------------------------------------------------------------------------
    @property
    def socket(self) -> Path:
        return self.path / SOCKET

    @property
    def messages(self) -> Path:
        return self.path / MESSAGES

    def site(self) -> SiteDescription:
        """SettingError where this is no state directory."""
        path = self.path / SITE
        if not path.exists():
            raise SettingError(
                f"state: {self.path} is no state directory of a site ({SITE} is missing); "
                "idiolect host start makes one"
            )
        description = read_document(path, SiteDescription, limit=1 << 20)
        if description.format != FORMAT:
            raise SettingError(f"state: {path} was written by another version of idiolect")
        return description

    def write_site(
        self, data: SiteData, rules: dict[str, Any], machine: dict[str, Any] | None = None
    ) -> None:
        description = SiteDescription(FORMAT, data.site, data, rules, machine or {})
        write_document(self.path / SITE, encode(description))

    def run(self, run: int) -> Path:
        """The folder of a run; it need not exist."""
        return self.path / f"run-{run:08x}"

    def runs(self) -> list[int]:
        """The runs that this site has agreed to."""
        matches = (_RUN.fullmatch(p.name) for p in sorted(self.path.iterdir()))
        numbers = [int(match[1], 16) for match in matches if match]
        return [run for run in numbers if (self.run(run) / Agreement.FILE).exists()]

    def remove(self, run: int) -> None:
        """Remove a run in which nothing was learnt; it is gone at once, or there."""
        trash = self.path / f".gone-{self.run(run).name}"
        shutil.rmtree(trash, ignore_errors=True)
        os.replace(self.run(run), trash)
        shutil.rmtree(trash)

    def usage(self) -> Usage:
        """What has left; SettingError where a file is missing, or older than it must be."""
        path = self.path / USAGE
        signs = [p.name for p in (self.path / ROWS_FILE, self.path / SUMS_FILE) if p.exists()]
        signs += [self.run(run).name for run in self.runs()]
        if not path.exists() and signs:
            raise SettingError(
                f"state: {path} is missing, and {', '.join(signs[:3])} shows that messages have "
                f"left: without it caps would start at zero. {GO_ON}"
            )
        usage = Usage.load(self.path)
        for name, checksum in usage.files.items():
            file = self.path / name
            if not os.path.lexists(file):
                raise SettingError(f"state: {file} is missing. {GO_ON}")
            if file.name != CURRENT and sha256_of(file) != checksum:
                raise SettingError(f"state: {file} is not as it was written. {GO_ON}")
        for run in self.runs() if usage.format >= WITH_FILES else ():
            counted = usage.concluded.get(f"{run:08x}", -1)
            versions = versions_on_disk(self.run(run) / ROWS)
            last = max(versions, default=-1)
            if last < counted:
                raise SettingError(
                    f"state: the rows of run {run:08x} are those after round {last + 1}, and "
                    f"{counted + 1} was concluded: files in {self.run(run) / ROWS} are missing. "
                    f"{GO_ON}"
                )
            # one more may have been written before the process was killed
            if len([version for version in versions if version > counted]) > 1:
                raise SettingError(
                    f"state: {path} is older than the rows of run {run:08x}, which are those after "
                    f"round {last + 1}: caps would count less than has left. {GO_ON}"
                )
        return usage

    def current(self) -> int | None:
        """The run that this site is in, or was in last."""
        path = self.path / CURRENT
        return read_document(path, CurrentRun, limit=1 << 16).run if path.exists() else None

    def enter(self, run: int) -> None:
        """Make this the current run."""
        write_document(self.path / CURRENT, encode(CurrentRun(run)))


@dataclass
class Usage:
    """Counts over all runs since the state directory was created."""

    rounds: int  # orders to train that were answered
    messages: int  # replies
    numbers: int  # in them
    bytes_out: int
    bytes_in: int
    refused: int
    metrics: dict[str, int]  # name -> how often it left
    last_contact: str  # time of the last message in
    last_order: str  # SHA-256 of the last order: repeated, it is not counted again
    format: int = 1
    evaluations: int = 0  # that were asked for
    questions: list[str] = field(default_factory=list)  # SHA-256 of forms and sums asked for
    concluded: dict[str, int] = field(default_factory=dict)  # run -> the last round on disk
    files: dict[str, str] = field(default_factory=dict)  # name -> SHA-256 of what must be there
    # run -> what it has spent of privacy; runs without any are left out
    privacy: dict[str, RunSpent] = field(default_factory=dict)
    uncovered: int = 0  # orders to train of runs without privacy
    # run -> the last round whose secure sum this site has helped to open, or -1
    opened: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = [v for v in (*vars(self).values(), *self.metrics.values()) if isinstance(v, int)]
        if min(counts) < 0:
            raise ValueError("counts must be whole numbers >= 0")

    @classmethod
    def load(cls, folder: Path) -> Usage:
        """As it is on disk; zeros where there is no file."""
        path = folder / USAGE
        if not path.exists():
            return cls(0, 0, 0, 0, 0, 0, {}, "", "", WITH_FILES)
        return read_document(path, cls, limit=1 << 20)

    def save(self, folder: Path) -> None:
        """On disk, before anything of it leaves."""
        self.format = WITH_FILES
        write_document(folder / USAGE, encode(self))


COLUMNS = ("time", "direction", "kind", "round", "bytes", "numbers", "content", "verdict")
ALLOWED = "allowed"
MOST = 50 << 20  # bytes of a file


class AuditLog:
    """Appends lines, each flushed; one that was cut short by a kill is ended first."""

    def __init__(self, path: Path, most: int = MOST):
        self.path = path
        self.most = most
        self._open()

    def _open(self) -> None:
        if os.path.lexists(self.path):
            check_regular(self.path)
        self._file = open(self.path, "a+b", opener=private_opener)  # noqa: SIM115
        end = self._file.seek(0, os.SEEK_END)
        if not end:
            self._write(COLUMNS)
        else:
            self._file.seek(end - 1)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")
                self._file.flush()

    def write(
        self,
        direction: str,
        kind: str,
        size: int,
        *,
        round_number: int | None = None,
        numbers: int = 0,
        content: str = "",
        verdict: str = ALLOWED,
    ) -> None:
        """A line."""
        if self._file.seek(0, os.SEEK_END) >= self.most:
            self._file.close()
            os.rename(self.path, self._free())
            self._open()
        self._write((now(), direction, kind, round_number, size, numbers, content, verdict))

    def _free(self) -> Path:
        """The name for a file that is full."""
        names = (self.path.with_stem(f"{self.path.stem}-{n}") for n in itertools.count(1))
        return next(name for name in names if not os.path.lexists(name))

    def close(self) -> None:
        self._file.close()

    def _write(self, row: Sequence[object]) -> None:
        line = io.StringIO()
        cells = [csv_cell(shown(c, 300)) if isinstance(c, str) else c for c in row]
        csv.writer(line, lineterminator="\n").writerow(cells)
        self._file.write(line.getvalue().encode())
        self._file.flush()


def now() -> str:
    """The time, in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
