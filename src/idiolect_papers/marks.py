"""Published figures beside ours: does a cell agree, keep its order, or differ?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from idiolect import interval

AGREES, ORDER, DIFFERS, NOT_RUN = "agrees", "same order", "differs", "not run"
MARKS = {AGREES: "✓", ORDER: "~", DIFFERS: "✗", NOT_RUN: "·"}
WIDE = 0.1  # of a mean: our interval counts for no more
KEPT = 0.75  # of the methods that the paper separates from this one: the order is kept


@dataclass(frozen=True)
class Figure:
    """A mean with half its interval; a mean of None is a ★: collapsed, or not reached."""

    mean: float | None
    half: float | None = None  # None: not printed, or one run only
    digits: int = 4  # decimals as printed (-3: thousands): no more is known of it
    ours: bool = False

    @property
    def reach(self) -> float:
        """How far the true mean may be from this one.

        Of ours at most `WIDE` of the mean: with an interval of two seeds everything would agree.
        """
        half = self.half or 0.0
        if self.ours and self.mean is not None:
            half = min(half, WIDE * abs(self.mean))
        return half + 0.5 * 10.0**-self.digits

    @classmethod
    def of(cls, values: Sequence[float | None], digits: int = 4) -> Figure:
        """The mean over seeds with the 95 % interval; a ★ if a run has none."""
        numbers = [v for v in values if v is not None and math.isfinite(v)]
        if not numbers or len(numbers) < len(values):
            return cls(None, None, digits, True)
        return cls(sum(numbers) / len(numbers), interval(numbers), digits, True)

    def __str__(self) -> str:
        if self.mean is None:
            return "★"
        form = f",.{self.digits}f" if self.digits >= 0 else ".4g"
        spread = "" if self.half is None else f" ± {self.half:{form}}"
        return f"{self.mean:{form}}{spread}"


Figures = Mapping[str, Figure | None]  # of one row, by column


@dataclass(frozen=True)
class Cell:
    """One figure of a published table, and ours."""

    table: str  # its title: a data set
    row: str  # a method
    column: str  # what is measured
    paper: Figure | None  # None: the paper has no such row
    ours: Figure | None  # None: not run at this scale
    stand_in: bool = False  # on other data than the paper's: it may keep the order, not agree


def beside(
    title: str,
    published: Mapping[str, Figures],
    ours: Mapping[str, Figures],
    columns: Sequence[str],
    stand_in: bool = False,
) -> list[Cell]:
    """The cells of a table: the rows of the paper, then those of ours that it lacks."""
    return [
        Cell(
            title,
            row,
            column,
            published.get(row, {}).get(column),
            ours.get(row, {}).get(column),
            stand_in,
        )
        for row in dict.fromkeys([*published, *ours])
        for column in columns
    ]


def apart(a: Figure, b: Figure) -> int:
    """1 where a is above b, -1 where it is below, 0 where their intervals overlap.

    >>> apart(Figure(0.9, 0.01), Figure(0.8, 0.01)), apart(Figure(0.9, 0.1), Figure(0.85))
    (1, 0)
    """
    if a.mean is None or b.mean is None:
        return (a.mean is not None) - (b.mean is not None)
    if abs(a.mean - b.mean) <= a.reach + b.reach:
        return 0
    return 1 if a.mean > b.mean else -1


def marked(cells: Sequence[Cell]) -> list[str]:
    """The mark of every cell; "" where there is nothing to compare with.

    A cell agrees where the paper's interval and ours overlap. It has the same order where ours is
    not on the other side of at least `KEPT` of the rows that the paper separates from it.

    >>> paper = {"a": 0.9, "b": 0.8, "c": 0.7}
    >>> ours = {"a": 0.9, "b": 0.6, "c": 0.5}
    >>> marked([Cell("t", r, "accuracy", Figure(paper[r]), Figure(ours[r])) for r in paper])
    ['agrees', 'same order', 'same order']
    """
    columns: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        columns.setdefault((cell.table, cell.column), []).append(cell)
    return [_mark(cell, columns[cell.table, cell.column]) for cell in cells]


def _mark(cell: Cell, column: Sequence[Cell]) -> str:
    if cell.paper is None:
        return ""
    if cell.ours is None:
        return NOT_RUN
    if apart(cell.paper, cell.ours) == 0 and not cell.stand_in:
        return AGREES
    agreements = total = 0
    for other in column:
        if other is cell or other.paper is None or other.ours is None:
            continue
        side = apart(cell.paper, other.paper)
        if side:
            total += 1
            agreements += side * apart(cell.ours, other.ours) >= 0
    return ORDER if total and agreements >= KEPT * total else DIFFERS


def tables(
    cells: Sequence[Cell], marks: Sequence[str], more: Mapping[tuple[str, str], Mapping[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """A table per title: a row per method, and for each column the paper, ours and the mark.

    `more` has columns of ours alone, by title and row.
    """
    by_title: dict[str, dict[str, dict[str, Any]]] = {}
    for cell, mark in zip(cells, marks, strict=True):
        row = by_title.setdefault(cell.table, {}).setdefault(cell.row, {"method": cell.row})
        row[f"{cell.column}: paper"] = "–" if cell.paper is None else str(cell.paper)
        ours = "–" if cell.ours is None else str(cell.ours)
        row[f"{cell.column}: here"] = f"{ours} {MARKS.get(mark, '')}".rstrip()
    for (title, name), own in more.items():
        by_title[title][name].update(own)
    return {title: list(rows.values()) for title, rows in by_title.items()}
