"""The least time of each of several functions, measured in turn within one run.

What a busy machine does to one, it does to all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Times(NamedTuple):
    """The least seconds of one call."""

    cpu: float  # of this process
    wall: float


def now() -> Times:
    return Times(time.process_time(), time.perf_counter())


def least(*functions: Callable[[], Any], tries: int = 15, warm: int = 2) -> list[Times]:
    """Both clocks, each at its own best try."""
    for f in functions:
        for _ in range(warm):
            f()
    best = [Times(float("inf"), float("inf"))] * len(functions)
    for _ in range(tries):
        for i, f in enumerate(functions):
            began = now()
            f()
            ended = now()
            best[i] = Times(*(min(b, e - s) for b, s, e in zip(best[i], began, ended, strict=True)))
    return best


def fastest(*functions: Callable[[], Any], tries: int = 15, warm: int = 2) -> list[float]:
    """The least CPU seconds of each function."""
    return [t.cpu for t in least(*functions, tries=tries, warm=warm)]
