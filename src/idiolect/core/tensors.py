"""Tensors in safetensors files: private when written; when read, only those that are expected."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .files import FILE_MODE, check_regular, private_opener
from .text import warn
from .types import State

Shape = tuple[int, ...]
Shapes = Mapping[str, tuple[Shape, torch.dtype]]  # name -> shape and dtype

HEADER = 64 << 20  # bytes of a file beside its tensors, at most

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def shapes_of(state: State, prefix: str = "") -> dict[str, tuple[Shape, torch.dtype]]:
    """Names, shapes and dtypes of some tensors.

    >>> shapes_of({"w": torch.zeros(3)}, "state.")
    {'state.w': ((3,), torch.float32)}
    """
    return {f"{prefix}{n}": (tuple(t.shape), t.dtype) for n, t in state.items()}


def check_shapes(shapes: Shapes, expected: Shapes) -> None:
    """Refuse, by ValueError, tensors that are not exactly those expected.

    >>> check_shapes({"w": ((3,), torch.float32)}, {"w": ((4,), torch.float32)})
    Traceback (most recent call last):
        ...
    ValueError: tensor 'w' is float32[3]; float32[4] is expected
    """
    for name in shapes:
        if name not in expected:
            names = ", ".join(list(expected)[:12]) or "none"
            raise ValueError(f"tensor {name[:80]!r} is not expected; expected: {names}")
    for name, form in expected.items():
        if name not in shapes:
            raise ValueError(f"tensor {name!r} is missing; {_text(*form)} is expected")
        if shapes[name] != form:
            is_, wanted = _text(*shapes[name]), _text(*form)
            raise ValueError(f"tensor {name!r} is {is_}; {wanted} is expected")


def bytes_of(shapes: Shapes) -> int:
    """What tensors of these shapes take."""
    return sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in shapes.values())


def write_tensors(path: Path, state: State) -> None:
    """A safetensors file for the user alone; a full disk is an OSError."""
    try:
        open(path, "ab", opener=private_opener).close()  # never readable by others
        save_file({n: t.cpu().contiguous() for n, t in state.items()}, path)
        os.chmod(path, FILE_MODE)
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1])), str(path)) from None


def file_shapes(path: Path) -> dict[str, tuple[Shape, torch.dtype]]:
    """Names, shapes and dtypes in a file, from its header alone; ValueError if it has none."""
    check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {}
            for name in file.keys():  # noqa: SIM118
                part = file.get_slice(name)
                dtype = part.get_dtype()
                if dtype not in _DTYPES:
                    raise ValueError(f"{path.name}: numbers of type {dtype} are not expected")
                shapes[name] = (tuple(part.get_shape()), _DTYPES[dtype])
            return shapes
    except SafetensorError as error:
        raise ValueError(f"{path.name}: {error}") from None


def read_tensors(path: Path, check: Callable[[Shapes], None]) -> State:
    """The tensors of a file; `check` sees names, shapes and dtypes before any of them is read.

    Whatever is wrong is a ValueError that names the file.
    """
    try:
        check(file_shapes(path))
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (ValueError, SafetensorError) as error:
        text = str(error)
        raise ValueError(text if text.startswith(path.name) else f"{path.name}: {text}") from None


def _text(shape: Shape, dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"


# -- the same bits, whoever else trains ------------------------------------------------------------
MKL_OFF = 1  # the branch of MKL's conditional reproducibility that promises nothing


@cache
def warn_of_variable_bits() -> None:
    """Say, once, that MKL was at work before idiolect could set its reproducible mode.

    The mode cannot be changed after MKL's first call. Where there is no MKL, or a build of torch
    does not show its mode, nothing is said.
    """
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        mode = ctypes.CDLL(str(library)).mkl_serv_cbwr_get(-1)
    except (OSError, AttributeError):
        return
    if mode & 0xFFFF == MKL_OFF:
        warn(
            "MKL is not in its reproducible mode: the last bits of results may depend on the "
            "number of hosts, on chunks and on resuming; import idiolect before torch computes "
            "anything, or set MKL_CBWR=AUTO in the environment"
        )


TAIL = 64  # numbers at the end of a tensor that torch may compute by other code


def power(t: Tensor, exponent: float) -> Tensor:
    """t ** exponent, with the same bits wherever a number lies in t.

    >>> power(torch.tensor([4.0, 9.0]), 0.5)
    tensor([2., 3.])
    """
    return torch.cat([t.flatten(), t.new_zeros(TAIL)]).pow(exponent)[:-TAIL].view_as(t)


TILE = 12


def tiles(rows: int) -> list[slice]:
    """All whole tiles, and what is left: that alone is filled up, so that little is copied.

    >>> tiles(30), tiles(24), tiles(5)
    ([slice(0, 24, None), slice(24, 30, None)], [slice(0, 24, None)], [slice(0, 5, None)])
    """
    whole = rows - rows % TILE
    return [part for part in (slice(0, whole), slice(whole, rows)) if part.start < part.stop]


def padded_lengths(sizes: np.ndarray) -> np.ndarray:
    """Numbers of samples rounded up: to eight steps per power of two, so by an eighth at most.

    Up to 16 samples to an even number: never to one, whose product with a matrix rounds differently
    when it is alone.

    >>> padded_lengths(np.array([0, 1, 3, 10, 17, 63, 65, 100, 1001])).tolist()
    [0, 2, 4, 10, 18, 64, 72, 104, 1024]
    """
    bits = np.ceil(np.log2(np.maximum(sizes, 1))).astype(np.int64)
    step = 2 ** np.maximum(bits - 4, 1)
    return -(-sizes // step) * step
