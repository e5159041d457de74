"""What is predicted: classes or values, decided from the values themselves.

- Text, booleans and categories are classes.
- Numbers with a fraction are values (a regression).
- Whole numbers, floating (0.0 and 1.0) or not, are classes if they are few: at least two and at
  most 20 different ones, each found twice on average (two different ones are always few).
  Otherwise they are values.
- In arrays, integers say more than in a column of a table: 0 to C - 1, all found, are class numbers
  as they stand; up to 20 different integers are classes however seldom each is found; more than 20
  are classes if they begin at 0 or 1 and at least half of the numbers up to the largest are found.
  -1 beside 0 to C - 1 is refused, because it often stands for samples without a label.

Classes are numbered from 0 in sorted order, categories in their own. `kind` overrules the rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.knobs import SettingError
from ...core.text import note, shown
from .convert import Ragged, as_numbers, is_sparse, read_array, read_tree, rows_of
from .memory_maps import chunks
from .sequences import IGNORED, pad_targets

FEW = 20  # different whole numbers that are still read as classes
KINDS = ("auto", "classes", "values")


def read_outcome(
    values: Any,
    name: str,
    kind: str = "auto",
    *,
    numbered: bool = False,
    classes: int | None = None,
) -> tuple[np.ndarray, tuple[Any, ...], str]:
    """Targets of shape [n] as numbers, the user's label of each class, and why they are so read.

    The numbers are int64 for classes and floating for a regression; the labels are () for a
    regression, and where the classes are 0 to C - 1 already. The reason is a line to print, or ""
    where nothing was guessed. `name` opens each message ("targets", "target 'ill'"). `numbered`
    applies the rule for arrays; `classes`, a number of classes that the user named, keeps integers
    below it as they are.

    >>> numbers, labels, reason = read_outcome([41401, 42731, 41401], "target 'code'")
    >>> numbers.tolist(), labels
    ([0, 1, 0], (41401, 42731))
    >>> print(reason)
    target 'code': 2 different values (41401, 42731) are read as classes; kind 'values' makes it \
a regression
    >>> read_outcome([0.25, 1.5], "target 'dose'")[0].dtype
    dtype('float64')
    """
    if kind not in KINDS:
        raise SettingError(f"kind: {kind!r} is not accepted; one of {', '.join(map(repr, KINDS))}")
    column, order = plain_column(values, name)
    if column.ndim != 1:
        raise SettingError(f"{name}: shape {column.shape} is not accepted; one target per sample")
    if not len(column):
        raise SettingError(f"{name}: there are no samples; at least one is needed")
    _check(column, name)
    if kind == "values":
        return _values(column, name), (), ""
    if numbered and order is None and _stand(column, classes):
        return column.astype(np.int64), (), ""
    if order is not None or column.dtype.kind not in "iuf":
        numbers, labels = _number(column, order)
        sort = "categories" if order is not None else _sort(column)
        reason = f"{name}: {sort} are read as {_many(len(labels))} {_listed(labels)}"
        return numbers, _own(labels), "" if kind == "classes" else reason
    numbers, labels = _number(column, None)
    if kind == "auto":
        if not _few(column, labels, numbered):
            return _values(column, name), (), _why_values(column, labels, name, numbered)
        if labels[0] == IGNORED and all(label >= 0 for label in labels[1:]):
            raise SettingError(
                f"{name}: {IGNORED} marks an ignored position of token or segmentation targets; "
                "leave out the samples without a class, or give kind='classes'"
            )
        if numbered and labels == tuple(range(-1, len(labels) - 1)) and len(labels) > 1:
            raise SettingError(
                f"{name}: class -1 is negative; -1 often stands for samples without a label: "
                "leave them out, or give kind='classes' if it is a class"
            )
    reason = (
        f"{name}: {_different(labels)} {_listed(labels)} "
        f"{'is' if len(labels) == 1 else 'are'} read as classes; "
        "kind 'values' makes it a regression"
    )
    if numbered and column.dtype.kind in "iu" and labels[0] >= 0:
        reason += f", classes={labels[-1] + 1} keeps the numbers"
    return numbers, _own(labels), "" if kind == "classes" else reason


# -- the rule --------------------------------------------------------------------------------------
def _stand(column: np.ndarray, classes: int | None) -> bool:
    """Whether numbers are class numbers as they are: 0 to C - 1 all found, or `classes` is given.

    A number outside the classes that the user named is refused by name, later.
    """
    if column.dtype.kind == "f":
        return bool(classes) and bool((np.mod(column, 1) == 0).all())
    if column.dtype.kind not in "iu":
        return False
    if classes:
        return True
    top = int(column.max())
    return column.min() >= 0 and top < len(column) and bool(np.bincount(column).all())


def _few(column: np.ndarray, labels: tuple, numbered: bool) -> bool:
    """Whether numbers are classes."""
    if numbered and column.dtype.kind in "iu":
        near = labels[0] in (0, 1) and 2 * len(labels) >= labels[-1]
        return len(labels) <= FEW or near
    many = 2 * FEW if len(labels) == 2 else len(column)  # two need not be repeated
    return len(labels) >= 2 and few_and_repeated(labels, many)


def few_and_repeated(labels: Sequence[float], n: int) -> bool:
    """Whether these different values of n samples are whole numbers, few, and each found again.

    >>> few_and_repeated((1.0, 2.0, 3.0), 6), few_and_repeated((1, 2, 3), 5)
    (True, False)
    """
    whole = all(float(label).is_integer() for label in labels)
    return whole and len(labels) <= FEW and 2 * len(labels) <= n


def _why_values(column: np.ndarray, labels: tuple, name: str, numbered: bool) -> str:
    if column.dtype.kind == "f" and bool((np.mod(column, 1) != 0).any()):
        why = "fractions are"
        if numbered:
            return ""  # as everywhere: floating targets are values
    else:
        why = f"{_different(labels)} from {labels[0]:g} to {labels[-1]:g} are"
        if len(labels) == 1:
            why = f"the one value {labels[0]:g} is"
    return f"{name}: {why} read as values, a regression; kind 'classes' makes them classes"


# -- numbers and labels ----------------------------------------------------------------------------
def _values(column: np.ndarray, name: str) -> np.ndarray:
    if column.dtype.kind not in "iufb":
        raise SettingError(f"{name}: {_sort(column)} are given; a regression needs numbers")
    return column if column.dtype.kind == "f" else column.astype(np.float64)


def _number(column: np.ndarray, order: list | None) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Class numbers in sorted order of the labels, and the labels."""
    if column.dtype != object:
        found, numbers = np.unique(column, return_inverse=True)
        return numbers.astype(np.int64), tuple(found.tolist())
    values = [v.item() if isinstance(v, np.generic) else v for v in column.tolist()]
    distinct = set(values)
    labels = sorted(distinct, key=_key) if order is None else [v for v in order if v in distinct]
    place = {label: i for i, label in enumerate(labels)}
    return np.array([place[v] for v in values], dtype=np.int64), tuple(labels)


def _own(labels: tuple[Any, ...]) -> tuple[Any, ...]:
    """() where the labels are the class numbers themselves."""
    numbers = all(type(label) is int for label in labels) and labels == tuple(range(len(labels)))
    return () if numbers else labels


def _key(value: Any) -> tuple[int, Any]:
    """Labels of mixed types: numbers and booleans by size, then text."""
    return (1, value) if isinstance(value, str) else (0, value)


# -- columns of any library ------------------------------------------------------------------------
def plain_column(values: Any, name: str) -> tuple[np.ndarray, list | None]:
    """A column of any library as an array, and the order of its categories if it has one."""
    if isinstance(values, type):
        raise SettingError(f"{name}: the class {values.__name__} is given; give an object of it")
    order = None
    if isinstance(values, torch.Tensor):
        array = values.detach().cpu().numpy()
    elif hasattr(values, "cat") and hasattr(values.cat, "categories"):  # pandas
        order = list(values.cat.categories)
        array = np.fromiter(values.astype(object), dtype=object, count=len(values))
    elif hasattr(values, "categories") and hasattr(values, "codes"):  # pandas, without an index
        order = list(values.categories)
        array = np.fromiter(values, dtype=object, count=len(values))
    elif str(getattr(values, "dtype", "")).startswith(("Categorical", "Enum")):  # polars
        if hasattr(values.dtype, "categories") and str(values.dtype).startswith("Enum"):
            order = values.dtype.categories.to_list()
        array = _objects(values.to_list())
    elif hasattr(values, "to_pylist"):  # pyarrow
        array = _objects(values.to_pylist()) if values.null_count else np.asarray(values)
    elif isinstance(values, (list, tuple)):
        array = _from_list(values, name)
    else:
        array = _to_numpy(values)
    if array.dtype == object:
        array = as_numbers(array)
    if order is not None:
        array = array.astype(object)
    return array, order


def _to_numpy(values: Any) -> np.ndarray:
    """An array or a column; of objects where a pandas extension type has missing values."""
    dtype = getattr(values, "dtype", None)
    if dtype is not None and not isinstance(dtype, np.dtype) and hasattr(values, "isna"):
        return np.fromiter(values, dtype=object, count=len(values))
    if hasattr(values, "null_count") and hasattr(values, "to_list") and values.null_count():
        return _objects(values.to_list())  # polars
    return np.asarray(values)


def _from_list(values: list | tuple, name: str) -> np.ndarray:
    """A list; of objects where types are mixed, which NumPy would turn into text."""
    if any(isinstance(v, str) for v in values):
        return _objects(values)
    try:
        return np.asarray(values)
    except ValueError:  # lists of different lengths
        raise SettingError(f"{name}: samples of different shapes; all must agree") from None


def _objects(values: Any) -> np.ndarray:
    out = np.empty(len(values), dtype=object)
    out[:] = list(values)
    return out


def _check(column: np.ndarray, name: str) -> None:
    """Refuse missing values and what is neither a number nor text nor a boolean."""
    if column.dtype == object:
        for row, value in enumerate(column.tolist()):
            if _is_missing(value):
                raise SettingError(f"{name}: row {row} is empty; every sample needs a target")
            if not isinstance(value, (str, int, float, np.number, np.bool_)):
                raise SettingError(
                    f"{name}: {type(value).__name__} values are not accepted (row {row}); "
                    "numbers, text or booleans"
                )
    elif column.dtype.kind not in "biufUT":
        raise SettingError(
            f"{name}: {column.dtype} values are not accepted; numbers, text or booleans"
        )
    elif column.dtype.kind == "f" and not np.isfinite(column).all():
        row = int(np.argmin(np.isfinite(column)))
        raise SettingError(
            f"{name}: NaN or infinity found in row {row}; only finite targets are accepted"
        )


def _is_missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except (TypeError, ValueError):  # pandas.NA does not compare
        return True


# -- words -----------------------------------------------------------------------------------------
def _sort(column: np.ndarray) -> str:
    if column.dtype.kind == "b":
        return "booleans"
    texts = column.dtype.kind in "UT" or all(isinstance(v, str) for v in column.tolist())
    return "texts" if texts else "labels of mixed types"


def _different(labels: Any) -> str:
    return "1 value" if len(labels) == 1 else f"{len(labels)} different values"


def _many(classes: int) -> str:
    return "1 class" if classes == 1 else f"{classes} classes"


def _listed(labels: Any) -> str:
    texts = [shown(label, 20) for label in labels]
    if len(texts) > 6:
        texts = [*texts[:4], "...", texts[-1]]
    return f"({', '.join(texts)})"


# -- Targets of any form: one per sample, several values, tokens, segmentation, trees of them --


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
