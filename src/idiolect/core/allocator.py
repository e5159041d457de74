"""Keep freed memory instead of handing it back to the system after every step.

A gradient of a cohort is a few megabytes, made and dropped at every step. glibc may return such
blocks to the system each time, and touching them again costs a page fault every 4 kB: up to half of
a step's time, in some runs and not in others. The setting holds for the whole process, so only the
command line makes it by itself; from Python, call `idiolect.keep_memory()`.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

# M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of <malloc.h>
_TRIM = -1
_MMAP = -3


@cache
def keep_memory() -> bool:
    """Tell glibc to keep up to 1 GiB at the top of the heap, and blocks of up to 32 MiB in it.

    Returns whether it was set; with another C library nothing is done.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return bool(mallopt(_TRIM, 1 << 30)) and bool(mallopt(_MMAP, 32 << 20))
