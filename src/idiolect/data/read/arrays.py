"""A federation from arrays: samples are read, put in order of split and client, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.knobs import SettingError
from ...core.text import note
from ...core.types import leaves
from ..splits import SPLITS, draw_split, read_split
from .convert import Ragged, check_memory, in_units, is_sparse, read_tree, rows_of, to_tensor
from .ids import ClientId, read_ids
from .memory_maps import arrange, check_finite, is_mapped
from .pictures import Change, check_channels, plan_pixels
from .sequences import pad_inputs, sequences_of
from .targets import read_targets

MEMORY = 4.0  # GiB that a sparse matrix may take as a dense one


def read_arrays(
    inputs: Any,
    targets: Any,
    clients: Any,
    *,
    split: Any = None,
    kind: str = "auto",
    classes: int | None = None,
    class_names: Sequence[Any] | None = None,
    ignored: int | None = None,
    scale_images: bool = True,
    channels: str = "auto",
    ragged: str = "mask",
    padding: float = 0.0,
    memory: float = MEMORY,
    scratch: str | None = None,
    valid: float = 0.2,
    test: float = 0.2,
    seed: int = 0,
) -> dict[str, Any]:
    """The fields of a federation; the options are those of `Federation.from_arrays`."""
    ids, client = read_ids(clients)
    n = len(client)
    if n == 0:
        raise SettingError(
            "clients: an empty list was given; at least one sample with a client id is needed"
        )
    _check_given(inputs, targets, n)
    read = read_tree(inputs, "inputs", n)
    x = pad_inputs(read, "inputs", ragged, padding)
    _check_lengths(x, "inputs", n)
    y = read_targets(targets, n, kind, classes, class_names, ignored)
    _check_lengths(y.values, "targets", n)
    sequences = sequences_of(read, x, y.values)
    check_share("valid", valid)
    check_share("test", test)
    part = draw_split(client, valid, test, seed) if split is None else read_split(split, n)
    order = np.lexsort((np.arange(n), client, part))  # by split, then client, then as given
    dimensions = [leaf.ndim for leaf in leaves(x)]
    check_channels(channels, dimensions)
    look = (scale_images, channels)
    return {
        "inputs": _each(x, "inputs", lambda v, at: _inputs(v, at, order, x, look, memory, scratch)),
        "targets": _each(y.values, "targets", lambda v, at: _targets(v, at, order, scratch)),
        "offsets": _offsets(part, client, ids),
        "sequences": sequences and sequences.of(torch.from_numpy(order)),
        "ids": ids,
        "classes": y.classes,
        "class_names": y.class_names,
    }


def check_share(name: str, share: float) -> None:
    if not 0 <= share < 1:
        raise SettingError(f"{name}: {share!r} is not accepted; a share in [0, 1)")


def _offsets(part: np.ndarray, client: np.ndarray, ids: tuple[ClientId, ...]) -> dict[str, Tensor]:
    counts = np.bincount(part * len(ids) + client, minlength=3 * len(ids))
    ends = np.concatenate([[0], counts.cumsum()])
    return {
        s: torch.from_numpy(ends[i * len(ids) : (i + 1) * len(ids) + 1].copy())
        for i, s in enumerate(SPLITS)
    }


# -- lengths ---------------------------------------------------------------------------------------
def _check_given(inputs: Any, targets: Any, n: int) -> None:
    """Refuse arrays of different lengths, with all three in one message."""
    for name, given in (("inputs", inputs), ("targets", targets)):
        if given is None or isinstance(given, str) or callable(given):
            what = given.__name__ if isinstance(given, type) else type(given).__name__
            article = "the class" if isinstance(given, type) else "a"
            raise SettingError(f"{name}: {article} {what} is given; an array, samples first")
    sizes = [_given_rows(given) for given in (inputs, targets)]
    if None not in sizes and not sizes[0] == sizes[1] == n:
        raise SettingError(
            f"inputs, targets and clients differ in length: {sizes[0]}, {sizes[1]}, {n}"
        )


def _given_rows(given: Any) -> int | None:
    """The number of samples of one array; None for trees and what may be one."""
    if hasattr(given, "shape"):
        return rows_of(given)
    if isinstance(given, list) and not any(hasattr(v, "shape") for v in given):
        return len(given)
    return None


def _check_lengths(tree: Any, name: str, n: int) -> None:
    def check(leaf: Any, at: str) -> None:
        if isinstance(leaf, Ragged):
            raise SettingError(f"{at}: sequences of different lengths so deep are not accepted")
        if rows_of(leaf) != n:
            raise SettingError(f"{at}: {rows_of(leaf)} samples, but {n} client ids")

    _each(tree, name, check)


def _each(tree: Any, name: str, function: Any) -> Any:
    """`function(leaf, its name)` for every array of a tree."""
    if isinstance(tree, dict):
        return {key: _each(v, f"{name}[{key!r}]", function) for key, v in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_each(v, f"{name}[{i}]", function) for i, v in enumerate(tree))
    return function(tree, name)


# -- in order --------------------------------------------------------------------------------------
def _inputs(
    values: Any,
    name: str,
    order: np.ndarray,
    tree: Any,
    look: tuple[bool, str],
    memory: float,
    scratch: str | None,
) -> Tensor:
    if is_sparse(values):
        out = _dense(values, name, order, memory)
    elif is_mapped(values):
        return arrange(values, order, plan_pixels(values, name, *look), name, scratch)
    else:
        if isinstance(values, Tensor) and values.layout != torch.strided:
            _say_dense(values.numel() * values.itemsize, tuple(values.shape), name, memory)
            values = values.to_dense()
        change = plan_pixels(values, name, *look)
        # a mask is a part of a tree; an array of booleans alone is read as numbers
        out = _in_memory(values, order, change, keep_bool=isinstance(tree, (dict, tuple)))
    check_finite(out, name, order)
    return out


def _in_memory(values: Any, order: np.ndarray, change: Change | None, *, keep_bool: bool) -> Tensor:
    t = to_tensor(values, keep_bool=keep_bool)
    t = t[torch.from_numpy(order).to(t.device)]
    return t if change is None else change(t)


def _dense(matrix: Any, name: str, order: np.ndarray, memory: float) -> Tensor:
    _say_dense(matrix.shape[0] * matrix.shape[1] * 4, matrix.shape, name, memory)
    return torch.from_numpy(matrix[order].astype(np.float32).toarray())


def _say_dense(size: int, shape: tuple[int, ...], name: str, memory: float) -> None:
    check_memory(size, memory, name, f"the sparse matrix of shape {shape} made dense")
    note(f"{name}: the sparse matrix is made dense, {in_units(size)}")


def _targets(values: Any, name: str, order: np.ndarray, scratch: str | None) -> Tensor:
    if is_mapped(values):
        return arrange(values, order, _as_targets, name, scratch)
    t = values if isinstance(values, Tensor) else _copied(values)
    t = t[torch.from_numpy(order).to(t.device)]
    return _as_targets(t)


def _copied(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.require(values, requirements=["C", "W"]))


def _as_targets(t: Tensor) -> Tensor:
    return t if t.is_floating_point() else t.to(torch.int64)
