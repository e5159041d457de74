"""The numbers that papers print: published/NAME.csv, a file per table.

A cell is a mean, or a mean ± what the paper prints beside it; ★ where a run had no result, ? where
the text of the paper we have is not legible.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from decimal import Decimal
from importlib import resources

from .marks import Figure, Figures


def read_rows(name: str) -> list[dict[str, str]]:
    """The lines of NAME.csv, by column.

    >>> read_rows("lp-proj-table2")[0]["method"]
    'pFedMe'
    """
    text = resources.files(__package__).joinpath("published", f"{name}.csv").read_text("utf-8")
    return list(csv.DictReader(text.splitlines()))


def read_table(
    *names: str, digits: Mapping[str, int] | None = None
) -> dict[str, dict[str, Figures]]:
    """The figures of tables: [data set][method] -> figures by column; "" if there is one data set.

    `digits` are the decimals that are known of the figures of a column.

    >>> str(read_table("lp-proj-table4", "lp-proj-table10")["MNIST"]["Ditto"]["accuracy"])
    '0.9863 ± 0.0004'
    >>> read_table("lp-proj-table4")["Synthetic(1, 1)"]["local"]["accuracy"]
    """
    table: dict[str, dict[str, Figures]] = {}
    for row in (row for name in names for row in read_rows(name)):
        title, method = row.pop("data", ""), row.pop("method")
        figures = {c: read_figure(cell, (digits or {}).get(c)) for c, cell in row.items()}
        table.setdefault(title, {})[method] = figures
    return table


def read_figure(cell: str, digits: int | None = None) -> Figure | None:
    """A cell as a figure; None where it is empty or not legible.

    `digits` are the decimals that are known of it: by default those printed.

    >>> read_figure("0.3500±0.0038"), read_figure("2.582e11"), read_figure("?")
    (Figure(mean=0.35, half=0.0038, digits=4, ours=False), \
Figure(mean=258200000000.0, half=None, digits=-8, ours=False), None)
    """
    if cell in ("", "?"):
        return None
    if cell == "★":
        return Figure(None, None, 4 if digits is None else digits)
    mean, _, half = cell.partition("±")
    if digits is None:
        digits = -int(Decimal(mean).as_tuple().exponent)
    return Figure(float(mean), float(half) if half else None, digits)
