"""Tables of results: one line per method, as many columns as the terminal has room for.

rich is imported where a table is made: `import idiolect` does not wait for it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.text import shown
from ..data.federation import Federation
from ..host.scores import majority, summarise
from .captions import caption, collapsed
from .figures import count, goal, number, short_size, size
from .goals import Goals

if TYPE_CHECKING:
    from rich.table import Table

Row = dict[str, Any]  # the summary of a result


def majority_row(federation: Federation) -> Row:
    """The trivial baseline as a row: each client predicts its own most frequent training class."""
    scores = summarise(majority(federation))
    figures = {
        name: {
            "mean": scores[name],
            "variance": scores[f"{name}_variance"],
            "worst10": scores[f"{name}_worst10"],
            "ci95": None,
        }
        for name in ("accuracy", "loss")
    }
    return {
        "method": "majority",
        "label": "majority class",
        "rounds": 0,
        "seeds": [],
        **figures,
        "bytes": {"up": 0, "down": 0},
        "values": {"up": 0, "down": 0},
        "gradients_per_client": 0,
        "seconds": 0.0,
        "rejected": 0,
    }


# -- columns ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Column:
    """A column of figures; those with the highest `rank` are left out first, rank 0 never."""

    heading: str
    rank: int
    cell: Callable[[Row], str]

    def width(self, rows: Sequence[Row]) -> int:
        from rich.cells import cell_len

        return max(cell_len(text) for text in (self.heading, *map(self.cell, rows)))


def _figure(what: str, which: str) -> Callable[[Row], str]:
    return lambda r: "★" if collapsed(r) else number(r[what][which])


def _malicious(r: Row) -> str:
    return str(r["malicious"]["clients"] if "malicious" in r else 0) if r["seeds"] else "–"


BEFORE_GOALS = (
    Column("accuracy", 0, _figure("accuracy", "mean")),
    Column("± 95 %", 3, _figure("accuracy", "ci95")),
    Column("variance", 6, _figure("accuracy", "variance")),
    Column("worst 10 %", 7, _figure("accuracy", "worst10")),
    Column("loss", 8, _figure("loss", "mean")),
)
MALICIOUS = Column("malicious", 1, _malicious)
AFTER_GOALS = (
    Column("sent up", 5, lambda r: size(r["bytes"]["up"])),
    Column("sent down", 4, lambda r: size(r["bytes"]["down"])),
    Column("gradients", 2, lambda r: count(r["gradients_per_client"])),
    Column("seconds", 9, lambda r: f"{r['seconds']:.1f}"),
)
LONGEST = 400  # characters of a name that are shown
METHOD_WIDTH = 14  # kept for the names of the methods; longer ones are folded


def _goal_columns(goals: Goals) -> list[Column]:
    """The papers' two columns, where they are asked for."""
    in_bytes = goals.count == "bytes"
    show = size if in_bytes else count
    columns = []
    if goals.budget:
        budget = short_size(goals.budget) if in_bytes else f"{goals.budget:,} values"
        key = goals.key("at_budget")
        columns.append(Column(f"accuracy at {budget}", 0, lambda r: goal(r.get(key), number)))
    if goals.target:
        heading = f"{goals.count} to {goals.target:g}"
        target_key = goals.key("to_target")
        columns.append(Column(heading, 0, lambda r: goal(r.get(target_key), show)))
    return columns


def _taken(columns: Sequence[Column], rows: Sequence[Row]) -> int:
    """The width of the columns: two blanks before each, one at either edge of the table."""
    return 2 + sum(2 + c.width(rows) for c in columns)


def _fitting(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[Column]:
    """The columns that fit beside the names of the methods: a column is left out, never cut."""
    kept = list(columns)
    for least in sorted((c for c in columns if c.rank), key=lambda c: -c.rank):
        if METHOD_WIDTH + _taken(kept, rows) > width:
            kept.remove(least)
    return kept


# -- tables -------------------------------------------------------------------------------------
def results_table(
    rows: list[Row], title: str | None = None, width: int = 140, goals: Goals | None = None
) -> Table:
    """One line per method: accuracy with its interval, fairness, loss, bytes and compute.

    A narrow terminal shows fewer columns.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    goals = goals or Goals()
    table = Table(
        title=Text(shown(title, LONGEST), style="table.title") if title else None,
        caption=Text(caption(rows, goals), style="table.caption"),
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1),
        collapse_padding=True,
        pad_edge=False,
    )
    malicious = [MALICIOUS] if any("malicious" in r for r in rows) else []
    columns = [*BEFORE_GOALS, *malicious, *_goal_columns(goals), *AFTER_GOALS]
    kept = _fitting(columns, rows, width)
    names = min(METHOD_WIDTH, max(1, width - _taken(kept, rows)))  # names are folded, not figures
    table.add_column("method", overflow="fold", min_width=names)
    for column in kept:
        table.add_column(column.heading, justify="right", no_wrap=True)
    for r in rows:
        name = Text(shown(r.get("label") or r["method"], LONGEST))
        table.add_row(name, *(Text(column.cell(r)) for column in kept))
    return table


def render(table: Table, width: int = 140) -> str:
    """The table as text."""
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue().rstrip()
