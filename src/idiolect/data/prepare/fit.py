"""A preparation from the training rows of a table: means, variances, medians and categories.

Statistics are of every client by itself, or of all together. Of all together means by sums: each
client sends the count and the sum of every column and is sent the mean; it sends the sum of squared
deviations from it and is sent the standard deviation. No value of a single row leaves a client. The
median of all is found by bisection over the 64 bits of a number, once for each of the two middle
ones: a threshold down, the count below it up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.knobs import SettingError
from ...core.text import listed, note, option, plural
from ..read.ids import ClientId, similar_names
from .cells import CellRules
from .columns import CATEGORY, DATE, date_order
from .preparation import FILLS, Preparation, TableColumn, bytes_of_categories, categories_of

if TYPE_CHECKING:
    import pandas as pd

NUMBER = 8  # bytes of a count or of a float64
MEDIAN_STEPS = 2 * 64


@dataclass(frozen=True)
class TableSamples:
    """Rows of a table with the client and the split of each."""

    frame: pd.DataFrame
    ids: tuple[ClientId, ...]
    client: np.ndarray  # int64[n], positions in `ids`
    part: np.ndarray  # int64[n]: 0, 1 and 2 stand for train, valid and test
    group: np.ndarray | None = None  # int64[n]: samples of one number belong together
    weight: np.ndarray | None = None  # float64[n]: how much each counts
    time: np.ndarray | None = None  # float64[n]

    @property
    def train(self) -> np.ndarray:
        """The rows that may enter a statistic, bool[n]."""
        return self.part == 0

    def only(self, rows: np.ndarray) -> TableSamples:
        present, client = np.unique(self.client[rows], return_inverse=True)
        ids = tuple(self.ids[k] for k in present)
        group = None if self.group is None else self.group[rows]
        weight = None if self.weight is None else self.weight[rows]
        time = None if self.time is None else self.time[rows]
        return TableSamples(self.frame[rows], ids, client, self.part[rows], group, weight, time)


@dataclass(frozen=True)
class TrainingRows:
    """The training rows of a table: whose each one is."""

    client: np.ndarray  # int64[n], positions of clients
    clients: int
    own: bool  # statistics of every client by itself, not of all together

    def _sum(self, values: np.ndarray, present: np.ndarray) -> np.ndarray:
        """Sums per client, or one sum of the clients' sums."""
        sums = np.bincount(self.client[present], values[present], minlength=self.clients)
        return sums if self.own else sums.sum(keepdims=True)

    def _of_row(self, statistic: np.ndarray) -> np.ndarray:
        return statistic[self.client] if self.own else statistic

    def counts(self, values: np.ndarray) -> np.ndarray:
        """Values that are not missing."""
        return self._sum(np.ones(len(values)), values == values)

    def mean(self, values: np.ndarray) -> np.ndarray:  # -> float64[clients] or float64[1]
        """0 where there is no value."""
        return self._sum(values, values == values) / np.maximum(self.counts(values), 1)

    def deviation(self, values: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """The standard deviation around the mean, as `spread_of` has it."""
        counts = np.maximum(self.counts(values), 1)
        squares = self._sum((values - self._of_row(mean)) ** 2, values == values)
        return spread_of(squares, counts, mean)

    def median(self, values: np.ndarray) -> np.ndarray:
        """0 where there is no value."""
        present = values == values
        if not self.own:
            return np.array([np.median(values[present]) if present.any() else 0.0])
        order = np.lexsort((values[present], self.client[present]))
        ordered = values[present][order]
        counts = np.bincount(self.client[present], minlength=self.clients)
        starts = counts.cumsum() - counts
        safe = np.append(ordered, 0.0)  # a client without values reads past the end
        low = safe[np.minimum(starts + (counts - 1).clip(0) // 2, len(ordered))]
        high = safe[np.minimum(starts + counts // 2, len(ordered))]
        return np.where(counts > 0, low / 2 + high / 2, 0.0)


def spread_of(squares: Any, counts: Any, mean: Any) -> np.ndarray:
    """The standard deviation by squared deviations; 1 where there is none to divide by.

    What rounding alone can make of a constant counts as none, by scikit-learn's bound.
    """
    variance = squares / counts
    eps = np.finfo(np.float64).eps
    rounding = counts * eps * variance + (counts * mean * eps) ** 2
    return np.where(variance <= rounding, 1.0, np.sqrt(variance))


def bytes_of_statistics(columns: int, scale: str, fill: str, flags: bool) -> tuple[int, int]:
    """(up, down) per client, for this many numeric columns.

    >>> bytes_of_statistics(10, "federated", "", flags=False)
    (240, 160)
    >>> bytes_of_statistics(10, "client", "mean", flags=False)
    (0, 0)
    """
    up = down = 0
    if scale == "federated":  # count and sum, mean; sum of squares, deviation
        up, down = 3, 2
    elif scale == "none" and fill == "mean":
        up, down = 2, 1
    if scale != "client" and fill == "median":
        up, down = up + MEDIAN_STEPS, down + MEDIAN_STEPS
    agreed = 1 if flags else 0  # a byte: whether the column has missing values
    return columns * (NUMBER * up + agreed), columns * (NUMBER * down + agreed)


def fit(
    samples: TableSamples,
    kinds: dict[str, str],
    *,
    scale: str,
    missing: str,
    max_categories: int,
    dropped: dict[str, str],
    cells: CellRules,
    order: str = "auto",
) -> Preparation:
    """The preparation of the columns `kinds` (name -> kind).

    Where missing values are filled in, missing text is a category of its own.
    """
    fill, _, flagged = missing.partition("+")
    ids, train = samples.ids, samples.train
    client = samples.client[train]
    rows = TrainingRows(client, len(ids), own=scale == "client")
    columns = []
    categories_by_column: dict[str, tuple[tuple[Any, ...], np.ndarray]] = {}
    for name, kind in kinds.items():
        series = samples.frame[name]
        lacks = series.isna().to_numpy()[train]
        if lacks.all():
            raise SettingError(
                f"column {name!r} has no value in the training rows; leave it out: "
                f"{option('drop', name)}"
            )
        own_category = kind == CATEGORY and fill in FILLS
        flag = (bool(flagged) or own_category) and bool(lacks.any())
        day_and_month = date_order(series, name, order) if kind == DATE else ""
        if day_and_month and order == "auto":
            first = "day" if day_and_month == "dmy" else "month"
            note(f"dates of {name!r} are read with the {first} first; --date-order says otherwise")
        column = TableColumn(name, kind, flag=flag, date_order=day_and_month)
        if kind == CATEGORY:
            categories, numbers = categories_of(series, name, train, max_categories)
            column = replace(column, categories=categories)
            categories_by_column[name] = categories, numbers[train]
        else:
            column = _measured(column, column.read(series)[train], rows, ids, scale, fill)
        columns.append(column)
    up, down = bytes_of_statistics(
        len(kinds) - len(categories_by_column), scale, fill, bool(flagged)
    )
    names_up, names_down = bytes_of_categories(categories_by_column, client, len(ids))
    return Preparation(
        tuple(columns),
        scale,
        missing,
        tuple(ids),
        tuple(up + names for names in names_up),
        down + names_down,
        dropped,
        cells,
    )


def _measured(
    column: TableColumn,
    values: np.ndarray,
    rows: TrainingRows,
    ids: Sequence[ClientId],
    scale: str,
    fill: str,
) -> TableColumn:
    """A column of numbers with fill, centre and spread, by its values in the training rows."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = rows.mean(values)
        deviation = rows.deviation(values, mean)
        median = rows.median(values) if fill == "median" else mean
    if not np.isfinite([*mean, *deviation, *median]).all():
        raise SettingError(
            f"column {column.name!r} holds numbers too large for a mean and a variance, up to "
            f"{np.nanmax(np.abs(values)):g}; divide it, or leave it out: "
            f"{option('drop', column.name)}"
        )
    empty = np.flatnonzero(rows.counts(values) == 0).tolist() if rows.own else []
    if len(empty):
        note(
            f"column {column.name!r} has no value in the training rows of "
            f"{plural(len(empty), 'client')} "
            f"({listed(ids[k] for k in empty)}): missing values are zero there, others unscaled"
        )
    none = np.zeros_like(mean)
    filled = {"mean": mean, "median": median, "zero": none}.get(fill, none[:0])
    if scale == "none":
        mean, deviation = none, none + 1.0
    fills, centre, spread = (tuple(s.tolist()) for s in (filled, mean, deviation))
    return replace(column, fill=fills, centre=centre, spread=spread)


def extend(preparation: Preparation, samples: TableSamples) -> Preparation:
    """The same preparation for clients that came later.

    With scale "client", those that it does not know get statistics of their own training rows.
    """
    prepared_ids = {str(client_id) for client_id in preparation.clients}
    new = [k for k, client_id in enumerate(samples.ids) if str(client_id) not in prepared_ids]
    if preparation.scale != "client" or not new:
        return preparation
    rows_used = samples.train & np.isin(samples.client, new)
    rows = TrainingRows(np.searchsorted(new, samples.client[rows_used]), len(new), own=True)
    added = [samples.ids[k] for k in new]
    fill = preparation.missing.partition("+")[0]
    columns = []
    for column in preparation.columns:
        if column.kind != CATEGORY:
            values = column.read(samples.frame[column.name])[rows_used]
            more = _measured(column, values, rows, added, preparation.scale, fill)
            column = replace(
                column,
                fill=column.fill + more.fill,
                centre=column.centre + more.centre,
                spread=column.spread + more.spread,
            )
        columns.append(column)
    return replace(
        preparation,
        columns=tuple(columns),
        clients=(*preparation.clients, *added),
        bytes_up=(*preparation.bytes_up, *[0] * len(added)),
    )


# -- notes on stderr about a table ----------------------------------------------------------------
def some(words: Iterable[str], most: int = 8) -> str:
    """The first of many words, and how many there are beyond them."""
    every = list(words)
    rest = len(every) - most
    return "; ".join(every[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def say_preparation(preparation: Preparation) -> None:
    """What was done to the columns, and which option overrules it."""
    reasons = {name: why for name, why in preparation.dropped.items() if why != "as asked"}
    if reasons:
        words = some(f"{name!r} ({why})" for name, why in reasons.items())
        note(f"columns dropped: {words}. Columns named in --features are kept")
    categories = [column for column in preparation.columns if column.kind == CATEGORY]
    if categories:
        words = some(f"{column.name!r} ({len(column.categories)})" for column in categories)
        note(f"categories become a feature of 0 or 1 each: {words}")
    numbers = sum(column.kind != CATEGORY for column in preparation.columns)
    if not numbers:
        return
    scales = {
        "federated": "scaled by mean and variance of all clients' training rows "
        f"({option('scale', 'client')}: of each client's own; {option('scale', 'none')}: not at "
        "all)",
        "client": "scaled by mean and variance of each client's own training rows",
        "none": "not scaled",
    }
    columns = "columns of numbers are" if numbers > 1 else "column of numbers is"
    note(f"{numbers:,} {columns} {scales[preparation.scale]}")


def say_clients(ids: Sequence[ClientId], client: np.ndarray, column: str) -> None:
    """Federations that are hardly one; `client` is the position of each row's client."""
    sizes = np.bincount(client, minlength=len(ids))
    if alike := similar_names(ids):
        note(
            f"clients {listed(alike[0])} in column {column!r} differ only in case or spaces; "
            "--merge-names true makes them one"
        )
    single = [ids[k] for k in np.flatnonzero(sizes == 1).tolist()]
    if len(ids) == 1:
        note(f"column {column!r} has one client only ({ids[0]!r}): there is nobody to learn with")
    elif len(single) == len(ids):
        note(
            f"every row is a client of its own in column {column!r}: no client can be tested; "
            "is it the column of clients?"
        )
    elif single:
        alone = plural(len(single), "client")
        note(f"{alone} with one sample only ({listed(single)}): it trains")
