"""Preparation: what was done to the columns of a table, as plain data that does it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.documents import expect_fields
from ...core.knobs import SettingError
from ...core.text import listed, note
from ..ids import ClientId, plain_id, unknown_client
from .check import check
from .choose import find
from .encode import one_hot, which
from .kinds import CATEGORY, DATE, days, kind_of, numbers, read_frame

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Column:
    """One column of the table. Statistics have one entry, or one per client (scale "client")."""

    name: str
    kind: str  # number, category or date
    categories: tuple[Any, ...] = ()  # a feature each
    flag: bool = False  # a feature more: whether the value is missing
    fill: tuple[float, ...] = ()  # what stands for a missing number
    centre: tuple[float, ...] = ()  # subtracted from numbers
    spread: tuple[float, ...] = ()  # divides them

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
        return (days if self.kind == DATE else numbers)(column, self.name)


@dataclass(frozen=True)
class Preparation:
    """How raw rows of a table become the inputs of a model.

    It is made with a federation (`Federation.from_frame`) from training rows alone, and belongs to
    the model: `apply` gives the inputs for new rows. Names of categories are known to all clients,
    and so are the means and deviations of scale "federated"; `bytes_up` (a number per client) and
    `bytes_down` (the same for each) are what agreeing on them sends.
    """

    columns: tuple[Column, ...]
    scale: str = "none"
    missing: str = "refuse"
    clients: tuple[ClientId, ...] = ()  # whose rows it was made from
    bytes_up: tuple[int, ...] = ()  # of each of them
    bytes_down: int = 0
    dropped: dict[str, str] = field(default_factory=dict)  # columns that are no features, and why

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The features after encoding, in order."""
        return tuple(name for column in self.columns for name in column.feature_names)

    def bytes_of(self, ids: Sequence[ClientId]) -> list[int]:
        """Bytes that each of these clients sent; none of those who came later."""
        sent = dict(zip(self.clients, self.bytes_up, strict=True))
        return [sent.get(id, 0) for id in ids]

    def apply(self, frame: Any, clients: Any = None) -> np.ndarray:  # -> float32[n, features]
        """Raw rows as inputs.

        Columns are found by name; others are ignored. `clients` is the client of each row, or one
        for all; only scale "client" needs it. A category that training did not have is zero in all
        its columns, and said in a line.

        >>> import pandas as pd
        >>> ward = Column("ward", "category", categories=("icu", "er"))
        >>> age = Column("age", "number", centre=(50.0,), spread=(10.0,))
        >>> Preparation((age, ward)).apply(pd.DataFrame({"ward": ["er"], "age": [70]})).tolist()
        [[2.0, 0.0, 1.0]]
        """
        table = read_frame(frame)
        for column in self.columns:
            find(column.name, "frame", table.columns)
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
        place = {id: k for k, id in enumerate(self.clients)}
        by_text = {str(id): k for id, k in place.items()}

        def find_client(given: Any) -> int:
            id = plain_id(given)
            found = place.get(id, by_text.get(str(id)))
            if found is None:
                raise unknown_client(id, self.clients)
            return found

        if isinstance(clients, (str, int, np.integer)):
            return find_client(clients)
        given = list(clients)
        if len(given) != n:
            raise SettingError(f"clients: {len(given)} ids for {n} rows; one per row, or one")
        known = {value: find_client(value) for value in set(given)}
        return np.array([known[value] for value in given], dtype=np.int64)

    def _features(self, column: Column, values: pd.Series, row: np.ndarray | int) -> np.ndarray:
        if column.kind == CATEGORY:
            chosen, unknown = which(values, column.name, column.categories)
            if unknown:
                note(
                    f"column {column.name!r}: {sum(unknown.values()):,} rows hold a category that "
                    f"training did not have ({listed(unknown)}); all its columns are zero there"
                )
            lacks = chosen == -1
            made = one_hot(chosen, len(column.categories))
        else:
            numbers = column.read(values)
            lacks = np.isnan(numbers)
            if column.fill and lacks.any():
                numbers = np.where(lacks, _at(column.fill, row), numbers)
            with np.errstate(over="ignore"):
                scaled = (numbers - _at(column.centre, row)) / _at(column.spread, row)
                made = scaled.astype(np.float32)[:, None]
            self._refuse_overflow(column, numbers, made)
        if self.missing in ("refuse", "drop") and lacks.any():
            raise SettingError(
                f"column {column.name!r} is empty in row {int(np.argmax(lacks))} (counted from 0; "
                f"{int(lacks.sum()):,} in all), and in training every sample had a value; "
                "a model trained with --missing mean fills them in"
            )
        return np.hstack([made, lacks[:, None]]) if column.flag else made

    def _refuse_overflow(self, column: Column, numbers: np.ndarray, made: np.ndarray) -> None:
        too_large = np.isinf(made[:, 0])
        if too_large.any():
            row = int(np.argmax(too_large))
            raise SettingError(
                f"column {column.name!r} holds {numbers[row]:g} in row {row}, more than numbers "
                "of 32 bits hold; only smaller ones are accepted"
            )

    # -- as plain data ---------------------------------------------------------------------------
    def as_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        columns = [{f.name: _plain(getattr(c, f.name)) for f in fields(c)} for c in self.columns]
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)} | {"columns": columns}

    @classmethod
    def from_dict(cls, saved: Any) -> Preparation:
        """The inverse of `as_dict`. It may come from anyone: SettingError names what is wrong."""
        try:
            expect_fields(saved, _PREPARATION)
            columns = []
            for number, column in enumerate(saved["columns"]):
                expect_fields(column, _COLUMN, place=f"columns[{number}]")
                columns.append(Column(**{k: _frozen(v) for k, v in column.items()}))
            made = cls(**{k: _frozen(v) for k, v in saved.items()} | {"columns": tuple(columns)})
            check(made)
        except (ValueError, OverflowError) as error:
            raise SettingError(f"preparation: it cannot be used: {error}") from None
        return made


def _at(statistic: tuple[float, ...], row: np.ndarray | int) -> Any:
    return np.array(statistic)[row]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


_COLUMN = {
    "name": str,
    "kind": str,
    "categories": list[bool | int | float | str],
    "flag": bool,
    **dict.fromkeys(("fill", "centre", "spread"), list[float]),
}
_PREPARATION = {
    "columns": list[dict[str, Any]],
    "scale": str,
    "missing": str,
    "clients": list[int | str],
    "bytes_up": list[int],
    "bytes_down": int,
    "dropped": dict[str, str],
}
