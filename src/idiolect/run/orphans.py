"""A worker whose parent was killed ends too, where it would wait for its next job for ever."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time

POLL = 0.5  # seconds


def end_with_parent(pid: int | None = None) -> None:
    """Watch the parent of this process in a thread: a process of multiprocessing knows it.

    Any other is told its `pid`, and asks again and again (where the system tells, as Unix does).
    """
    threading.Thread(target=_watch, args=(pid,), daemon=True).start()


def _watch(pid: int | None) -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # a pipe that is closed with the parent, however it ends
    elif pid is not None:
        while os.getppid() == pid:
            time.sleep(POLL)
    os._exit(1)
