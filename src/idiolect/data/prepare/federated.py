"""A preparation of rows at several sites, from their counts and sums alone.

Every site sends the count and the sum of each column of numbers, and the names of its categories;
it receives the means, and sends the squared deviations from them. No single row leaves a site.

>>> import pandas as pd
>>> here, there = pd.DataFrame({"age": [40.0, 50.0]}), pd.DataFrame({"age": [60.0, 70.0]})
>>> first = [first_sums(rows, ["age"]) for rows in (here, there)]
>>> centres = means(first)
>>> second = [second_sums(rows, centres) for rows in (here, there)]
>>> preparation = combine(["age"], first, second)
>>> preparation.columns[0].centre, round(preparation.columns[0].spread[0], 3)
((55.0,), 11.18)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.documents import decode, encode
from ...core.knobs import SettingError
from .columns import CATEGORY, NUMBER, coded, in_order, kind_of, numbers
from .fit import bytes_of_statistics, spread_of
from .preparation import FILLS, Preparation, TableColumn, length_of

if TYPE_CHECKING:
    import pandas as pd

Sums = Mapping[str, Mapping[str, Any]]  # column -> what a site sends about it, as plain data
MISSING = ("refuse", "drop", "mean", "zero", "mean+flag", "zero+flag")  # of all values, or filled
MOST_CATEGORIES = 50
MOST_CATEGORY_NAME = 200  # characters of the name of a category
MOST_ROWS = 1 << 40  # of a site
MOST_VALUE = 1e30  # magnitude of a mean at one site: squares of deviations stay finite everywhere
TEXT = "text"  # the kind of a column of categories that are texts
CODE = "code"  # the same, of numbers or of true and false
KINDS = (NUMBER, TEXT, CODE)


@dataclass(frozen=True)
class NumberSums:
    """What a site sends first about a column of numbers."""

    kind: str
    count: int
    sum: float
    missing: bool  # whether a value is


@dataclass(frozen=True)
class CategoryNames:
    """What a site sends about a column of categories."""

    kind: str
    categories: list[bool | int | float | str]
    missing: bool


@dataclass(frozen=True)
class NumberSquares:
    """What a site sends next about a column of numbers: squared deviations from the mean."""

    squares: float


def first_sums(
    rows: pd.DataFrame, features: Sequence[str], least: int = 1
) -> dict[str, dict[str, Any]]:
    """What a site sends first: counts and sums, or names of categories.

    A category with fewer rows than `least` is not named: its rows will be as those of a category
    that training did not have. As few missing values are not mentioned.
    """
    columns: dict[str, dict[str, Any]] = {}
    for name in features:
        column = rows[name]
        kind = kind_of(column, name)
        missing = int(column.isna().sum()) >= least
        if kind == CATEGORY:
            codes, distinct = coded(column)
            present_codes, counts = np.unique(codes[codes >= 0], return_counts=True)
            present = [distinct[c] for c in present_codes[counts >= least]]
            if len(present) > MOST_CATEGORIES:
                raise SettingError(
                    f"column {name!r} has {len(present)} distinct values; at most "
                    f"{MOST_CATEGORIES} are taken as categories"
                )
            columns[name] = encode(CategoryNames(CATEGORY, in_order(present, column), missing))
        elif kind == NUMBER:
            values = _present(column, name)
            columns[name] = encode(NumberSums(NUMBER, len(values), float(values.sum()), missing))
        else:
            raise SettingError(f"column {name!r} holds dates; leave it out of the features")
    return columns


def _present(column: pd.Series, name: str) -> np.ndarray:
    values = numbers(column, name)
    return values[~np.isnan(values)]


def second_sums(rows: pd.DataFrame, centres: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """What a site sends next: squared deviations from the means."""
    columns = {}
    for name, mean in centres.items():
        if name not in rows.columns:
            raise SettingError(f"means: column {name!r} is none of the features")
        squares = ((_present(rows[name], name) - mean) ** 2).sum()
        columns[name] = encode(NumberSquares(float(squares)))
    return columns


def means(first: Sequence[Sums]) -> dict[str, float]:
    """The means of the columns of numbers; SettingError where sites disagree about a column."""
    centres = {}
    for name in first[0]:
        every = [_read_first(place.get(name), name) for place in first]
        kinds = {one.kind for one in every}
        if len(kinds) > 1:
            raise SettingError(f"column {name!r} holds {' at one place and '.join(sorted(kinds))}")
        sums = [one for one in every if isinstance(one, NumberSums)]
        if sums:
            count = sum(one.count for one in sums)
            centres[name] = sum(one.sum for one in sums) / max(count, 1)
            if not math.isfinite(centres[name]):
                raise SettingError(f"column {name!r}: its sums are no finite numbers")
    return centres


def check_first(columns: Mapping[str, Any], kinds: Mapping[str, str]) -> None:
    """ValueError where what one site sends first is not about columns of these kinds.

    >>> check_first({"age": {"kind": "number", "count": 2, "sum": 9.0, "missing": False}},
    ...             {"age": "text"})
    Traceback (most recent call last):
        ...
    ValueError: sums: column 'age' must hold text, got number
    """
    if set(columns) != set(kinds):
        raise ValueError("sums: of other columns than requested")
    for name, kind in kinds.items():
        sums = _read_first(columns[name], name)
        actual = {NUMBER}
        if isinstance(sums, CategoryNames):
            actual = {TEXT if isinstance(c, str) else CODE for c in sums.categories}
        if actual - {kind}:
            words = " and ".join(sorted(actual))
            raise ValueError(f"sums: column {name!r} must hold {kind}, got {words}")


def check_second(
    columns: Mapping[str, Any], first: Mapping[str, Any], centres: Mapping[str, float]
) -> None:
    """ValueError where what one site sends next does not go with what it sent first."""
    if set(columns) != set(centres):
        raise ValueError("sums: of other columns than requested")
    for name in centres:
        sums, squares = _read_first(first[name], name), _read_squares(columns[name], name)
        assert isinstance(sums, NumberSums)
        if squares > sums.count * (2 * MOST_VALUE) ** 2:
            raise ValueError(f"sums: column {name!r}: squares beyond what its values can have")


def combine(
    features: Sequence[str],
    first: Sequence[Sums],
    second: Sequence[Sums],
    missing: str = "refuse",
    centres: Mapping[str, float] | None = None,
) -> Preparation:
    """The preparation that all sites use.

    `centres` are the numbers that deviations are from, where these are not the means of `first`: a
    site that had a part in them has been put out since.
    """
    centre = means(first)
    fill, _, flagged = missing.partition("+")
    columns = []
    for name in features:
        every = [_read_first(place.get(name), name) for place in first]
        flag = bool(flagged) and any(one.missing for one in every)
        if name not in centre:
            distinct = {
                c for one in every if isinstance(one, CategoryNames) for c in one.categories
            }
            if not distinct:
                raise SettingError(
                    f"column {name!r}: no site tells a category of it (one with too few rows is "
                    "not told); leave the column out"
                )
            if len({isinstance(c, str) for c in distinct}) != 1:
                raise SettingError(
                    f"column {name!r} holds text at one place and numbers at another"
                )
            flag = (flag or fill in FILLS) and any(one.missing for one in every)
            columns.append(TableColumn(name, CATEGORY, tuple(sorted(distinct)), flag))
            continue
        count = sum(one.count for one in every if isinstance(one, NumberSums))
        squares = sum(_read_squares(place.get(name), name) for place in second)
        if centres is not None:
            total = sum(one.sum for one in every if isinstance(one, NumberSums))
            shift = centres[name] - centre[name]
            squares = max(
                squares + 2 * shift * (total - count * centres[name]) + count * shift**2, 0.0
            )
        spread = float(spread_of(squares, max(count, 1), centre[name]))
        fills = {"mean": (centre[name],), "zero": (0.0,)}.get(fill, ())
        columns.append(TableColumn(name, NUMBER, (), flag, fills, (centre[name],), (spread,)))
    return Preparation(tuple(columns), "federated", missing)


def bytes_of_sums(first: Sequence[Sums], preparation: Preparation) -> tuple[list[int], int]:
    """(bytes up from each site, bytes down to each), counted as for clients of one process."""
    fill, _, flagged = preparation.missing.partition("+")
    texts = {c.name: list(c.categories) for c in preparation.columns if c.kind == CATEGORY}
    numbers = len(preparation.columns) - len(texts)
    up, down = bytes_of_statistics(numbers, preparation.scale, fill, bool(flagged))
    if not texts:
        return [up] * len(first), down
    own = [{name: list(place[name]["categories"]) for name in texts} for place in first]
    return [up + length_of(one) for one in own], down + length_of(texts)


def _read_first(sums: Any, name: str) -> NumberSums | CategoryNames:
    """What a site sent first about a column; it is not trusted."""
    with _from_site(name):
        kind = sums.get("kind") if isinstance(sums, dict) else None
        if kind == NUMBER:
            numbers = decode(sums, NumberSums)
            if not 0 <= numbers.count <= MOST_ROWS:
                raise ValueError(f"count must be a whole number from 0 to {MOST_ROWS}")
            if not abs(numbers.sum) <= numbers.count * MOST_VALUE:  # nor NaN
                raise ValueError(f"sum must be at most {MOST_VALUE:g} per value")
            return numbers
        if kind == CATEGORY:
            names = decode(sums, CategoryNames)
            if len(names.categories) > MOST_CATEGORIES:
                raise ValueError(f"at most {MOST_CATEGORIES} categories are accepted")
            for category in names.categories:
                if isinstance(category, str) and len(category) > MOST_CATEGORY_NAME:
                    raise ValueError(f"a category has at most {MOST_CATEGORY_NAME} characters")
                if not isinstance(category, str) and not abs(category) <= MOST_VALUE:
                    raise ValueError(f"a category must be at most {MOST_VALUE:g}")
            return names
        raise ValueError("a column of numbers or of categories is expected")


def _read_squares(sums: Any, name: str) -> float:
    with _from_site(name):
        squares = float(decode(sums, NumberSquares).squares)
        if not 0 <= squares < math.inf:
            raise ValueError(f"squares must be a number >= 0, got {squares:g}")
        return squares


@contextmanager
def _from_site(name: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise SettingError(f"sums: column {name!r}: {error}") from None
