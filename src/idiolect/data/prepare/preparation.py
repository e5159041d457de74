"""Preparation: what was done to the columns of a table, as plain data that does it again."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...core.documents import decode, encode
from ...core.knobs import SettingError
from ...core.text import listed, note, option
from ..read.ids import ClientId, plain_id, unknown_client
from .cells import DECIMALS, LIMITS, THOUSANDS, UNITS, CellRules
from .columns import (
    CATEGORY,
    DATE,
    NUMBER,
    coded,
    days,
    find,
    in_order,
    kind_of,
    numbers,
    read_frame,
)

if TYPE_CHECKING:
    import pandas as pd

SCALES = ("federated", "client", "none")
FILLS = ("mean", "median", "zero")
MISSING = ("refuse", "drop", *FILLS, *(f"{fill}+flag" for fill in FILLS))


@dataclass(frozen=True)
class TableColumn:
    """One column of the table. Statistics have one entry, or one per client (scale "client")."""

    every_key: ClassVar[bool] = True  # in JSON, none is left out

    name: str
    kind: str  # number, category or date
    categories: tuple[bool | int | float | str, ...] = ()  # a feature each
    flag: bool = False  # a feature more: whether the value is missing
    fill: tuple[float, ...] = ()  # what stands for a missing number
    centre: tuple[float, ...] = ()  # subtracted from numbers
    spread: tuple[float, ...] = ()  # divides them
    date_order: str = ""  # of day and month in dates that are text: dmy or mdy

    @property
    def feature_names(self) -> list[str]:
        names = [f"{self.name}={c}" for c in self.categories] or [self.name]
        return [*names, *([f"{self.name} missing"] if self.flag else [])]

    def read(self, column: pd.Series) -> np.ndarray:
        """The numbers in it; NaN where one is missing."""
        kind = kind_of(column, self.name)
        if kind != self.kind and column.notna().any():
            raise SettingError(
                f"column {self.name!r} holds {kind} values ({column.dtype}); "
                f"in training it held {self.kind} values"
            )
        if self.kind == DATE:
            return days(column, self.name, self.date_order)
        return numbers(column, self.name)


@dataclass(frozen=True)
class Preparation:
    """How raw rows of a table become the inputs of a model.

    It is made with a federation (`Federation.from_frame`) from training rows alone, and belongs to
    the model: `apply` gives the inputs for new rows. Names of categories are known to all clients,
    and so are the means and deviations of scale "federated"; `bytes_up` (a number per client) and
    `bytes_down` (the same for each) are what agreeing on them sends.
    """

    every_key: ClassVar[bool] = True

    columns: tuple[TableColumn, ...]
    scale: str = "none"
    missing: str = "refuse"
    clients: tuple[ClientId, ...] = ()  # whose rows it was made from
    bytes_up: tuple[int, ...] = ()  # of each of them
    bytes_down: int = 0
    dropped: dict[str, str] = field(default_factory=dict)  # columns that are no features, and why
    cells: CellRules = field(default_factory=CellRules)  # how cells are read

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The features after encoding, in order."""
        return tuple(name for column in self.columns for name in column.feature_names)

    def bytes_of(self, ids: Sequence[ClientId]) -> list[int]:
        """Bytes that each of these clients sent; none of those who came later."""
        bytes_by_client = dict(zip(self.clients, self.bytes_up, strict=True))
        return [bytes_by_client.get(client_id, 0) for client_id in ids]

    def apply(self, frame: Any, clients: Any = None) -> np.ndarray:  # -> float32[n, features]
        """Raw rows as inputs.

        Columns are found by name; others are ignored. `clients` is the client of each row, or one
        for all; only scale "client" needs it. A category that training did not have is zero in all
        its columns, and said in a line.

        >>> import pandas as pd
        >>> ward = TableColumn("ward", "category", categories=("icu", "er"))
        >>> age = TableColumn("age", "number", centre=(50.0,), spread=(10.0,))
        >>> Preparation((age, ward)).apply(pd.DataFrame({"ward": ["er"], "age": [70]})).tolist()
        [[2.0, 0.0, 1.0]]
        """
        table = read_frame(frame)
        for column in self.columns:
            find(column.name, "frame", table.columns)
        table = table[[column.name for column in self.columns]]
        table, _ = self.cells.clean(table, table.columns)
        row = self._positions(clients, len(table))
        inputs = np.empty((len(table), len(self.feature_names)), dtype=np.float32)
        at = 0
        for column in self.columns:
            width = len(column.feature_names)
            inputs[:, at : at + width] = self._features(column, table[column.name], row)
            at += width
        return inputs

    def _positions(self, clients: Any, n: int) -> np.ndarray | int:
        """The place of each row's client in statistics; 0 where all clients have the same."""
        if self.scale != "client":
            return 0
        if clients is None:
            raise SettingError(
                "clients: numbers are scaled by each client's own mean and variance; "
                "name the client of each row, or one for all"
            )
        place = {client_id: k for k, client_id in enumerate(self.clients)}
        by_text = {str(client_id): k for client_id, k in place.items()}

        def find_client(client: Any) -> int:
            client_id = plain_id(client)
            position = place.get(client_id, by_text.get(str(client_id)))
            if position is None:
                raise unknown_client(client_id, self.clients)
            return position

        if isinstance(clients, (str, int, np.integer)):
            return find_client(clients)
        row_clients = list(clients)
        if len(row_clients) != n:
            raise SettingError(f"clients: {len(row_clients)} ids for {n} rows; one per row, or one")
        positions = {value: find_client(value) for value in set(row_clients)}
        return np.array([positions[value] for value in row_clients], dtype=np.int64)

    def _features(
        self, column: TableColumn, values: pd.Series, row: np.ndarray | int
    ) -> np.ndarray:
        if column.kind == CATEGORY:
            codes, unknown = which(values, column.name, column.categories)
            if unknown:
                note(
                    f"column {column.name!r}: {sum(unknown.values()):,} rows hold a category that "
                    f"training did not have ({listed(unknown)}); all its columns are zero there"
                )
            lacks = codes == -1
            features = one_hot(codes, len(column.categories))
        else:
            numbers = column.read(values)
            lacks = np.isnan(numbers)
            if column.fill and lacks.any():
                numbers = np.where(lacks, _at(column.fill, row), numbers)
            with np.errstate(over="ignore"):
                scaled = (numbers - _at(column.centre, row)) / _at(column.spread, row)
                features = scaled.astype(np.float32)[:, None]
            self._refuse_overflow(column, numbers, features)
        if self.missing in ("refuse", "drop") and lacks.any():
            raise SettingError(
                f"column {column.name!r} is empty in row {int(np.argmax(lacks))} (counted from 0; "
                f"{int(lacks.sum()):,} in all), and in training every sample had a value; "
                f"a model trained with {option('missing', 'mean')} fills them in"
            )
        return np.hstack([features, lacks[:, None]]) if column.flag else features

    def _refuse_overflow(
        self, column: TableColumn, numbers: np.ndarray, features: np.ndarray
    ) -> None:
        too_large = np.isinf(features[:, 0])
        if too_large.any():
            row = int(np.argmax(too_large))
            raise SettingError(
                f"column {column.name!r} holds {numbers[row]:g} in row {row}: scaled, it is more "
                "than numbers of 32 bits hold; only smaller ones are accepted"
            )

    # -- as plain data ---------------------------------------------------------------------------
    def as_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        return encode(self)

    @classmethod
    def from_dict(cls, saved: Any) -> Preparation:
        """The inverse of `as_dict`. It may come from anyone: SettingError names what is wrong."""
        try:
            preparation = decode(saved, cls)
            check(preparation)
        except (ValueError, OverflowError) as error:
            raise SettingError(f"preparation: it cannot be used: {error}") from None
        return preparation


def _at(statistic: tuple[float, ...], row: np.ndarray | int) -> Any:
    return np.array(statistic)[row]


# -- what is read back must fit together -----------------------------------------------------------
def check(preparation: Preparation) -> None:
    """ValueError where the parts do not fit each other."""
    if preparation.scale not in SCALES or preparation.missing not in MISSING:
        raise ValueError(
            f"scale {preparation.scale!r} or missing {preparation.missing!r} is unknown"
        )
    names = [column.name for column in preparation.columns]
    if not names or len(set(names)) < len(names):
        raise ValueError("columns: one or more, each with a name of its own")
    if len({str(client_id) for client_id in preparation.clients}) < len(preparation.clients):
        raise ValueError("clients: an id is there twice")
    if (
        len(preparation.bytes_up) != len(preparation.clients)
        or min(preparation.bytes_up, default=0) < 0
    ):
        raise ValueError("bytes_up: a number >= 0 for each client")
    if preparation.bytes_down < 0:
        raise ValueError("bytes_down: a number >= 0")
    cells = preparation.cells
    choices = {"decimal": DECIMALS, "thousands": THOUSANDS, "units": UNITS, "limits": LIMITS}
    for name, accepted in choices.items():
        if getattr(cells, name) not in accepted:
            raise ValueError(f"cells: {name} {getattr(cells, name)!r} is unknown")
    for column in preparation.columns:
        _check_column(column, preparation)


def _check_column(column: TableColumn, preparation: Preparation) -> None:
    place = f"column {column.name[:80]!r}"
    if column.kind == CATEGORY:
        texts = {isinstance(c, str) for c in column.categories}
        if len(set(column.categories)) < len(column.categories) or len(texts) != 1:
            raise ValueError(f"{place}: its categories are one or more, all different")
        if column.fill or column.centre or column.spread:
            raise ValueError(f"{place}: a category has no statistics")
        return
    if column.date_order not in ("", "dmy", "mdy"):
        raise ValueError(f"{place}: date_order is dmy or mdy")
    if column.kind not in (NUMBER, DATE) or column.categories:
        raise ValueError(f"{place}: a number, category or date, with categories if it is one")
    one = len(preparation.clients) if preparation.scale == "client" else 1
    filled = preparation.missing not in ("refuse", "drop")
    lengths = {"fill": one if filled else 0, "centre": one, "spread": one}
    for name, length in lengths.items():
        values = getattr(column, name)
        if len(values) != length or not all(map(math.isfinite, values)):
            raise ValueError(f"{place}: {name} is {length} finite numbers")
    if min(column.spread, default=1.0) <= 0:
        raise ValueError(f"{place}: spread is > 0")


# -- categories as columns of zeros and ones -------------------------------------------------------
def categories_of(
    column: pd.Series, name: str, train: np.ndarray, most: int
) -> tuple[tuple[Any, ...], np.ndarray]:
    """The categories in the training rows, in order; and which each row has: int64[n], -1 = none.

    More than `most` are refused: a column of names or of free text is no category.
    """
    codes, values = coded(column)
    training_codes = np.unique(codes[train & (codes >= 0)])
    if len(training_codes) > most:
        raise SettingError(
            f"column {name!r} has {len(training_codes):,} distinct values, such as "
            f"{values[training_codes[0]]!r}; at most {most} become columns: leave it out "
            f"({option('drop', name)}) or raise max_categories"
            f"{_hint([values[i] for i in training_codes])}"
        )
    categories = in_order([values[i] for i in training_codes], column)
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
        kind = "text" if isinstance(values[0], str) else type(values[0]).__name__
        raise SettingError(
            f"column {name!r} holds {kind} such as {values[0]!r}; "
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
    columns: dict[str, tuple[tuple[Any, ...], np.ndarray]], client: np.ndarray, clients: int
) -> tuple[list[int], int]:
    """What agreeing on the categories costs: (bytes up per client, bytes down to each).

    A client sends the categories that its training rows hold, as JSON in UTF-8, and is sent those
    of all. `columns`: name -> its categories, and which each training row has.
    """
    if not columns:
        return [0] * clients, 0
    own: list[dict[str, list[Any]]] = [{name: [] for name in columns} for _ in range(clients)]
    for name, (categories, codes) in columns.items():
        pairs = np.unique(client[codes >= 0] * len(categories) + codes[codes >= 0])
        for k, c in zip(*(part.tolist() for part in divmod(pairs, len(categories))), strict=True):
            own[k][name].append(categories[c])
    everyone = {name: list(categories) for name, (categories, _) in columns.items()}
    return [length_of(message) for message in own], length_of(everyone)


def length_of(message: dict[str, list[Any]]) -> int:
    """Bytes of the names of categories, by column."""
    return len(json.dumps(message, ensure_ascii=False).encode())
