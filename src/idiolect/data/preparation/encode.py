"""Categories as columns of zeros and ones."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.knobs import SettingError
from .kinds import coded, in_order

if TYPE_CHECKING:
    import pandas as pd


def categories_of(
    column: pd.Series, name: str, train: np.ndarray, most: int
) -> tuple[tuple[Any, ...], np.ndarray]:
    """The categories in the training rows, in order; and which each row has: int64[n], -1 = none.

    More than `most` are refused: a column of names or of free text is no category.
    """
    codes, values = coded(column)
    seen = np.unique(codes[train & (codes >= 0)])
    if len(seen) > most:
        raise SettingError(
            f"column {name!r} has {len(seen):,} distinct values, such as "
            f"{values[seen[0]]!r}; at most {most} become columns: leave it out (--drop {name}) "
            f"or raise --max-categories{_hint([values[i] for i in seen])}"
        )
    categories = in_order([values[i] for i in seen], column)
    return tuple(categories), _renumber(codes, values, categories)


def _hint(values: list[Any]) -> str:
    """A word for numbers that are held as text."""
    try:
        for value in values:
            float(value)
    except ValueError:
        return ""
    return "; they are numbers as text: convert the column to numbers if they are measurements"


def which(column: pd.Series, name: str, categories: tuple[Any, ...]) -> tuple[np.ndarray, Counter]:
    """Which category each row has, int64[n]: -1 = missing, -2 = unknown; and the unknown ones."""
    codes, values = coded(column)
    if values and isinstance(values[0], str) != isinstance(categories[0], str):
        found = "text" if isinstance(values[0], str) else type(values[0]).__name__
        raise SettingError(
            f"column {name!r} holds {found} such as {values[0]!r}; "
            f"in training it held categories such as {categories[0]!r}"
        )
    numbers = _renumber(codes, values, list(categories))
    unknown = Counter({values[c]: int(n) for c, n in enumerate(np.bincount(codes[numbers == -2]))})
    return numbers, +unknown


def _renumber(codes: np.ndarray, values: list[Any], categories: list[Any]) -> np.ndarray:
    number = {value: i for i, value in enumerate(categories)}
    table = np.array([*(number.get(v, -2) for v in values), -1])  # code -1 is the last entry
    return table[codes]


def one_hot(numbers: np.ndarray, categories: int) -> np.ndarray:  # -> float32[n, categories]
    """A one in the column of each row's category; zeros where it has none.

    >>> one_hot(np.array([1, -1, 0]), 2).tolist()
    [[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]
    """
    return (numbers[:, None] == np.arange(categories)).astype(np.float32)


def bytes_of_categories(
    found: dict[str, tuple[tuple[Any, ...], np.ndarray]], client: np.ndarray, clients: int
) -> tuple[list[int], int]:
    """What agreeing on the categories costs: (bytes up per client, bytes down to each).

    A client sends the categories that its training rows hold, as JSON in UTF-8, and is sent those
    of all. `found`: column -> its categories, and which each training row has.
    """
    if not found:
        return [0] * clients, 0
    own: list[dict[str, list[Any]]] = [{name: [] for name in found} for _ in range(clients)]
    for name, (categories, numbers) in found.items():
        pairs = np.unique(client[numbers >= 0] * len(categories) + numbers[numbers >= 0])
        for k, c in zip(*(part.tolist() for part in divmod(pairs, len(categories))), strict=True):
            own[k][name].append(categories[c])
    everyone = {name: list(categories) for name, (categories, _) in found.items()}
    return [length_of(message) for message in own], length_of(everyone)


def length_of(message: dict[str, list[Any]]) -> int:
    """Bytes of the names of categories, by column."""
    return len(json.dumps(message, ensure_ascii=False).encode())
