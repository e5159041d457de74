"""Tables of figures by subgroup: a row per method and subgroup, and within clients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..core.columns import LONGEST, Column, FittedTable, render
from ..core.documents import plain
from ..core.text import plural, shown
from .clients import short_names
from .format import count, number, signed
from .subgroups import BETTER, PERSONAL, SHARED, TOO_FEW, WORSE, directions
from .verdicts import CANNOT_TELL, CLIENT_SAMPLES

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

MOST_CLIENTS = 20  # rows of the table within clients; the others are in subgroups.csv
ORDER = (WORSE, BETTER, CANNOT_TELL, TOO_FEW)
Row = dict[str, Any]


@dataclass(frozen=True)
class SubgroupsView:
    """Figures by subgroup under one method or several. It prints itself, and fits the terminal."""

    rows: list[Row]  # as `over_seeds` has them, with `method` and its short `name`
    figure: str  # the one that the run is about
    higher: bool  # whether higher is better
    inputs: dict[str, bool]  # column -> whether it is an input too; {} where nobody knows

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def columns(self) -> list[str]:
        """The columns of subgroups."""
        return list(dict.fromkeys(row["column"] for row in self.rows))

    @property
    def overall(self) -> list[Row]:
        """The rows over all clients."""
        return [row for row in self.rows if "client" not in row]

    def within(self, column: str) -> list[Row]:
        """The rows within clients of a column, those served clearly worse first."""
        rows = [r for r in self._about(column) if "client" in r]
        sign = 1 if self.higher else -1

        def order(row: Row) -> tuple[int, float]:
            gap = row["difference"]
            return ORDER.index(row["verdict"]), math.inf if math.isnan(gap) else sign * gap

        return sorted(rows, key=order)

    def as_dict(self) -> list[Row]:
        """Plain data, for `--json`: the rows over all clients."""
        return plain(self.overall)

    def tables(self, clients: bool = False) -> list[FittedTable]:
        """A table per column over all clients; with `clients`, one within clients each, too."""
        tables = []
        for column in self.columns:
            tables.append(self._overall_table(column))
            if clients and self.within(column):
                tables.append(self._clients_table(column))
        return tables

    def main_rows(self, column: str) -> list[Row]:
        """The rows of a column over all clients that have the main figure."""
        return [row for row in self._about(column) if "client" not in row]

    def _about(self, column: str) -> list[Row]:
        return [r for r in self.rows if r["column"] == column and r["figure"] == self.figure]

    def _overall_table(self, column: str) -> FittedTable:
        rows = self.main_rows(column)
        if self._is_one_model(rows):
            rows = [row for row in rows if row["model"] == PERSONAL]
        several = len({row["method"] for row in rows}) > 1
        columns = []
        if several:
            columns.append(Column("method", 0, lambda r: shown(r["name"], LONGEST), words=True))
        if any(row["model"] == SHARED for row in rows):
            columns.append(Column("model", 0, lambda r: r["model"], words=True))
        columns += self._figure_columns(column, rows)
        title = f"{self.figure} by {shown(column, 60)}, on test data of all clients"
        return FittedTable(columns, rows, title, "\n".join(self.remarks(column, rows)))

    def _is_one_model(self, rows: Sequence[Row]) -> bool:
        """Whether the shared model has the same figures as the personal ones: these are copies."""
        names = ("subgroup", "value", "low", "high")
        personal, shared = (
            [[str(row[name]) for name in names] for row in rows if row["model"] == model]
            for model in (PERSONAL, SHARED)
        )
        return personal == shared

    def _figure_columns(self, column: str, rows: Sequence[Row]) -> list[Column]:
        columns = [
            Column(shown(column, 30), 0, lambda r: shown(r["subgroup"], 60), words=True, least=10),
            Column("samples", 3, lambda r: count(r["samples"])),
        ]
        if any("groups" in row for row in rows):
            columns.append(Column("groups", 2, lambda r: count(r["groups"])))
        columns += [
            Column(shown(self.figure, 30), 0, lambda r: number(r["value"])),
            Column("95 % interval", 1, lambda r: interval_text(r["low"], r["high"], number)),
            Column("difference", 4, lambda r: signed(r["difference"])),
            Column(
                "its interval",
                5,
                lambda r: interval_text(r["difference_low"], r["difference_high"], signed),
            ),
            Column("verdict", 0, lambda r: r["verdict"]),
        ]
        return columns

    def remarks(self, column: str, rows: Sequence[Row]) -> list[str]:
        """What these rows of a column mean, a line each."""
        unit = "group" if any("groups" in row for row in rows) else "sample"
        lines = [
            f"intervals count {unit}s; better, worse: 5 % of those called may be wrong",
            "difference: from all other test samples; clients that have more of one subgroup can "
            "be the reason",
        ]
        if column in self.inputs:
            is_input = self.inputs[column]
            lines.append(f"the column {shown(column, 60)} is {'an' if is_input else 'no'} input")
        if any(row["verdict"] == TOO_FEW for row in rows):
            lines.append(f"too few: fewer than {CLIENT_SAMPLES} {unit}s")
        if line := self._clients_line(column):
            lines.append(line)
        return lines

    def _clients_line(self, column: str) -> str:
        """In how many clients a subgroup is clearly served worse, under the first method."""
        first = self.rows[0]["name"]
        rows = [r for r in self.within(column) if r["name"] == first]
        judged = {str(r["client"]) for r in rows if math.isfinite(r["difference"])}
        if not judged:
            return ""
        by = f" under {shown(first, 60)}" if len({r["method"] for r in self.rows}) > 1 else ""
        worse = [f"{r['client']} ({r['subgroup']})" for r in rows if r["verdict"] == WORSE]
        clients = len({str(r["client"]) for r in rows if r["verdict"] == WORSE})
        which = f": {shown(_joined(worse))}" if worse else ""
        return (
            f"within clients{by}: clearly worse for a subgroup in {clients:,} of "
            f"{plural(len(judged), 'client')} with enough samples{which}"
        )

    def _clients_table(self, column: str) -> FittedTable:
        every = self.within(column)
        rows = every[:MOST_CLIENTS]
        columns = [Column("client", 0, lambda r: shown(r["client"], LONGEST), words=True, least=10)]
        if len({row["method"] for row in every}) > 1:
            columns.insert(0, Column("method", 0, lambda r: shown(r["name"], LONGEST), True))
        columns += self._figure_columns(column, rows)
        more = f"; {len(rows)} of {len(every):,} rows, the others in subgroups.csv"
        title = f"{self.figure} by {shown(column, 60)} within clients"
        return FittedTable(columns, rows, title + (more if len(every) > len(rows) else ""))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self.tables()

    def __str__(self) -> str:
        return "\n".join(render(table, 100) for table in self.tables(clients=True))


def interval_text(low: float, high: float, form: Callable[[float], str]) -> str:
    """An interval, or a dash where there is none."""
    return f"{form(low)} to {form(high)}" if math.isfinite(low + high) else "–"


def _joined(texts: Sequence[str], most: int = 3) -> str:
    rest = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {rest:,} more" if rest > 0 else "")


def subgroups_view(result: Any) -> SubgroupsView:
    """Figures by subgroup of a result or of a comparison; it is false where there are none.

    >>> import idiolect as il
    >>> import torch
    >>> x, y = torch.randn(80, 3), torch.arange(80) % 2
    >>> federation = il.Federation.from_arrays(
    ...     x, y, ["a", "b"] * 40, subgroup={"sex": ["f", "f", "m", "m"] * 20}, test=0.5
    ... )
    >>> result = il.run(il.FedAvg(), il.Task(torch.nn.Linear(3, 2)), federation, rounds=1)
    >>> rows = result.subgroups.main_rows("sex")
    >>> [(row["subgroup"], row["samples"]) for row in rows if row["model"] == "personal"]
    [('f', 19), ('m', 21)]
    """
    several = hasattr(result, "results")
    results = list(result.results) if several else [result]
    labels = list(result.labels) if several else [result.label]
    records = [one.record for one in results]
    names = short_names([record.method for record in records])
    rows = [
        {"method": label, "name": name, **row}
        for label, name, record in zip(labels, names, records, strict=True)
        for row in record.subgroups()
        if row["model"] == PERSONAL or not several
    ]
    first = records[0]
    preparation = first.data.get("preparation")
    features = [str(c.get("name")) for c in (preparation or {}).get("columns", ())]
    columns = dict.fromkeys(row["column"] for row in rows)
    inputs = {column: column in features for column in columns} if preparation else {}
    return SubgroupsView(rows, first.figure, directions(first.metrics)[first.figure], inputs)
