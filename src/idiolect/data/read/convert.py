"""Arrays of any library as tensors or NumPy arrays, and trees of them.

NumPy, lists, torch, pandas and polars (columns and frames), pyarrow and scipy's sparse matrices.
Sparse matrices and memory maps stay what they are until their rows are put in order.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.knobs import SettingError
from .ids import is_missing

KEPT = (torch.uint8, torch.int16, torch.int32, torch.int64)  # integers of inputs that stay
GIB = 1 << 30


@dataclass(frozen=True)
class RaggedSamples:
    """Samples that differ in their first axis: sequences of different lengths."""

    samples: list[Tensor]  # each [T_i, ...]

    def __len__(self) -> int:
        return len(self.samples)


def read_tree(values: Any, name: str, n: int) -> Any:
    """The user's arrays, or tuples and dicts of them; `n` is the number of samples.

    A tuple of arrays that have `n` entries each is a tree; a list of `n` arrays is a list of
    samples.
    """
    if isinstance(values, Mapping) and not is_sparse(values):  # scipy has one that is a dict
        if not len(values):
            raise SettingError(f"{name}: an empty dict was given; at least one array is needed")
        for key in values:
            if not isinstance(key, str):
                raise SettingError(f"{name} must have keys of text, got {key!r}")
        return {key: read_tree(v, f"{name}[{key!r}]", n) for key, v in values.items()}
    if isinstance(values, (tuple, list)) and _is_tree(values, n):
        return tuple(read_tree(v, f"{name}[{i}]", n) for i, v in enumerate(values))
    return read_array(values, name)


def _is_tree(values: tuple | list, n: int) -> bool:
    parts = [hasattr(v, "shape") or isinstance(v, (list, tuple, Mapping)) for v in values]
    if not parts or not all(parts):
        return False
    arrays = any(hasattr(v, "shape") or isinstance(v, Mapping) for v in values)
    if len(values) == n and not (isinstance(values, tuple) and arrays):
        return False
    return all(isinstance(v, Mapping) or rows_of(v) == n for v in values)


def each_leaf(tree: Any, name: str, function: Any) -> Any:
    """`function(leaf, its name)` for every array of a tree."""
    if isinstance(tree, dict):
        return {key: each_leaf(v, f"{name}[{key!r}]", function) for key, v in tree.items()}
    if isinstance(tree, tuple):
        return tuple(each_leaf(v, f"{name}[{i}]", function) for i, v in enumerate(tree))
    return function(tree, name)


def rows_of(values: Any) -> int:
    """The number of samples; -1 for a single number."""
    shape = getattr(values, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else -1
    return len(values)


def read_array(values: Any, name: str) -> Any:  # -> Tensor | ndarray | csr_array | RaggedSamples
    """One array of numbers, samples first."""
    if isinstance(values, type):
        raise SettingError(f"{name}: the class {values.__name__} is given; give an object of it")
    if isinstance(values, RaggedSamples):
        return values
    if isinstance(values, Tensor):
        out: Any = values.detach()
    elif is_sparse(values):
        return values.tocsr()
    elif isinstance(values, (list, tuple)):
        out = _from_list(list(values), name)
    else:
        out = _from_library(values, name)
    if isinstance(out, np.ndarray) and out.dtype == object:
        out = as_numbers(out)
        if out.dtype == object and out.ndim == 1 and all(hasattr(v, "shape") for v in out):
            out = _from_list(list(out), name)  # an array of arrays
    if isinstance(out, np.ndarray):
        out = _check_numbers(out, name)
    elif isinstance(out, Tensor) and out.is_complex():
        raise SettingError(f"{name} must be real numbers, got {out.dtype} values")
    if not isinstance(out, RaggedSamples) and out.ndim == 0:
        raise SettingError(f"{name} must be an array, samples first, got one number")
    return out


def _from_list(samples: list, name: str) -> Any:
    if samples and all(isinstance(v, Tensor) for v in samples):
        if len({tuple(v.shape) for v in samples}) == 1:
            return torch.stack([v.detach() for v in samples])
        return _ragged(samples, name)
    try:
        return np.asarray(samples)
    except ValueError:  # samples of different shapes
        return _ragged(
            [torch.as_tensor(_check_numbers(np.asarray(v), name)) for v in samples], name
        )


def _ragged(samples: list[Tensor], name: str) -> RaggedSamples:
    """Sequences; refused where samples differ in more than their length."""
    first = samples[0]
    for i, v in enumerate(samples):
        if v.dim() != first.dim() or v.shape[1:] != first.shape[1:] or not v.dim():
            raise SettingError(
                f"{name}: sample {i} has shape {tuple(v.shape)}, sample 0 {tuple(first.shape)}; "
                "samples may differ in their first axis only (sequences of different lengths)"
            )
        if not len(v):
            raise SettingError(f"{name}: sample {i} is empty; a sequence has at least one entry")
    return RaggedSamples([v.detach() for v in samples])


# -- libraries -------------------------------------------------------------------------------------
def is_sparse(values: Any) -> bool:
    """Whether it is a sparse matrix of scipy, which is loaded if the user has one."""
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(values))


def _from_library(values: Any, name: str) -> np.ndarray:
    library = type(values).__module__.partition(".")[0]
    if library == "pyarrow" and hasattr(values, "column_names"):  # a table or a batch
        return _columns({c: values.column(c) for c in values.column_names}, name)
    if library == "polars" and hasattr(values, "get_columns"):
        return _columns({c.name: c for c in values.get_columns()}, name)
    if library == "pandas" and getattr(values, "ndim", 1) == 2:
        return _columns({c: values.iloc[:, i] for i, c in enumerate(values.columns)}, name)
    if library in ("pandas", "polars", "pyarrow"):
        return _column(values, name)
    return np.asarray(values)


def _columns(columns: dict[Any, Any], name: str) -> np.ndarray:
    """The columns of a frame as features: float32[n, columns]."""
    if not columns:
        raise SettingError(f"{name}: the frame has no columns")
    numbers = [_column(c, f"{name}: column {key!r}") for key, c in columns.items()]
    return np.stack([c.astype(np.float32) for c in numbers], axis=1)


def _column(column: Any, name: str) -> np.ndarray:
    """A column of numbers; missing ones are NaN, which is refused by sample later."""
    array = np.asarray(column)
    if array.dtype == object:
        array = as_numbers(np.where([is_missing(v) for v in array], np.nan, array))
    if array.dtype.kind not in "biuf":
        raise SettingError(
            f"{name} holds {array.dtype}, not numbers; encode or drop it, "
            "or use Federation.from_frame, which encodes"
        )
    return array


def as_numbers(array: np.ndarray) -> np.ndarray:
    """An array of objects that are all booleans, all integers or all numbers, as such."""
    types = {type(v) for v in array.ravel().tolist()}
    for kinds in ((bool, np.bool_), (int, np.integer), (int, float, np.integer, np.floating)):
        if types and all(issubclass(t, kinds) for t in types):
            if bool in types and kinds[0] is not bool:
                break
            try:
                return np.array(array.tolist())
            except OverflowError:  # integers of more than 64 bits
                break
    return array


def _check_numbers(array: np.ndarray, name: str) -> np.ndarray:
    if array.dtype.kind not in "biuf":
        text = array.dtype.kind in "UST" or (
            array.dtype == object and any(isinstance(v, str) for v in array.ravel())
        )
        what = "text" if text else f"{array.dtype} values"
        raise SettingError(f"{name} must be numbers, got {what}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    return array


# -- tensors ---------------------------------------------------------------------------------------
def to_tensor(values: np.ndarray | Tensor, *, keep_bool: bool = False) -> Tensor:
    """Inputs as a tensor: NumPy's float64 becomes float32, a tensor keeps its precision."""
    if isinstance(values, Tensor):
        t = values
    else:
        # a read-only array (a column of a data frame) is copied
        t = torch.from_numpy(np.require(values, requirements=["C", "W"]))
        if t.dtype == torch.float64:
            t = t.to(torch.float32)
    if t.is_floating_point() or t.dtype in KEPT or (keep_bool and t.dtype == torch.bool):
        return t
    return t.to(torch.int64)


def check_memory(size: int, memory: float, name: str, what: str) -> None:
    """Refuse what would take more than `memory` GiB."""
    if size > memory * GIB:
        raise SettingError(
            f"{name}: {what} takes {in_units(size)}; at most {memory:g} GiB are accepted "
            f"(memory={-(-size // GIB)} allows it)"
        )


def in_units(size: float) -> str:
    """Bytes for people.

    >>> in_units(240), in_units(3 << 20), in_units(44.7 * GIB)
    ('240 bytes', '3 MiB', '44.7 GiB')
    """
    if size < 1024:
        return f"{size:g} bytes"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1000 or unit == "GiB":
            break
    return f"{size:,.3g} {unit}" if size < 1000 else f"{size:,.0f} {unit}"
