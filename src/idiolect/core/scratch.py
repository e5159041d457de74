"""Scratch folders for what only a running process needs: samples, rows and models of clients.

Whoever uses one holds a shared lock on it. Making a new one removes those of the same user that
nobody holds, so that what a killed process has left is gone with the next start.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

PREFIX = "idiolect-scratch-"
_NAME = re.compile(PREFIX + r"\w{8}")  # as tempfile makes it
_TRIES = 3  # where another process takes a new folder for an abandoned one before it is held


class ScratchFolder(tempfile.TemporaryDirectory[str]):
    """A new folder for the user alone, in `place` or the system's folder for temporary files.

    >>> with ScratchFolder() as folder:
    ...     oct(os.stat(folder).st_mode & 0o777)
    '0o700'
    >>> os.path.exists(folder)
    False
    """

    def __init__(self, place: Path | None = None):
        parent = Path(tempfile.gettempdir()) if place is None else place
        remove_abandoned(parent)
        for _ in range(_TRIES):
            super().__init__(prefix=PREFIX, dir=parent)
            if hold(Path(self.name), self) or os.name == "nt":
                return
            self.cleanup()
        super().__init__(prefix=PREFIX, dir=parent)  # a file system without locks on folders


def hold(folder: Path, owner: object) -> bool:
    """Keep a folder from being removed as abandoned while `owner` lives; False where it is gone."""
    handle = _lock(folder, shared=True)
    if handle is None:
        return False
    weakref.finalize(owner, os.close, handle)
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(folder))
    except FileNotFoundError:
        return False


def remove_abandoned(place: Path) -> None:
    """Remove the scratch folders in `place` that are this user's and that no process holds."""
    with suppress(OSError):
        for name in filter(_NAME.fullmatch, os.listdir(place)):
            handle = _lock(place / name, shared=False)
            if handle is not None:
                shutil.rmtree(place / name, ignore_errors=True)
                os.close(handle)


def _lock(folder: Path, shared: bool) -> int | None:
    """A handle with a lock on a folder that is this user's alone; None where there is no such."""
    if os.name == "nt":
        return None
    import fcntl

    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # gone, a link, no folder, or another user's
        return None
    try:
        status = os.fstat(handle)
        if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            return handle
    except OSError:  # held by another process
        pass
    os.close(handle)
    return None
