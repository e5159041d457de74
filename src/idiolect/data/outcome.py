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
from typing import Any

import numpy as np
import torch

from ..core.knobs import SettingError
from ..core.text import shown

FEW = 20  # different whole numbers that are still read as classes
KINDS = ("auto", "classes", "values")
IGNORED = -100  # the class number that torch's losses pass over


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
