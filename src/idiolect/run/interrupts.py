"""A Ctrl-C that lets what is at work come to an end, so that nothing half-done is saved."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def finish_on_interrupt(what: str) -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, as a function; `what` tells the user what is still done.

    The second Ctrl-C stops at once.

    >>> with finish_on_interrupt("finishing this round") as interrupted:
    ...     interrupted()
    False
    """
    pressed: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(*_: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(1)
        print(f"\n{what} (Ctrl-C again stops at once)", file=sys.stderr)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
