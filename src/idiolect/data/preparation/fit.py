"""A preparation from the training rows of a table, and for clients that come later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.knobs import SettingError
from ...core.text import listed, note
from ..ids import ClientId
from .encode import bytes_of_categories, categories_of
from .kinds import CATEGORY
from .prepared import Column, Preparation
from .scale import Rows, bytes_of_statistics

if TYPE_CHECKING:
    import pandas as pd


def fit(
    frame: pd.DataFrame,
    kinds: dict[str, str],
    ids: Sequence[ClientId],
    client: np.ndarray,
    train: np.ndarray,
    *,
    scale: str,
    missing: str,
    max_categories: int,
    dropped: dict[str, str],
) -> Preparation:
    """The preparation of the columns `kinds` (name -> kind).

    `client` is the position of each row's client in `ids`, int64[n]; `train` says which rows may
    enter a statistic, bool[n].
    """
    fill, _, flagged = missing.partition("+")
    rows = Rows(client[train], len(ids), own=scale == "client")
    columns = []
    found: dict[str, tuple[tuple[Any, ...], np.ndarray]] = {}
    for name, kind in kinds.items():
        given = frame[name]
        if not given.notna().to_numpy()[train].any():
            raise SettingError(
                f"column {name!r} has no value in the training rows; leave it out: --drop {name}"
            )
        flag = bool(flagged) and bool(given.isna().to_numpy()[train].any())
        column = Column(name, kind, flag=flag)
        if kind == CATEGORY:
            categories, numbers = categories_of(given, name, train, max_categories)
            column = replace(column, categories=categories)
            found[name] = categories, numbers[train]
        else:
            values = column.read(given)[train]
            column = _with(column, _statistics(values, name, rows, ids, scale, fill))
        columns.append(column)
    up, down = bytes_of_statistics(len(kinds) - len(found), scale, fill, bool(flagged))
    names_up, names_down = bytes_of_categories(found, client[train], len(ids))
    return Preparation(
        tuple(columns),
        scale,
        missing,
        tuple(ids),
        tuple(up + names for names in names_up),
        down + names_down,
        dropped,
    )


def _statistics(
    values: np.ndarray, name: str, rows: Rows, ids: Sequence[ClientId], scale: str, fill: str
) -> dict[str, tuple[float, ...]]:
    """Fill, centre and spread of a column of numbers, by its values in the training rows."""
    with np.errstate(over="ignore", invalid="ignore"):
        mean = rows.mean(values)
        deviation = rows.deviation(values, mean)
        median = rows.median(values) if fill == "median" else mean
    if not np.isfinite([*mean, *deviation, *median]).all():
        raise SettingError(
            f"column {name!r} holds numbers too large for a mean and a variance, "
            f"up to {np.nanmax(np.abs(values)):g}; divide it, or leave it out: --drop {name}"
        )
    empty = np.flatnonzero(rows.counts(values) == 0).tolist() if rows.own else []
    if len(empty):
        note(
            f"column {name!r} has no value in the training rows of {len(empty):,} clients "
            f"({listed(ids[k] for k in empty)}): missing values are zero there, others unscaled"
        )
    none = np.zeros_like(mean)
    filled = {"mean": mean, "median": median, "zero": none}.get(fill, none[:0])
    if scale == "none":
        mean, deviation = none, none + 1.0
    return {
        "fill": tuple(filled.tolist()),
        "centre": tuple(mean.tolist()),
        "spread": tuple(deviation.tolist()),
    }


def _with(column: Column, statistics: dict[str, tuple[float, ...]]) -> Column:
    fill, centre, spread = (statistics[name] for name in ("fill", "centre", "spread"))
    return replace(column, fill=fill, centre=centre, spread=spread)


def extend(
    made: Preparation,
    frame: pd.DataFrame,
    ids: Sequence[ClientId],
    client: np.ndarray,
    train: np.ndarray,
) -> Preparation:
    """The same preparation for clients that came later.

    With scale "client", those that it does not know get statistics of their own training rows.
    """
    if made.scale != "client":
        return made
    known = {str(id) for id in made.clients}
    new = [k for k, id in enumerate(ids) if str(id) not in known]
    if not new:
        return made
    chosen = train & np.isin(client, new)
    rows = Rows(np.searchsorted(new, client[chosen]), len(new), own=True)
    added = [ids[k] for k in new]
    fill = made.missing.partition("+")[0]
    columns = []
    for column in made.columns:
        if column.kind != CATEGORY:
            values = column.read(frame[column.name])[chosen]
            more = _statistics(values, column.name, rows, added, made.scale, fill)
            column = _with(column, {name: getattr(column, name) + more[name] for name in more})
        columns.append(column)
    return replace(
        made,
        columns=tuple(columns),
        clients=(*made.clients, *added),
        bytes_up=(*made.bytes_up, *[0] * len(added)),
    )
