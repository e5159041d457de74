"""Targets of any form: one per sample, several values, tokens, segmentation, trees of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import SettingError
from ..core.text import note
from .convert import Ragged, is_sparse, read_array, read_tree, rows_of
from .mapped import chunks
from .outcome import IGNORED, KINDS, plain_column, read_outcome
from .ragged import pad_targets


@dataclass(frozen=True)
class Targets:
    """Targets as arrays that are not yet in order, and what they say about classes."""

    values: Any  # a tree of Tensor | ndarray
    classes: int
    class_names: tuple[Any, ...] = ()


def read_targets(
    given: Any,
    n: int,
    kind: str = "auto",
    classes: int | None = None,
    class_names: Sequence[Any] | None = None,
    ignored: int | None = None,
) -> Targets:
    """What is to be predicted, by the rules of data/outcome.py where it is one per sample."""
    if kind not in KINDS:
        raise SettingError(f"kind: {kind!r} is not accepted; one of {', '.join(map(repr, KINDS))}")
    if classes is not None and (isinstance(classes, bool) or int(classes) != classes):
        raise SettingError(f"classes: {classes!r} is not accepted; a whole number")
    names = tuple(class_names) if class_names is not None else ()
    if names and classes is not None and classes != len(names):
        raise SettingError(f"classes: {classes} were named, and {len(names)} class_names given")
    if len(set(names)) < len(names):
        raise SettingError("class_names: a name is given twice; every class needs its own")
    column = _as_column(given)
    if column is not None:
        if ignored is not None:
            raise SettingError(
                f"ignored: {ignored} is not accepted with one target per sample; "
                "leave samples without a target out"
            )
        return _one_each(column, n, kind, len(names) or classes, names)
    tree = read_tree(given, "targets", n)
    if ignored is not None:
        tree = _marked(tree, ignored)
    if isinstance(tree, (dict, tuple)):
        if names:
            raise SettingError("class_names: not accepted beside targets in dicts and tuples")
        return Targets(_leaves(tree, kind), classes or 0)
    values = _many_each(tree, "targets", kind)
    return Targets(values, _count(values, len(names) or classes), names)


def check_special(given: Sequence[int], classes: int) -> tuple[int, ...]:
    """The class numbers of tokens that are no words, in order.

    >>> check_special([3, 0], 10)
    (0, 3)
    """
    try:
        found = sorted({int(token) for token in given if int(token) == token})
        whole = len(found) == len(set(given))
    except (TypeError, ValueError):
        raise SettingError(
            f"special: {given!r} is not accepted; a list of class numbers, such as (0, 1)"
        ) from None
    if not whole or (found and not 0 <= found[0] <= found[-1] < classes):
        raise SettingError(
            f"special: {tuple(given)} is not accepted; class numbers, "
            + (f"0 to {classes - 1}" if classes else "and these targets are no classes")
        )
    return tuple(found)


# -- one target per sample -------------------------------------------------------------------------
def _as_column(given: Any) -> Any:
    """Targets that are one per sample, of any type; None for others."""
    if isinstance(given, type):
        raise SettingError(f"targets: the class {given.__name__} is given; give an object of it")
    if is_sparse(given):
        given = given.toarray() if given.shape[1] == 1 else given
    shape = getattr(given, "shape", None)
    if isinstance(given, (list, tuple)):
        if given and all(map(_is_single, given)):
            numbers = any(isinstance(v, Tensor) for v in given)
            return [v.item() if isinstance(v, Tensor) else v for v in given] if numbers else given
        if given and all(isinstance(v, (list, tuple)) and len(v) == 1 for v in given):
            return _squeezed([v[0] for v in given], len(given))
        return None
    if hasattr(given, "to_pylist") and not hasattr(given, "column_names"):
        return given  # an array of pyarrow, which has no shape
    if shape is None or len(shape) == 1:
        return given if hasattr(given, "__len__") and not isinstance(given, dict) else None
    if len(shape) == 2 and shape[1] == 1:
        return _squeezed(_first_column(given), shape[0])
    return None


def _is_single(value: Any) -> bool:
    return not isinstance(value, (list, tuple, dict)) and getattr(value, "ndim", 0) == 0


def _first_column(given: Any) -> Any:
    if hasattr(given, "iloc"):
        return given.iloc[:, 0]
    if hasattr(given, "get_columns"):
        return given.get_columns()[0]
    if hasattr(given, "column_names"):
        return given.column(0)
    return given[:, 0]


def _squeezed(column: Any, n: int) -> Any:
    note(f"targets: shape ({n}, 1) is read as ({n},), one target per sample")
    return column


def _one_each(column: Any, n: int, kind: str, classes: int | None, names: tuple) -> Targets:
    rows = rows_of(column)
    if rows != n:
        raise SettingError(f"targets and clients differ in length: {rows}, {n}")
    if isinstance(column, Tensor) and column.dtype in (torch.bfloat16, torch.float16):
        column = column.float()
    if names:
        return Targets(_by_name(column, names), len(names), names)
    numbers, labels, reason = read_outcome(column, "targets", kind, numbered=True, classes=classes)
    if reason:
        note(reason)
    if numbers.dtype.kind == "f":
        return Targets(numbers, 0)
    return Targets(numbers, _count(numbers, classes), labels)


def _by_name(column: Any, names: tuple) -> np.ndarray:
    """Labels, or class numbers, of classes that the user named."""
    array, _ = plain_column(column, "targets")
    values = array.tolist()
    place = {name: i for i, name in enumerate(names)}
    try:
        unknown = [v for v in values if v not in place]
    except TypeError:
        raise SettingError("targets: labels must be text or numbers") from None
    if not unknown:
        return np.array([place[v] for v in values], dtype=np.int64)
    if array.dtype.kind in "iu":
        if array.min() < 0:
            raise SettingError(
                f"targets: class {array.min()} is negative; classes are numbered from 0 "
                "(-1 often stands for samples without a label: leave them out)"
            )
        _count(array, len(names))
        return array.astype(np.int64)
    raise SettingError(f"targets: {unknown[0]!r} is not among the class_names")


def _marked(tree: Any, ignored: int) -> Any:
    """The class numbers of a tree with `ignored` as the number that every loss passes over."""
    if isinstance(tree, dict):
        return {key: _marked(v, ignored) for key, v in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_marked(v, ignored) for v in tree)
    values = read_array(tree, "targets")
    if isinstance(values, Ragged):
        return Ragged([torch.as_tensor(v).where(v != ignored, IGNORED) for v in values.samples])
    if isinstance(values, Tensor):
        whole = values if values.is_floating_point() else values.long()
        return whole if whole.is_floating_point() else whole.where(whole != ignored, IGNORED)
    if _is_float(values):
        return values
    return np.where(values == ignored, IGNORED, np.asarray(values, dtype=np.int64))


# -- several per sample ----------------------------------------------------------------------------
def _leaves(tree: Any, kind: str, name: str = "targets") -> Any:
    if isinstance(tree, dict):
        return {key: _leaves(v, kind, f"{name}[{key!r}]") for key, v in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_leaves(v, kind, f"{name}[{i}]") for i, v in enumerate(tree))
    return _many_each(tree, name, kind)


def _many_each(given: Any, name: str, kind: str) -> Any:
    """Values [n, t], class numbers [n, ...]; as an array or a tensor of floats or integers."""
    if is_sparse(given):
        raise SettingError(f"{name}: a sparse matrix is not accepted; give `matrix.toarray()`")
    values = read_array(given, name)
    if isinstance(values, Ragged):
        values = pad_targets(values, name)
    _refuse_one_hot(values, name, kind)
    floating = values.is_floating_point() if isinstance(values, Tensor) else _is_float(values)
    if kind == "values" and not floating:
        return values.to(torch.float32) if isinstance(values, Tensor) else values.astype(np.float64)
    if floating:
        if kind == "classes":
            raise SettingError(f"{name}: kind 'classes' needs whole numbers of an integer type")
        for part in chunks(values):
            good = np.isfinite(_numpy(values[part]))
            if not good.all():
                raise SettingError(
                    f"{name}: NaN or infinity found; only finite targets are accepted"
                )
        return values
    lowest = min(int(values[part].min()) for part in chunks(values))
    if lowest < 0:
        _refuse_negative(values, name)
    return values


def _refuse_negative(values: Any, name: str) -> None:
    for part in chunks(values):
        block = _numpy(values[part])
        wrong = block[(block < 0) & (block != IGNORED)]
        if wrong.size:
            raise SettingError(
                f"{name}: class {int(wrong.min())} is negative; classes are numbered from 0, and "
                f"{IGNORED} marks positions to ignore"
            )


def _refuse_one_hot(values: Any, name: str, kind: str) -> None:
    if kind != "auto" or values.ndim != 2 or values.shape[1] < 2 or values.shape[1] > 10_000:
        return
    for part in chunks(values):
        block = _numpy(values[part])
        if not (((block == 0) | (block == 1)).all() and (block.sum(1) == 1).all()):
            return
    raise SettingError(
        f"{name}: shape {tuple(values.shape)} with a single 1 per row looks one-hot; "
        "give class numbers, targets.argmax(1), or kind='values' if these are several targets"
    )


def _count(values: Any, classes: int | None) -> int:
    """The number of classes, given or found; 0 for a regression."""
    floating = values.is_floating_point() if isinstance(values, Tensor) else _is_float(values)
    if floating:
        return 0
    lowest = min(int(values[part].min()) for part in chunks(values))
    if lowest < 0 and values.ndim == 1:
        raise SettingError(f"targets: class {lowest} is negative; classes are numbered from 0")
    found = max(int(values[part].max()) for part in chunks(values)) + 1
    if found <= 0:
        raise SettingError(f"targets: all positions are {IGNORED}, which the losses ignore")
    if classes and found > classes:
        raise SettingError(
            f"targets: class {found - 1} lies outside the {classes} classes; "
            f"accepted: 0 to {classes - 1}"
        )
    return classes or found


def _numpy(values: Any) -> np.ndarray:
    if not isinstance(values, Tensor):
        return np.asarray(values)
    return (values.float() if values.dtype == torch.bfloat16 else values).cpu().numpy()


def _is_float(values: np.ndarray) -> bool:
    return values.dtype.kind == "f"
