"""CPU time on one thread, as ratios within one run: what a busy machine does to both sides cancels."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def fastest(*functions: Callable[[], Any], tries: int = 15, warm: int = 2) -> list[float]:
    """The least CPU seconds of each function, measured in turn so that all see the same machine."""
    for f in functions:
        for _ in range(warm):
            f()
    best = [float("inf")] * len(functions)
    for _ in range(tries):
        for i, f in enumerate(functions):
            began = time.process_time()
            f()
            best[i] = min(best[i], time.process_time() - began)
    return best
