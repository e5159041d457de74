"""A full disk must not cost a run."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .check import warn

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def on_disk(what: str, say: Callable[[str], None] = warn) -> Iterator[None]:
    """Where the disk is full: say it, keep what was saved before, go on in memory."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        say(
            f"{what} could not be written ({error.strerror}); "
            "earlier files are untouched and the run goes on"
        )
