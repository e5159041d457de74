"""Memory maps larger than memory: their rows are put in order chunk by chunk, on disk.

A map whose rows are in order already is used in place. Otherwise they are written, sorted by split
and client and in the type that training needs, to a scratch file without a name, which is gone with
the last tensor that uses it.
"""

from __future__ import annotations

import mmap
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.knobs import SettingError
from ...core.text import note
from .convert import in_units, to_tensor
from .pictures import Change

SMALL = 1 << 26  # bytes of a map that is simply read
CHUNK = 1 << 24  # bytes that are held at a time


def is_mapped(values: Any) -> bool:
    """Whether an array lies in a memory map that is too large to be read without need."""
    if not isinstance(values, np.ndarray) or values.nbytes <= SMALL:
        return False
    base: Any = values
    while base is not None:
        if isinstance(base, (np.memmap, mmap.mmap)):
            return True
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return False


def chunks(values: Any) -> Iterator[slice]:
    """Ranges of rows of about `CHUNK` bytes."""
    rows = len(values)
    size = values.nbytes if isinstance(values, np.ndarray) else values.numel() * values.itemsize
    step = max(1, CHUNK * rows // max(size, 1))
    for low in range(0, rows, step):
        yield slice(low, min(low + step, rows))


def check_finite(t: Tensor, name: str, rows: np.ndarray) -> None:
    """Refuse NaN and infinity; `rows` are the user's numbers of the samples."""
    if not t.is_floating_point():
        return
    for part in chunks(t):
        good = torch.isfinite(t[part])
        if not bool(good.all()):
            bad = rows[part][~good.reshape(len(good), -1).all(1).cpu().numpy()].min()
            raise SettingError(
                f"{name}: sample {bad} holds NaN or infinity; only finite features are accepted"
            )


def arrange(
    values: np.ndarray, order: np.ndarray, change: Change | None, name: str, scratch: str | None
) -> Tensor:
    """The rows in order, in place or in a scratch file; none of it is held in memory."""
    in_order = bool((order == np.arange(len(order))).all())
    if in_order and change is None and _fits(values):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch does not like arrays that are read-only
            whole = torch.from_numpy(values)
        check_finite(whole, name, order)
        return whole
    one = _take(values, order[:1], change)
    size = one.numel() * one.itemsize * len(order)
    folder = _folder(scratch, size, name)
    note(
        f"{name}: the memory map is sorted by split and client into a scratch file of "
        f"{in_units(size)} in {folder} (scratch= names another folder)"
    )
    try:
        with tempfile.TemporaryFile(dir=folder) as file:  # without a name; the map keeps it
            for part in chunks(values):
                t = _take(values, order[part], change)
                check_finite(t, name, order[part])
                file.write(t.numpy().data)
            file.flush()
            shape = (len(order), *one.shape[1:])
            mapped = np.memmap(file, dtype=one.numpy().dtype, mode="r+", shape=shape)
    except OSError as e:
        raise SettingError(f"scratch: {folder} cannot be written ({e.strerror})") from None
    return torch.from_numpy(mapped)


def _fits(values: np.ndarray) -> bool:
    """Whether torch can use an array as it is, in the type that `to_tensor` gives."""
    one = values[:1]
    return values.flags.c_contiguous and to_tensor(one).numpy().dtype == one.dtype


def _take(values: np.ndarray, rows: np.ndarray, change: Change | None) -> Tensor:
    ascending = np.argsort(rows)  # a disk is read from front to back
    back = np.argsort(ascending)
    t = to_tensor(np.asarray(values[rows[ascending]])[back])
    return (t if change is None else change(t)).contiguous()


def _folder(scratch: str | None, size: int, name: str) -> Path:
    folder = Path(scratch or tempfile.gettempdir())
    if not folder.is_dir():
        raise SettingError(f"scratch: there is no folder {str(folder)!r}")
    free = shutil.disk_usage(folder).free
    if size > free:
        raise SettingError(
            f"scratch: {name} needs {in_units(size)}, and {folder} has {in_units(free)} free; "
            "scratch= names another folder"
        )
    return folder
