"""Something happens at the n-th file operation of this process: it is killed, or the disk is full.

Operations are opening a file for writing, writing to it, closing it, making it durable, truncating,
reserving space, renaming and removing files, and making and removing folders, whoever asks for
them; and the two that safetensors and torch do outside Python: writing a file of tensors, which is
cut in half, and mapping one.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import safetensors.torch
import torch

OS_CALLS = (
    "write",
    "fsync",
    "ftruncate",
    "truncate",
    "posix_fallocate",
    "replace",
    "rename",
    "link",
    "symlink",
    "unlink",
    "remove",
    "mkdir",
    "rmdir",
    "chmod",
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def kill() -> None:
    """As `kill -9` does: nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


def full_disk() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Counter:
    """Counts operations under a folder and acts at the n-th; 0 = only counts."""

    def __init__(self, folder: Path, at: int, act: Callable[[], None]):
        self.folder = str(folder)
        self.at = at
        self.act = act
        self.seen: list[str] = []

    def step(self, name: str, where: object) -> bool:
        """One more operation; whether it is the one."""
        path = where
        if isinstance(where, int):  # a descriptor
            try:
                path = os.readlink(f"/proc/self/fd/{where}")
            except OSError:
                return False
        text = os.fspath(path) if isinstance(path, (str, bytes, os.PathLike)) else ""
        text = text.decode() if isinstance(text, bytes) else text
        if not os.path.isabs(text):  # relative to a folder's descriptor, as in rmtree
            text = os.path.join(self.folder, text)
        if not text.startswith(self.folder):
            return False
        self.seen.append(f"{name} {os.path.relpath(text, self.folder)}")
        return len(self.seen) == self.at


class _File:
    """A file opened for writing, each of whose writes is an operation."""

    def __init__(self, file: io.IOBase, counter: Counter, path: object):
        self._file = file
        self._counter = counter
        self._path = path

    def write(self, content):
        if self._counter.step("write", self._path):
            self._file.write(content[: len(content) // 2])
            self._file.flush()
            self._counter.act()
        return self._file.write(content)

    def close(self):
        if not self._file.closed and self._counter.step("close", self._path):
            self._counter.act()
        self._file.close()

    def __enter__(self):
        self._file.__enter__()
        return self

    def __exit__(self, *error):
        self.close()

    def __iter__(self):
        return iter(self._file)

    def __getattr__(self, name):
        return getattr(self._file, name)


@contextmanager
def at_operation(folder: Path, at: int = 0, act: Callable[[], None] = kill) -> Iterator[list[str]]:
    """Operations on what is in `folder` are counted, and `act` is called in place of the n-th."""
    counter = Counter(folder, at, act)
    real_open = io.open
    real_os_open = os.open
    serialize = safetensors.torch.serialize_file
    map_file = torch.from_file

    def opened(file, mode="r", *args, **kwargs):
        if isinstance(file, int) or not set(mode) & set("wax+"):
            return real_open(file, mode, *args, **kwargs)
        if counter.step("open", file):
            act()
        return _File(real_open(file, mode, *args, **kwargs), counter, file)

    def os_opened(path, flags, *args, **kwargs):
        if flags & WRITING and counter.step("os.open", path):
            act()
        return real_os_open(path, flags, *args, **kwargs)

    def serialized(tensors, file, *args, **kwargs):
        if counter.step("tensors", file):
            serialize(tensors, file, *args, **kwargs)
            os.truncate(file, os.path.getsize(file) // 2)
            act()
        return serialize(tensors, file, *args, **kwargs)

    def mapped(file, *args, **kwargs):
        if counter.step("map", file):
            act()
        return map_file(file, *args, **kwargs)

    def watched(name: str) -> Callable:
        real = getattr(os, name)

        def call(path, *args, **kwargs):
            if counter.step(name, path):
                act()
            return real(path, *args, **kwargs)

        return call

    patches = [patch.object(os, name, watched(name)) for name in OS_CALLS if hasattr(os, name)]
    patches += [
        patch.object(builtins, "open", opened),
        patch.object(io, "open", opened),
        patch.object(os, "open", os_opened),
        patch.object(safetensors.torch, "serialize_file", serialized),
        patch.object(torch, "from_file", mapped),
    ]
    for one in patches:
        one.start()
    try:
        yield counter.seen
    finally:
        for one in reversed(patches):
            one.stop()
