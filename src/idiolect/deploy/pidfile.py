"""Which process is at work in a folder: a file with its number, locked for as long as it lives.

A number alone says nothing: the process may be gone, and its number another's by now. The lock is
the operating system's, and ends with the process, however that ends.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

from ..core.files import lock_file, private_opener
from ..core.knobs import SettingError

MOST = 20  # bytes of a number


def hold(
    path: Path, seconds: float = 0.0, refusal: Callable[[int | None], str] | None = None
) -> IO[bytes]:
    """Write this process into a file and lock it, until the file is closed or the process ends.

    SettingError where another process holds it for `seconds`; `refusal` words it.
    """
    file = open(path, "a+b", opener=private_opener)  # noqa: SIM115 (open while the process lives)
    if not lock_file(file, seconds):  # `holder` locks it for a moment
        file.close()
        pid = holder(path)
        text = f"{path.parent}: it is running already (process {pid})"
        raise SettingError(text if refusal is None else refusal(pid))
    file.truncate(0)
    file.write(str(os.getpid()).encode())
    file.flush()
    return file


def holder(path: Path) -> int | None:
    """The process that holds a file; None where none does, whatever number is in it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "pid"
    ...     size = path.write_text("1")  # of a process that is not ours
    ...     before = holder(path)
    ...     with hold(path):
    ...         during = holder(path)
    ...     before, during == os.getpid(), holder(path)
    (None, True, None)
    """
    try:
        with open(path, "r+b", opener=private_opener) as file:
            if lock_file(file):
                return None
            return int(file.read(MOST))
    except (OSError, ValueError):
        return None
