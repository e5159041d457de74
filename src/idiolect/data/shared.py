"""Data that several processes of this machine read at the same time, in memory once.

The samples lie in a file that every process maps: the pages are the same for all of them.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.files import private_opener
from ..core.scratch import ScratchFolder
from ..core.types import Tree, map_tree
from .federation import Federation, blank

ALIGNED = mmap.ALLOCATIONGRANULARITY
FILE = "samples"


@dataclass(frozen=True)
class TensorPlace:
    """Where in a file a tensor lies."""

    path: Path
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    def open(self) -> Tensor:
        """The tensor, mapped: what is written to it is seen by this process alone."""
        kind = torch.empty(0, dtype=self.dtype).numpy().dtype
        if not int(np.prod(self.shape)):
            return torch.empty(self.shape, dtype=self.dtype)
        mapped = np.memmap(self.path, kind, "c", self.offset, self.shape)
        return torch.from_numpy(mapped)


@dataclass(frozen=True)
class SharedData:
    """A federation whose samples are in a file; it can be sent to another process."""

    blank: Federation  # with samples that take no memory
    inputs: Tree
    targets: Tree
    public: Tree | None = None

    def open(self) -> Federation:
        """The federation."""
        data = replace(
            self.blank,
            inputs=map_tree(lambda place: place.open(), self.inputs),
            targets=map_tree(lambda place: place.open(), self.targets),
            public=None if self.public is None else map_tree(lambda p: p.open(), self.public),
        )
        return data if self.blank.draw is None else data.with_draw(self.blank.draw)


@contextmanager
def shared(federations: dict[str, Federation]) -> Iterator[dict[str, SharedData]]:
    """The same data for other processes, as long as this lasts.

    >>> from idiolect.data import load
    >>> data = load("synthetic", clients=3)
    >>> with shared({"a": data}) as files:
    ...     files["a"].open().fingerprint() == data.fingerprint()
    True
    """
    with ScratchFolder() as folder:
        yield {
            name: _write(data, Path(folder) / f"{FILE}-{k}")
            for k, (name, data) in enumerate(federations.items())
        }


def _write(data: Federation, path: Path) -> SharedData:
    with open(path, "wb", opener=private_opener) as file:

        def store(t: Tensor) -> TensorPlace:
            offset = -(-file.tell() // ALIGNED) * ALIGNED
            file.seek(offset)
            t.cpu().contiguous().numpy().tofile(file)
            return TensorPlace(path, offset, t.dtype, tuple(t.shape))

        inputs, targets = map_tree(store, data.inputs), map_tree(store, data.targets)
        public = None if data.public is None else map_tree(store, data.public)
    nothing = {
        "inputs": map_tree(lambda t: blank(t, len(t)), data.inputs),
        "targets": map_tree(lambda t: blank(t, len(t)), data.targets),
    }
    empty = replace(data, **nothing, public=None)
    if data.draw is not None:
        empty = empty.with_draw(data.draw)
    return SharedData(empty, inputs, targets, public)
