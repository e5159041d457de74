"""The column to predict: classes or real values, inferred from what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.knobs import SettingError
from ...core.text import listed
from ..read.targets import FEW, few_and_repeated
from .columns import DATE, NUMBER, coded, in_order, kind_of, numbers

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class TargetColumn:
    """Targets, the user's labels of the classes, and why they are classes or values."""

    targets: np.ndarray  # [n]: class numbers (int64) or real values (float32)
    class_names: tuple[Any, ...]  # in order of class number; () for a regression
    reason: str = ""  # "" where the user decided


def read_outcome(
    column: pd.Series, name: str, kind: str = "auto", class_names: tuple[Any, ...] | None = None
) -> TargetColumn:
    """The outcome in a column.

    With `kind` "auto", text, booleans and categories are classes, and so are numbers of two
    distinct values, and whole numbers of at most 20 distinct values that are repeated (twice each
    on average); other numbers are values. Classes are numbered in sorted order, those of a pandas
    categorical in its own. `known` are the class names of earlier data, () for a regression: the
    outcome is read as it was there.

    >>> import pandas as pd
    >>> found = read_outcome(pd.Series([42731, 41401, 42731]), "drg")
    >>> found.targets.tolist(), found.class_names
    ([1, 0, 1], (41401, 42731))
    >>> print(found.reason)
    target 'drg' has 2 distinct values (41401, 42731): classes; --kind values makes it a regression
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
        return TargetColumn(_values(column, name, holds), ())
    codes, distinct = coded(column)
    if holds == NUMBER and any(type(value) is str for value in distinct):  # decimal numbers
        codes, distinct = coded(column.astype(float))
    classes = in_order(distinct, column)
    reason = ""
    if kind == "auto":
        kind, reason = _decide(classes, len(column), name, holds)
    if kind == "values":
        return TargetColumn(_values(column, name, holds), (), reason)
    if class_names:
        _refuse_unknown(column, name, distinct, codes, class_names)
        classes = list(class_names)
    if len(classes) < 2:
        raise SettingError(
            f"target: column {name!r} holds one class only ({classes[0]!r}); there is nothing "
            "to learn from it"
        )
    number = {value: i for i, value in enumerate(classes)}
    return TargetColumn(np.array([number[v] for v in distinct])[codes], tuple(classes), reason)


def _decide(classes: list[Any], n: int, name: str, holds: str) -> tuple[str, str]:
    """The kind of a target, and the line that says why."""
    many = len(classes)
    if holds != NUMBER:
        if many > FEW and 2 * many > n:
            raise SettingError(
                f"target: column {name!r} has {many:,} distinct values in {n:,} rows, such as "
                f"{listed(classes, 2)}; that is no outcome to predict. --kind classes takes them "
                "as classes all the same"
            )
        return "classes", f"target {name!r} has {many:,} classes ({listed(classes)})"
    if many <= 2 or few_and_repeated(classes, n):
        kind = "classes; --kind values makes it a regression"
        plural = "s" if many > 1 else ""
        reason = f"target {name!r} has {many} distinct value{plural} ({listed(classes)}): {kind}"
        return "classes", reason
    reason = (
        f"target {name!r} has {many:,} distinct values ({classes[0]:g} to {classes[-1]:g}): a "
        "regression on values as they are, not scaled; --kind classes makes them classes"
    )
    return "values", reason


def _values(column: pd.Series, name: str, holds: str) -> np.ndarray:
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
    column: pd.Series,
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
