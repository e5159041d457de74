"""How much memory a piece of work takes: tensors and arrays counted, resident memory read."""

from __future__ import annotations

import sys
import tracemalloc
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """The bytes of all tensors and arrays made inside it that are alive at once.

    They are exact, and the same on every machine. Tensors are seen as operations return them,
    NumPy's arrays and Python's bytes through `tracemalloc`. What a kernel takes and gives back
    within one operation is not seen.

    >>> import torch
    >>> with Live() as live:
    ...     x = torch.zeros(1_000_000) + torch.ones(1_000_000)
    >>> live.peak // 1_000_000  # two terms and their sum
    12
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0  # bytes of the tensors alive
        self.peak = 0
        self.start = 0  # bytes of arrays that were there before
        self.sizes: dict[int, int] = {}

    def __enter__(self) -> Live:
        entered = super().__enter__()
        torch.empty(0)  # torch imports modules at the first operation: they are not counted
        self.now = self.peak = 0
        self.sizes.clear()
        tracemalloc.start()
        self.start = tracemalloc.get_traced_memory()[0]
        return entered

    def __exit__(self, *what: Any) -> None:
        super().__exit__(*what)
        self._look()
        tracemalloc.stop()

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        input_storages = {
            t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)
        }
        out = operation(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if not isinstance(t, Tensor):
                continue
            storage = t.untyped_storage()
            if storage._cdata not in input_storages and storage._cdata not in self.sizes:
                self.sizes[storage._cdata] = storage.nbytes()
                self.now += storage.nbytes()
                weakref.finalize(storage, self._gone, storage._cdata)
        self._look()
        return out

    def _gone(self, storage: int) -> None:
        self.now -= self.sizes.pop(storage)

    def _look(self) -> None:
        """Add the peak of arrays since the last operation to the tensors that are alive now.

        Between two operations tensors are only dropped, so this is not too little.
        """
        self.peak = max(self.peak, self.now + tracemalloc.get_traced_memory()[1] - self.start)
        tracemalloc.reset_peak()


def resident_peak(reset: bool = False) -> int:
    """The peak of resident memory in bytes since the last reset, which returns what it is now.

    Elsewhere than on Linux: the peak of the process.
    """
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        status = dict(
            line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines()
        )
        return int(status["VmRSS" if reset else "VmHWM"].split()[0]) << 10
    except OSError:
        import resource  # not on Windows

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << (
            0 if sys.platform == "darwin" else 10
        )
