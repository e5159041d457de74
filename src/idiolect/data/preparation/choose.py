"""Which columns are features: those that the user names, or all that carry something to learn."""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.knobs import SettingError
from ...core.text import note
from .kinds import CATEGORY, DATE, NUMBER, coded, kind_of, numbers

if TYPE_CHECKING:
    import pandas as pd

ROW_NUMBERS = (
    *("", "unnamed: 0", "index", "level_0", "__index_level_0__"),
    *("row", "rownames", "row_names"),
)
ID_WORDS = ("id", "ids", "uuid", "guid")
FEW_ROWS = 10  # in fewer rows, numbers that count from 1 may well be measurements


def read_names(given: Any) -> tuple[str, ...]:
    """Column names from a list, or from text with commas (a name with a comma in quotes).

    >>> read_names("age, bp"), read_names([0, "bp"]), read_names('"a, b",c')
    (('age', 'bp'), ('0', 'bp'), ('a, b', 'c'))
    """
    if isinstance(given, str):
        rows = list(csv.reader([given], skipinitialspace=True)) if given.strip() else [[]]
        return tuple(name.strip() for name in rows[0] if name.strip())
    if isinstance(given, (list, tuple)):
        return tuple(str(name) for name in given)
    if given is None:
        return ()
    raise SettingError(f"columns: {given!r} is not accepted; a list of names, or text with commas")


def write_names(names: Sequence[str]) -> str:
    """The inverse of `read_names`, as text.

    >>> write_names(["age", "a, b"])
    'age,"a, b"'
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def find(name: str, role: str, columns: Collection[str]) -> None:
    """Refuse the name of a column that is not there; the nearest name is suggested."""
    if name in columns:
        return
    columns = list(columns)
    close = difflib.get_close_matches(name, columns, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}? " if close else ""
    names = ", ".join(columns[:30]) + (", ..." if len(columns) > 30 else "")
    raise SettingError(f"{role}: column {name!r} is not in the table; {hint}its columns: {names}")


def candidates(
    columns: Collection[str], roles: dict[str, str], features: Sequence[str], drop: Sequence[str]
) -> list[str]:
    """The columns that may be features; `roles`: what the other columns are ("target" -> name)."""
    taken = {name: role for role, name in roles.items()}
    for role, names in (("features", features), ("drop", drop)):
        for name in names:
            find(name, role, columns)
            if name in taken:
                raise SettingError(
                    f"{role}: {name!r} is the column of the {taken[name]}; name others"
                )
    for name in features:
        if name in drop:
            raise SettingError(f"drop: {name!r} is named in features too; name it once")
    left = [name for name in (features or columns) if name not in taken and name not in drop]
    left = list(dict.fromkeys(left))
    if not left:
        beside = ", ".join(repr(name) for name in taken)
        raise SettingError(f"the table has no feature columns beside {beside}")
    return left


def choose(
    frame: pd.DataFrame,
    names: Sequence[str],
    train: np.ndarray,
    *,
    keep: bool,
    dates: str,
    most: int,
) -> tuple[dict[str, str], dict[str, str]]:
    """(features, dropped): the kind of each feature, and why a column is none.

    Only training rows (`train`, bool[n]) decide. `keep`: the user named these columns, and none is
    dropped. `most`: distinct values beyond which a column called "..._id" is an identifier.
    """
    kinds = {}
    dropped = {}
    for name in names:
        kind = kind_of(frame[name], name)
        if kind == DATE:
            if dates == "refuse":
                raise SettingError(
                    f"column {name!r} holds dates; leave it out (--drop {name}), or take the days "
                    "since 1970-01-01 as a number: --dates days"
                )
            if dates == "drop":
                dropped[name] = "dates"
                continue
        reason = "" if keep else _why_not(frame[name], name, kind, train, most)
        if reason:
            dropped[name] = reason
        else:
            kinds[name] = kind
    if not kinds:
        why = "; ".join(f"{name!r} is {reason}" for name, reason in dropped.items())
        raise SettingError(f"the table has no feature columns left: {why}")
    return kinds, dropped


def _why_not(column: pd.Series, name: str, kind: str, train: np.ndarray, most: int) -> str:
    """Why a column is no feature; "" if it is one."""
    rows = np.flatnonzero(train)
    if kind == NUMBER:
        values = numbers(column, name)[rows]
        present = values == values
        distinct = len(np.unique(values[present]))
        whole = bool((values[present] % 1 == 0).all())
    else:
        values, _ = coded(column)
        values = values[rows]
        present = values >= 0
        distinct = len(np.unique(values[present]))
        whole = False
    if not present.any():
        return "empty"
    if distinct == 1 and present.all() and len(rows) > 1:
        return "constant"
    if kind == DATE:
        return ""
    if whole:
        if name.lower() in ROW_NUMBERS:
            return "a row number"
        if len(column) >= FEW_ROWS and any((values == rows + start).all() for start in (0, 1)):
            return "a row number"
    if whole or kind == CATEGORY:
        return _why_identifier(name, distinct, int(present.sum()), most)
    return ""


def _why_identifier(name: str, distinct: int, count: int, most: int) -> str:
    """Whether whole numbers or texts under this name are identifiers.

    >>> _why_identifier("patient_id", 300, 900, most=50)
    'an identifier: 300 distinct values'
    >>> _why_identifier("thyroid", 2, 900, most=50)
    ''
    """
    words = [w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
    by_word = bool(words) and (words[0] in ID_WORDS or words[-1] in ID_WORDS)
    by_ending = name.lower().endswith("id") and count >= FEW_ROWS
    if (by_word and distinct > most) or ((by_word or by_ending) and distinct == count):
        return f"an identifier: {distinct:,} distinct values"
    if by_word:
        note(
            f"column {name!r} is called an identifier but has {distinct} distinct values: kept "
            f"as a feature; --drop {name} leaves it out"
        )
    return ""
