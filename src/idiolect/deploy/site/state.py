"""The state directory of a site: one process at a time, for its user alone.

lock            held by the process, with its id
host.sock       where it is reached, while it runs
site.json       whose data, and how they are read
messages.csv    a line per message (audit.py)
spent.json      how much has left (audit.py)
current.json    which run it is in
run-00c0ffee/   of each run: agreement.json, enrolled.json, rows/ (host/durable.py)
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

from ...core.files import lock_file, private_folder, private_opener, read_json_object, write_json
from ...core.knobs import SettingError

FORMAT = 1
LOCK = "lock"
SOCKET = "host.sock"
SITE = "site.json"
MESSAGES = "messages.csv"
CURRENT = "current.json"
AGREEMENT = "agreement.json"
MEMBERS = "members.json"
ENROLLED = "enrolled.json"
ROWS = "rows"
_RUN = re.compile(r"run-([0-9a-f]{8})")
MOST_PATH = 100  # bytes of the path of a Unix socket, at most 107 on Linux and 103 on macOS


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
            # `running` holds the lock for a moment: it is tried for a while
            self._lock = open(self.path / LOCK, "a+", opener=private_opener)  # noqa: SIM115
        except OSError as error:
            raise SettingError(f"state: cannot write to {self.path}: {error.strerror}") from None
        if not lock_file(self._lock, seconds=0.5):
            pid = self.pid() or "unknown"
            self._lock.close()
            self._lock = None
            raise SettingError(
                f"state: {self.path} is in use by the process with the id {pid}; stop it first "
                f"(kill {pid}), or choose another directory"
            )
        self._lock.seek(0)
        self._lock.truncate()
        self._lock.write(f"{os.getpid()}\n")
        self._lock.flush()

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
        """The process that holds the folder, or held it last."""
        try:
            text = (self.path / LOCK).read_text().strip()
        except OSError:
            return None
        return int(text) if text.isdigit() else None

    def running(self) -> bool:
        """Whether a process holds the folder now."""
        try:
            with open(self.path / LOCK, "a+", opener=private_opener) as lock:
                return not lock_file(lock)
        except OSError:
            return False

    # -- what is in it ---------------------------------------------------------------------------
    @property
    def socket(self) -> Path:
        return self.path / SOCKET

    @property
    def messages(self) -> Path:
        return self.path / MESSAGES

    def site(self) -> dict[str, Any]:
        """Whose data, and how they are read; SettingError where this is no state directory."""
        path = self.path / SITE
        if not path.exists():
            raise SettingError(
                f"state: {self.path} is no state directory of a site ({SITE} is missing); "
                "idiolect host start makes one"
            )
        document = read_json_object(path, _SITE, limit=1 << 20)
        if document["format"] != FORMAT:
            raise SettingError(f"state: {path} was written by another version of idiolect")
        return document

    def write_site(self, site: str, data: dict[str, Any], rules: dict[str, Any]) -> None:
        facts = {"format": FORMAT, "site": site, "data": data, "rules": rules}
        write_json(self.path / SITE, facts)

    def run(self, run: int) -> Path:
        """The folder of a run; it need not exist."""
        return self.path / f"run-{run:08x}"

    def runs(self) -> list[int]:
        """The runs that this site has agreed to."""
        matches = (_RUN.fullmatch(p.name) for p in sorted(self.path.iterdir()))
        numbers = [int(match[1], 16) for match in matches if match]
        return [run for run in numbers if (self.run(run) / AGREEMENT).exists()]

    def current(self) -> int | None:
        """The run that this site is in, or was in last."""
        path = self.path / CURRENT
        if not path.exists():
            return None
        run: int = read_json_object(path, {"run": int}, limit=1 << 16)["run"]
        return run

    def enter(self, run: int) -> None:
        """Make this the current run."""
        write_json(self.path / CURRENT, {"run": run})


_SITE = {"format": int, "site": str, "data": dict, "rules": dict}
