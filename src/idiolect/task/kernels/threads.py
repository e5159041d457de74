"""Python threads over independent pieces of work, each on one core.

For convolutions this is faster than torch's own threads within one piece.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache

import torch


@lru_cache(maxsize=1)
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(
        workers, thread_name_prefix="idiolect", initializer=torch.set_num_threads, initargs=(1,)
    )


def over_threads(work: Callable[[int], None], threads: int) -> None:
    """work(0), ..., work(threads - 1), one per thread.

    An exception in any of them is raised here, after all have ended.

    >>> done: list[int] = []
    >>> over_threads(done.append, 3)
    >>> sorted(done)
    [0, 1, 2]
    """
    if threads < 2:
        work(0)
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # each thread is one core's work
    try:
        others: list[Future] = [_pool(threads - 1).submit(work, i) for i in range(1, threads)]
        try:
            work(0)
        finally:
            errors = [f.exception() for f in others]
    finally:
        torch.set_num_threads(before)
    for error in errors:
        if error is not None:
            raise error
