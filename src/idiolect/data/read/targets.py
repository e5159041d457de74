"""Targets of any form: one per sample, several values, tokens, segmentation, trees of them.

Where there is one target per sample, the values decide whether targets are classes:

- Text, booleans and categories are classes.
- Integers 0 to C - 1 that all occur are class numbers as they stand. Up to 20 different integers
  are classes however seldom each occurs; more than 20 are classes if they begin at 0 or 1 and at
  least half of the numbers up to the largest occur. -1 beside 0 to C - 1 is refused, because it
  often stands for samples without a label.
- Floating-point numbers with a fraction are values (a regression). Whole ones are classes if they
  are few: at least two and at most 20 different ones that occur twice on average (two different
  ones are always few).

Classes are numbered from 0 in sorted order, categories in their own. `kind` overrules the rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...core.knobs import SettingError
from ...core.text import listed, note, option, plural, shown
from ..prepare.columns import DATE, NUMBER, coded, in_order, kind_of, numbers
from .convert import RaggedSamples, as_numbers, each_leaf, is_sparse, read_array, read_tree
from .ids import is_missing
from .memory_maps import chunks
from .sequences import IGNORED, pad_targets

if TYPE_CHECKING:
    import pandas as pd

FEW = 20  # different whole numbers that are still read as classes
KINDS = ("auto", "classes", "values")


@dataclass(frozen=True)
class Targets:
    """Targets as arrays that are not yet in order, and what they say about classes."""

    values: Any  # a tree of Tensor | ndarray
    classes: int
    class_names: tuple[Any, ...] = ()


def read_targets(
    targets: Any,
    n: int,
    kind: str = "auto",
    classes: int | None = None,
    class_names: Sequence[Any] | None = None,
    ignored: int | None = None,
) -> Targets:
    """What is to be predicted for n samples."""
    if kind not in KINDS:
        raise SettingError(f"kind must be one of {', '.join(map(repr, KINDS))}, got {kind!r}")
    if classes is not None and (isinstance(classes, bool) or int(classes) != classes):
        raise SettingError(f"classes must be a whole number, got {classes!r}")
    names = tuple(class_names) if class_names is not None else ()
    if names and classes is not None and classes != len(names):
        raise SettingError(
            f"classes must be the number of class_names, {len(names)}, got {classes}"
        )
    if len(set(names)) < len(names):
        raise SettingError("class_names must differ, got one of them twice")
    column = _as_column(targets)
    if column is not None:
        if ignored is not None:
            raise SettingError(
                f"ignored must be left out with one target per sample, got {ignored}; "
                "leave out samples without a target"
            )
        return _one_per_sample(column, kind, len(names) or classes, names)
    tree = read_tree(targets, "targets", n)
    if ignored is not None:
        tree = each_leaf(tree, "targets", lambda leaf, _: _mark_ignored(leaf, ignored))
    values = each_leaf(tree, "targets", lambda leaf, name: _several_per_sample(leaf, name, kind))
    if isinstance(tree, (dict, tuple)):
        if names:
            raise SettingError("class_names must be left out with targets in dicts and tuples")
        return Targets(values, classes or 0)
    return Targets(values, _count_classes(values, len(names) or classes), names)


def check_special(special: Sequence[int], classes: int) -> tuple[int, ...]:
    """The class numbers of tokens that are no words, in order.

    >>> check_special([3, 0], 10)
    (0, 3)
    """
    accepted = f"class numbers, 0 to {classes - 1}" if classes else "empty, as targets are values"
    try:
        tokens = sorted({int(token) for token in special if int(token) == token})
        whole = len(tokens) == len(set(special))
    except (TypeError, ValueError):
        raise SettingError(
            f"special must be a list of {accepted}, such as (0, 1), got {special!r}"
        ) from None
    if not whole or (tokens and not 0 <= tokens[0] <= tokens[-1] < classes):
        raise SettingError(f"special must be {accepted}, got {tuple(special)}")
    return tuple(tokens)


# -- one target per sample -------------------------------------------------------------------------
def _as_column(targets: Any) -> Any:
    """Targets that are one per sample, of any type; None for others."""
    if isinstance(targets, type):
        raise SettingError(f"targets must be an array, got the class {targets.__name__}")
    if is_sparse(targets) and targets.shape[1] == 1:
        targets = targets.toarray()
    if isinstance(targets, (list, tuple)):
        if targets and all(map(_is_single, targets)):
            return [v.item() if isinstance(v, Tensor) else v for v in targets]
        if targets and all(isinstance(v, (list, tuple)) and len(v) == 1 for v in targets):
            return _squeezed([v[0] for v in targets])
        return None
    if hasattr(targets, "to_pylist") and not hasattr(targets, "column_names"):
        return targets  # an array of pyarrow, which has no shape
    shape = getattr(targets, "shape", None)
    if shape is None or len(shape) == 1:
        return targets if hasattr(targets, "__len__") and not isinstance(targets, dict) else None
    if len(shape) != 2 or shape[1] != 1:
        return None
    if hasattr(targets, "iloc"):
        return _squeezed(targets.iloc[:, 0])
    if hasattr(targets, "get_columns"):
        return _squeezed(targets.get_columns()[0])
    return _squeezed(targets.column(0) if hasattr(targets, "column_names") else targets[:, 0])


def _is_single(value: Any) -> bool:
    return not isinstance(value, (list, tuple, dict)) and getattr(value, "ndim", 0) == 0


def _squeezed(column: Any) -> Any:
    n = len(column)
    note(f"targets: shape ({n}, 1) is read as ({n},), one target per sample")
    return column


def _one_per_sample(column: Any, kind: str, classes: int | None, names: tuple) -> Targets:
    if isinstance(column, Tensor) and column.dtype in (torch.bfloat16, torch.float16):
        column = column.float()
    if names:
        return Targets(_numbers_by_name(column, names), len(names), names)
    numbers, labels, reason = read_column(column, kind, classes)
    if reason:
        note(f"targets: {reason}")
    if numbers.dtype.kind == "f":
        return Targets(numbers, 0)
    return Targets(numbers, _count_classes(numbers, classes), labels)


def _numbers_by_name(column: Any, names: tuple) -> np.ndarray:
    """Labels, or class numbers, of classes that the user named."""
    array, _ = plain_column(column)
    values = array.tolist()
    try:
        labels = set(names)
        unknown = [v for v in values if v not in labels]
    except TypeError:
        raise SettingError("targets: labels must be text or numbers") from None
    if not unknown:
        return _places(values, names)
    if array.dtype.kind in "iu":
        if array.min() < 0:
            raise SettingError(
                f"targets: class {array.min()} is negative; classes are numbered from 0 "
                "(-1 often stands for samples without a label: leave them out)"
            )
        _count_classes(array, len(names))
        return array.astype(np.int64)
    raise SettingError(f"targets: {unknown[0]!r} is not among the class_names")


def read_column(
    values: Any, kind: str = "auto", classes: int | None = None
) -> tuple[np.ndarray, tuple[Any, ...], str]:
    """Targets of shape [n] as numbers, the user's label of each class, and why they are so read.

    The numbers are int64 for classes and floating for a regression; the labels are () for a
    regression, and where the classes are 0 to C - 1 already. The reason is a line to print, or ""
    where nothing was guessed. `classes`, a number of classes that the user named, keeps integers
    below it as they are.

    >>> numbers, labels, reason = read_column(["yes", "no", "yes"])
    >>> numbers.tolist(), labels
    ([1, 0, 1], ('no', 'yes'))
    >>> print(reason)
    texts are read as 2 classes (no, yes)
    >>> read_column([0.25, 1.5])[0].dtype
    dtype('float64')
    """
    column, order = plain_column(values)
    if column.ndim != 1:
        raise SettingError(f"targets must be one per sample, got shape {column.shape}")
    if not len(column):
        raise SettingError("targets: there are no samples; at least one is needed")
    _check_column(column)
    if kind == "values":
        return _as_values(column), (), ""
    if order is None and _are_class_numbers(column, classes):
        return column.astype(np.int64), (), ""
    numbers, labels = _number(column, order)
    class_names = () if _are_consecutive(labels) else labels
    if kind == "classes":
        return numbers, class_names, ""
    if order is not None or column.dtype.kind not in "iuf":
        sort = "categories" if order is not None else _sort(column)
        many = "1 class" if len(labels) == 1 else f"{len(labels)} classes"
        return numbers, class_names, f"{sort} are read as {many} {_listed(labels)}"
    different = "1 value" if len(labels) == 1 else f"{len(labels)} different values"
    if not _are_few(column, labels):
        why = f"{different} from {labels[0]:g} to {labels[-1]:g} are"
        if len(labels) == 1:
            why = f"the one value {labels[0]:g} is"
        reason = f"{why} read as values, a regression; kind 'classes' makes them classes"
        fractions = column.dtype.kind == "f" and bool((np.mod(column, 1) != 0).any())
        return _as_values(column), (), "" if fractions else reason
    if labels[0] == IGNORED and all(label >= 0 for label in labels[1:]):
        raise SettingError(
            f"targets: {IGNORED} marks an ignored position of token or segmentation targets; "
            "leave out the samples without a class, or give kind='classes'"
        )
    if labels == tuple(range(-1, len(labels) - 1)) and len(labels) > 1:
        raise SettingError(
            "targets: class -1 is negative; -1 often stands for samples without a label: "
            "leave them out, or give kind='classes' if it is a class"
        )
    verb = "is" if len(labels) == 1 else "are"
    reason = (
        f"{different} {_listed(labels)} {verb} read as classes; kind 'values' makes it a regression"
    )
    if column.dtype.kind in "iu" and labels[0] >= 0:
        reason += f", classes={labels[-1] + 1} keeps the numbers"
    return numbers, class_names, reason


def _are_class_numbers(column: np.ndarray, classes: int | None) -> bool:
    """Whether numbers are class numbers as they stand: 0 to C - 1 all occur, or `classes` is given.

    A number outside the classes that the user named is refused by name, later.
    """
    if column.dtype.kind == "f":
        return bool(classes) and bool((np.mod(column, 1) == 0).all())
    if column.dtype.kind not in "iu":
        return False
    if classes:
        return True
    return column.min() >= 0 and int(column.max()) < len(column) and bool(np.bincount(column).all())


def _are_few(column: np.ndarray, labels: tuple) -> bool:
    """Whether numbers are classes."""
    if column.dtype.kind in "iu":
        near = labels[0] in (0, 1) and 2 * len(labels) >= labels[-1]
        return len(labels) <= FEW or near
    many = 2 * FEW if len(labels) == 2 else len(column)  # two need not be repeated
    return len(labels) >= 2 and few_and_repeated(labels, many)


def few_and_repeated(labels: Sequence[float], n: int) -> bool:
    """Whether these different values of n samples are whole numbers, few, and each occurs again.

    >>> few_and_repeated((1.0, 2.0, 3.0), 6), few_and_repeated((1, 2, 3), 5)
    (True, False)
    """
    whole = all(float(label).is_integer() for label in labels)
    return whole and len(labels) <= FEW and 2 * len(labels) <= n


def _as_values(column: np.ndarray) -> np.ndarray:
    if column.dtype.kind not in "iufb":
        raise SettingError(f"targets must be numbers for a regression, got {_sort(column)}")
    return column if column.dtype.kind == "f" else column.astype(np.float64)


def _number(column: np.ndarray, order: list | None) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Class numbers in sorted order of the labels (numbers by size, then text), and the labels."""
    if column.dtype != object:
        distinct, numbers = np.unique(column, return_inverse=True)
        return numbers.astype(np.int64), tuple(distinct.tolist())
    values = [v.item() if isinstance(v, np.generic) else v for v in column.tolist()]
    present = set(values)
    if order is None:
        labels = sorted(present, key=lambda v: (isinstance(v, str), v))
    else:
        labels = [v for v in order if v in present]
    return _places(values, labels), tuple(labels)


def _places(values: Iterable[Any], labels: Sequence[Any]) -> np.ndarray:  # -> int64[n]
    """The class number of each value: its place among the labels."""
    place = {label: i for i, label in enumerate(labels)}
    return np.array([place[v] for v in values], dtype=np.int64)


def _are_consecutive(labels: tuple[Any, ...]) -> bool:
    """Whether the labels are the class numbers themselves."""
    return all(type(label) is int for label in labels) and labels == tuple(range(len(labels)))


def plain_column(values: Any) -> tuple[np.ndarray, list | None]:
    """A column of any library as an array, and the order of its categories if it has one."""
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
        array = _from_list(values)
    else:
        array = _from_column(values)
    if array.dtype == object:
        array = as_numbers(array)
    if order is not None:
        array = array.astype(object)
    return array, order


def _from_column(values: Any) -> np.ndarray:
    """An array or a column; of objects where a pandas extension type has missing values."""
    dtype = getattr(values, "dtype", None)
    if dtype is not None and not isinstance(dtype, np.dtype) and hasattr(values, "isna"):
        return np.fromiter(values, dtype=object, count=len(values))
    if hasattr(values, "null_count") and hasattr(values, "to_list") and values.null_count():
        return _objects(values.to_list())  # polars
    return np.asarray(values)


def _from_list(values: list | tuple) -> np.ndarray:
    """A list; of objects where types are mixed, which NumPy would turn into text."""
    if any(isinstance(v, str) for v in values):
        return _objects(values)
    try:
        return np.asarray(values)
    except ValueError:  # lists of different lengths
        raise SettingError("targets: samples of different shapes; all must agree") from None


def _objects(values: Any) -> np.ndarray:
    out = np.empty(len(values), dtype=object)
    out[:] = list(values)
    return out


def _check_column(column: np.ndarray) -> None:
    """Refuse missing values and what is neither a number nor text nor a boolean."""
    if column.dtype == object:
        for row, value in enumerate(column.tolist()):
            if is_missing(value):
                raise SettingError(f"targets: row {row} is empty; every sample needs a target")
            if not isinstance(value, (str, int, float, np.number, np.bool_)):
                raise SettingError(
                    "targets must be numbers, text or booleans, got "
                    f"{type(value).__name__} values (row {row})"
                )
    elif column.dtype.kind not in "biufUT":
        raise SettingError(f"targets must be numbers, text or booleans, got {column.dtype} values")
    elif column.dtype.kind == "f" and not np.isfinite(column).all():
        row = int(np.argmin(np.isfinite(column)))
        raise SettingError(f"targets must be finite, got NaN or infinity in row {row}")


def _sort(column: np.ndarray) -> str:
    if column.dtype.kind == "b":
        return "booleans"
    texts = column.dtype.kind in "UT" or all(isinstance(v, str) for v in column.tolist())
    return "texts" if texts else "labels of mixed types"


def _listed(labels: Any) -> str:
    texts = [shown(label, 20) for label in labels]
    if len(texts) > 6:
        texts = [*texts[:4], "...", texts[-1]]
    return f"({', '.join(texts)})"


# -- the target column of a table ------------------------------------------------------------------
def read_target_column(
    column: pd.Series, name: str, kind: str = "auto", class_names: tuple[Any, ...] | None = None
) -> tuple[np.ndarray, tuple[Any, ...], str]:
    """Targets, the labels of the classes, and why they are so read, as `read_column` has them.

    With `kind` "auto", text, booleans and categories are classes, and so are numbers of two
    distinct values, and whole numbers of at most 20 distinct values that are repeated (twice each
    on average); other numbers are values. Classes are numbered in sorted order, those of a pandas
    categorical in its own. `class_names` are those of earlier data, () for a regression: the
    column is read as it was there.

    >>> import pandas as pd
    >>> targets, labels, reason = read_target_column(pd.Series([42731, 41401, 42731]), "drg")
    >>> targets.tolist(), labels
    ([1, 0, 1], (41401, 42731))
    >>> print(reason)
    target 'drg' has 2 distinct values (41401, 42731): classes; kind='values' makes it a regression
    """
    missing = column.isna().to_numpy()
    if missing.any():
        raise SettingError(
            f"target: row {int(np.argmax(missing))} of column {name!r} is empty "
            f"(counted from 0; {int(missing.sum()):,} in all); every sample needs a target"
        )
    holds = kind_of(column, name)
    if holds == DATE:
        raise SettingError(
            f"target: column {name!r} holds dates; give classes or numbers, such as days"
        )
    if holds == NUMBER:
        numbers(column, name)  # refuses infinity
    if class_names is not None:
        kind = "classes" if class_names else "values"
    if kind == "values":
        return _column_of_values(column, name, holds), (), ""
    codes, distinct = coded(column)
    if holds == NUMBER and any(type(value) is str for value in distinct):  # decimal numbers
        codes, distinct = coded(column.astype(float))
    labels = in_order(distinct, column)
    reason = ""
    if kind == "auto":
        kind, reason = _decide(labels, len(column), name, holds)
    if kind == "values":
        return _column_of_values(column, name, holds), (), reason
    if class_names:
        _refuse_unknown(name, distinct, codes, class_names)
        labels = list(class_names)
    if len(labels) < 2:
        raise SettingError(
            f"target: column {name!r} holds one class only ({labels[0]!r}); there is nothing "
            "to learn from it"
        )
    return _places(distinct, labels)[codes], tuple(labels), reason


def _decide(classes: list[Any], n: int, name: str, holds: str) -> tuple[str, str]:
    """The kind of a target, and the line that says why."""
    many = len(classes)
    if holds != NUMBER:
        if many > FEW and 2 * many > n:
            raise SettingError(
                f"target: column {name!r} has {many:,} distinct values in {n:,} rows, such as "
                f"{listed(classes, 2)}; that is no outcome to predict. "
                f"{option('kind', 'classes')} takes them as classes all the same"
            )
        return "classes", f"target {name!r} has {many:,} classes ({listed(classes)})"
    if many <= 2 or few_and_repeated(classes, n):
        kind = f"classes; {option('kind', 'values')} makes it a regression"
        values = plural(many, "distinct value")
        reason = f"target {name!r} has {values} ({listed(classes)}): {kind}"
        return "classes", reason
    reason = (
        f"target {name!r} has {many:,} distinct values ({classes[0]:g} to {classes[-1]:g}): a "
        f"regression, with figures in their own units; {option('kind', 'classes')} makes them "
        "classes"
    )
    return "values", reason


def _column_of_values(column: pd.Series, name: str, holds: str) -> np.ndarray:
    if holds != NUMBER:
        raise SettingError(
            f"target: column {name!r} holds {column.dtype}, not numbers; a regression needs numbers"
        )
    values = numbers(column, name)
    with np.errstate(over="ignore"):
        targets = values.astype(np.float32)
    if not np.isfinite(targets).all():
        row = int(np.argmin(np.isfinite(targets)))
        raise SettingError(
            f"target: row {row} of column {name!r} holds {values[row]:g}, "
            "more than numbers of 32 bits hold"
        )
    return targets


def _refuse_unknown(
    name: str,
    distinct: list[Any],
    codes: np.ndarray,
    class_names: tuple[Any, ...],
) -> None:
    for number, value in enumerate(distinct):
        if value not in class_names:
            row = int(np.argmax(codes == number))
            raise SettingError(
                f"target: row {row} of column {name!r} holds {value!r}; the model was trained for "
                f"the classes {listed(class_names, 10)}"
            )


# -- several per sample ----------------------------------------------------------------------------
def _mark_ignored(leaf: Any, ignored: int) -> Any:
    """Class numbers with `ignored` as the number that every loss ignores."""
    values = read_array(leaf, "targets")
    if isinstance(values, RaggedSamples):
        return RaggedSamples(
            [torch.as_tensor(v).where(v != ignored, IGNORED) for v in values.samples]
        )
    if _is_floating(values):
        return values
    if isinstance(values, Tensor):
        return values.long().where(values != ignored, IGNORED)
    return np.where(values == ignored, IGNORED, np.asarray(values, dtype=np.int64))


def _several_per_sample(leaf: Any, name: str, kind: str) -> Any:
    """Values [n, t], class numbers [n, ...]; as an array or a tensor of floats or integers."""
    if is_sparse(leaf):
        raise SettingError(f"{name} must be dense, got a sparse matrix; give matrix.toarray()")
    values = read_array(leaf, name)
    if isinstance(values, RaggedSamples):
        values = pad_targets(values, name)
    if kind == "auto":
        _refuse_one_hot(values, name)
    floating = _is_floating(values)
    if kind == "values" and not floating:
        return values.to(torch.float32) if isinstance(values, Tensor) else values.astype(np.float64)
    if not floating:
        _check_class_numbers(values, name)
        return values
    if kind == "classes":
        raise SettingError(f"{name} must be whole numbers of an integer type for kind 'classes'")
    if not all(np.isfinite(_numpy(values[part])).all() for part in chunks(values)):
        raise SettingError(f"{name} must be finite, got NaN or infinity")
    return values


def _check_class_numbers(values: Any, name: str) -> None:
    for part in chunks(values):
        block = _numpy(values[part])
        wrong = block[(block < 0) & (block != IGNORED)]
        if wrong.size:
            raise SettingError(
                f"{name}: class {int(wrong.min())} is negative; classes are numbered from 0, and "
                f"{IGNORED} marks positions to ignore"
            )


def _refuse_one_hot(values: Any, name: str) -> None:
    if values.ndim != 2 or not 2 <= values.shape[1] <= 10_000:
        return
    for part in chunks(values):
        block = _numpy(values[part])
        if not (((block == 0) | (block == 1)).all() and (block.sum(1) == 1).all()):
            return
    raise SettingError(
        f"{name}: shape {tuple(values.shape)} with a single 1 per row looks one-hot; "
        "give class numbers, targets.argmax(1), or kind='values' if these are several targets"
    )


def _count_classes(values: Any, classes: int | None) -> int:
    """The number of classes, as given or by the largest class number; 0 for a regression."""
    if _is_floating(values):
        return 0
    lowest = min(int(values[part].min()) for part in chunks(values))
    if lowest < 0 and values.ndim == 1:
        raise SettingError(f"targets: class {lowest} is negative; classes are numbered from 0")
    count = max(int(values[part].max()) for part in chunks(values)) + 1
    if count <= 0:
        raise SettingError(f"targets: all positions are {IGNORED}, which the losses ignore")
    if classes and count > classes:
        raise SettingError(
            f"targets: class {count - 1} lies outside the {classes} classes; "
            f"accepted: 0 to {classes - 1}"
        )
    return classes or count


def _numpy(values: Any) -> np.ndarray:
    if not isinstance(values, Tensor):
        return np.asarray(values)
    return (values.float() if values.dtype == torch.bfloat16 else values).cpu().numpy()


def _is_floating(values: Any) -> bool:
    if isinstance(values, Tensor):
        return values.is_floating_point()
    return values.dtype.kind == "f"
