"""Keep freed memory instead of handing it back to the system after every step.

A gradient of a cohort is a few megabytes, made and dropped at every step. glibc may return such
blocks to the system each time, and touching them again costs a page fault every 4 kB: up to half of
a step's time, in some runs and not in others. The setting is the whole process's, so the command line
makes it, and in Python only a call of `idiolect.keep_memory()`.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_TRIM, _MMAP = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of <malloc.h>


@cache
def keep() -> bool:
    """Tell glibc to keep up to 1 GiB at the top of the heap, and blocks of up to 32 MiB in it.

    Elsewhere nothing is done. Whether it was.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_TRIM, 1 << 30)) and bool(mallopt(_MMAP, 32 << 20))
