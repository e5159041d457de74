"""Columns that a table of results has on request alone, and the notes that they need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..core.columns import Column
from ..core.knobs import nearest
from .figures import number

Row = dict[str, Any]
BEST_AFTER_20 = "best-after-20"
COLLABORATION = "collaboration"
ALSO = {
    BEST_AFTER_20: "the best round from the 20th on, chosen on test data, with its variance",
    COLLABORATION: "correlation over clients of their figures with those of Local (compare)",
}


def read_also(given: str | Sequence[str] | None) -> tuple[str, ...]:
    """The columns that were asked for.

    >>> read_also("best-after-20, collaboration"), read_also(None)
    (('best-after-20', 'collaboration'), ())
    """
    parts = given.split(",") if isinstance(given, str) else (given or ())
    names = tuple(name.strip() for name in parts if name.strip())
    for name in names:
        if name not in ALSO:
            raise nearest(name, ALSO, "also")
    return names


def also_columns(names: Sequence[str], rows: Sequence[Row]) -> list[Column]:
    """The columns of these names."""
    columns: list[Column] = []
    if BEST_AFTER_20 in names:
        figure = "accuracy" if any(_known(_best(r).get("accuracy")) for r in rows) else "loss"
        spread = "variance" if figure == "accuracy" else "loss_variance"
        columns += [
            Column("best on test", 0, lambda r: number(_best(r).get(figure))),
            Column("round", 0, lambda r: _rounds(_best(r).get("rounds"))),
            Column("its variance", 0, lambda r: number(_best(r).get(spread))),
        ]
    if COLLABORATION in names:
        columns.append(Column("collaboration", 0, _collaboration))
    return columns


def also_notes(names: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """What these columns are."""
    notes = []
    if BEST_AFTER_20 in names:
        told = next((_best(r)["note"] for r in rows if _best(r)), "")
        notes.append(f"best on test: {told}; its variance is that of the same round")
    if COLLABORATION in names:
        told = next((r["collaboration_fairness"] for r in rows if _fairness(r)), None)
        what = (
            f"Pearson's correlation over clients of their {told['figure']} with that of "
            f"{told['alone']}; – where one of the two is the same for all clients in some seed"
            if told
            else "it needs a row of Local in the comparison"
        )
        notes.append(f"collaboration (lp-proj, C.7.3): {what}")
    return notes


def _best(row: Row) -> Row:
    return row.get("best_after_20") or {}


def _fairness(row: Row) -> Row:
    return row.get("collaboration_fairness") or {}


def _known(value: float | None) -> bool:
    return value is not None and not math.isnan(value)


def _rounds(rounds: Sequence[int | None] | None) -> str:
    return ", ".join("–" if r is None else str(r) for r in rounds) if rounds else "–"


def _collaboration(row: Row) -> str:
    found = _fairness(row)
    if not _known(found.get("mean")):
        return "–"
    half = found.get("ci95")
    return number(found["mean"]) + (f" ± {number(half)}" if _known(half) else "")
