"""Rows in files, where they are too many for memory: space on the disk is reserved before use.

A file that is mapped without its space ends the process (SIGBUS) when the disk is full. So the
space of a row is reserved before the row is first written, and a full disk is an error with a
message.
"""

from __future__ import annotations

import errno
import os
import tempfile
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from .files import private_opener
from .knobs import SettingError
from .types import State

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNSUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
_ZEROS = bytes(1 << 20)


class RowFiles:
    """A private folder of mapped files; names are ours, and it goes with this object."""

    def __init__(self, scratch: Path | None):
        place = Path(tempfile.gettempdir()) if scratch is None else scratch
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="idiolect-rows-", dir=place)
        except OSError as error:
            raise _no_room(error, place) from None
        self._place = place
        self._numbers = count()
        self._paths: dict[int, Path] = {}  # address of a mapped tensor -> its file
        self._size = 0  # bytes of all files, were they full

    def rows(self, rows: int, like: State) -> State:
        """Room for this many rows like those given; see `reserve`."""
        self._size += sum(rows * _row_size(t) for t in like.values())
        try:
            return {n: self._map(rows, t) for n, t in like.items()}
        except OSError as error:
            raise _no_room(error, self._place, self._size) from None

    def _map(self, rows: int, like: Tensor) -> Tensor:
        numbers = rows * like[:1].numel()
        if not numbers:
            return like.new_zeros(rows, *like.shape[1:])
        path = Path(self._folder.name) / f"rows-{next(self._numbers)}.bin"
        handle = private_opener(str(path), os.O_CREAT | os.O_EXCL | os.O_RDWR)
        try:
            os.ftruncate(handle, rows * _row_size(like))  # takes no space yet
        finally:
            os.close(handle)
        flat = torch.from_file(str(path), shared=True, size=numbers, dtype=like.dtype)
        self._paths[flat.data_ptr()] = path
        return flat.view(rows, *like.shape[1:])

    def reserve(self, rows: State, ids: Tensor) -> None:
        """Space for these rows, which have never been written; ids are increasing."""
        if not len(ids):
            return
        breaks = (ids.diff() != 1).nonzero().flatten() + 1
        runs = [(int(run[0]), len(run)) for run in ids.tensor_split(breaks)]
        try:
            for t in rows.values():
                if t.numel():
                    _reserve(self._paths[t.data_ptr()], runs, _row_size(t))
        except OSError as error:
            raise _no_room(error, self._place, self._size) from None

    def drop(self, rows: State) -> None:
        """Remove the files of these rows; their space is free when nobody holds them any more."""
        for t in rows.values():
            path = self._paths.pop(t.data_ptr(), None)
            if path is not None:
                self._size -= len(t) * _row_size(t)
                path.unlink(missing_ok=True)


def _row_size(rows: Tensor) -> int:
    return rows[:1].numel() * rows.element_size()


def _no_room(error: OSError, place: Path, size: int = 0) -> Exception:
    if error.errno not in _FULL:
        return error
    needed = f": they may take {size / 2**30:.3g} GiB" if size else ""
    return SettingError(
        "memory: the clients' rows are larger than the memory they are given, and there is no room "
        f"for them in {place} ({os.strerror(error.errno)}){needed}; make room there, continue with "
        "a larger memory (GiB), or run in a directory on a disk with more room"
    )


def _reserve(path: Path, runs: list[tuple[int, int]], size: int) -> None:
    """Space for runs of rows, (first, how many), in a file."""
    handle = os.open(path, os.O_RDWR)
    try:
        for first, rows in runs:
            _take(handle, first * size, rows * size)
    finally:
        os.close(handle)


def _take(handle: int, offset: int, length: int) -> None:
    """These bytes of a file are on the disk, or it is an OSError."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(handle, offset, length)
            return
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
    for at in range(offset, offset + length, len(_ZEROS)):
        os.pwrite(handle, _ZEROS[: offset + length - at], at)
