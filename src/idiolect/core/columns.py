"""Tables as data, whose text fits a terminal: a column is folded at words or left out and named.

rich is imported where a table is made: `import idiolect` does not wait for it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .text import shown

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

LONGEST = 400  # characters of a name that are shown
LONGEST_WORD = 24  # longer words of a text are broken
GAP = 2  # blanks between columns; one more at either edge of a table


@dataclass(frozen=True)
class Column:
    """A column of a table: figures, which are shown whole, or words, which are folded.

    Those with the highest `rank` are left out first. Of rank 0 are those that stay to the end.
    """

    heading: str
    rank: float
    cell: Callable[[Any], str]
    words: bool = False
    least: int = 0  # the width that words need; 0 = that of the longest one

    def width(self, rows: Sequence[Any]) -> int:
        """The room it needs: all of a figure, the longest of words."""
        from rich.cells import cell_len

        texts = [self.heading, *map(self.cell, rows)]
        if not self.words:
            return max(cell_len(line) for text in texts for line in text.split("\n"))
        longest = max((cell_len(word) for text in texts for word in text.split()), default=1)
        return min(longest, self.least or LONGEST_WORD)


def words(heading: str, key: str, rank: float = 0) -> Column:
    """A column of words, from rows that are plain data."""
    return Column(heading, rank, lambda row: shown(row[key]), words=True)


def fitting(
    columns: Sequence[Column], rows: Sequence[Any], width: int
) -> tuple[list[Column], list[Column]]:
    """The columns that fit, and those that are left out.

    The first column stays, and of the others at least the first of rank 0.
    """
    widths = {id(c): c.width(rows) for c in columns}
    shown_columns = list(columns)
    ranked = sorted((c for c in columns[1:] if c.rank), key=lambda c: -c.rank)
    last = [c for c in columns[1:] if not c.rank][:0:-1]
    for least in (*ranked, *last):
        if _taken(shown_columns, [widths[id(c)] for c in shown_columns]) <= width:
            break
        shown_columns.remove(least)
    return shown_columns, [c for c in columns if c not in shown_columns]


def _taken(columns: Sequence[Column], widths: Sequence[int]) -> int:
    """The width of a table; rich pads words in the last column on their right."""
    return sum(widths) + GAP * len(columns) + columns[-1].words


def left_out(columns: Sequence[Column]) -> str:
    """The note on columns without room; "" where there are none.

    >>> left_out([Column("loss", 1, str), Column("seconds", 2, str)])
    'no room for: loss, seconds (a wider terminal or --json shows them)'
    """
    if not columns:
        return ""
    names = ", ".join(shown(c.heading, 60) for c in columns)
    return f"no room for: {names} (a wider terminal or --json shows them)"


def _widths(columns: Sequence[Column], rows: Sequence[Any], width: int) -> list[int]:
    """The width of each column: words share what figures leave, by how long they are."""
    widths = [c.width(rows) for c in columns]
    whole = [replace(c, words=False).width(rows) for c in columns]  # without a fold
    folded = [at for at, c in enumerate(columns) if c.words]
    spare = width - _taken(columns, widths)
    while spare > 0 and (more := [at for at in folded if widths[at] < whole[at]]):
        widths[max(more, key=lambda at: whole[at] / widths[at])] += 1
        spare -= 1
    while spare < 0 and (more := [at for at in folded if widths[at] > 1]):
        # figures stay whole, even where a word must be broken for them
        widths[max(more, key=lambda at: widths[at])] -= 1
        spare += 1
    return widths


@dataclass(frozen=True)
class FittedTable:
    """A table as data. It prints itself as wide as the terminal is, or as `width` says.

    What has no room is named at the end of the caption.

    >>> table = FittedTable([words("name", "name")], [{"name": "ditto"}])
    >>> table.cells()
    [['ditto']]
    """

    columns: Sequence[Column]
    rows: Sequence[Any]
    title: str = ""
    caption: str = ""
    sections: bool = False  # a line between rows
    width: int = 0  # 0 = that of the terminal

    def cells(self) -> list[list[str]]:
        """All texts, row by row."""
        return [[column.cell(row) for column in self.columns] for row in self.rows]

    def fitted(self, width: int) -> Table:
        """The columns that have room, for rich."""
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        columns, dropped = fitting(self.columns, self.rows, width)
        notes = "\n".join(filter(None, (self.caption, left_out(dropped))))
        table = Table(
            title=Text(self.title, style="table.title", overflow="fold") if self.title else None,
            caption=Text(notes, style="table.caption", overflow="fold") if notes else None,
            title_justify="left",
            caption_justify="left",
            box=SIMPLE_HEAD,
            padding=(0, 1),
            collapse_padding=True,
            pad_edge=False,
        )
        for column, room in zip(columns, _widths(columns, self.rows, width), strict=True):
            if column.words:
                table.add_column(Text(column.heading), overflow="fold", width=room)
            else:
                table.add_column(Text(column.heading), justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(*(Text(c.cell(row)) for c in columns), end_section=self.sections)
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.fitted(self.width or options.max_width)

    def __str__(self) -> str:
        return render(self)


def render(table: Any, width: int = 140) -> str:
    """What rich prints of a table, as text."""
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue().rstrip()
