"""The settings of a search side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...core.columns import Column, fitted_table
from ...core.text import shown
from .criterion import Criterion
from .search import Search, Standing

if TYPE_CHECKING:
    from rich.table import Table


def heading(criterion: Criterion, seeds: Mapping[str, Sequence[int]]) -> str:
    """What was done, in a line."""
    told = {what: ", ".join(map(str, some)) for what, some in seeds.items()}
    return (
        f"chosen by {criterion} of seed {told['search']}; "
        f"final run on test data with seed {told['final']}"
    )


def standings_table(
    searches: Mapping[str, Search], names: Sequence[str], most: int, width: int
) -> Table:
    """The best setting of every method and the next ones, `most` of each."""
    rows = []
    hidden = 0
    for name in names:
        standings = searches[name].standings(name)
        hidden += len(standings[most:])
        for number, one in enumerate(standings[:most]):
            label = "" if number else shown(name)
            rows.append((label, _varied(one), _figure(one), _behind(one, number)))
    caption = "± one standard error of the difference; = within it, as good as the best"
    if hidden:
        caption += f"\n{hidden} more settings are in table.csv and rows()"
    columns = [
        Column("method", 0, lambda row: row[0], words=True),
        Column("settings", 0, lambda row: row[1], words=True),
        Column("validation", 0, lambda row: row[2]),
        Column("behind the best", 1, lambda row: row[3]),
    ]
    title = f"settings by {searches[names[0]].criterion}"
    return fitted_table(columns, rows, width, title, caption)


def _varied(one: Standing) -> str:
    return " ".join(f"{name}={shown(_text(v))}" for name, v in one.setting.varied.items()) or "–"


def _figure(one: Standing) -> str:
    return "not finite" if one.figure is None else f"{one.figure:.4f}"


def _behind(one: Standing, number: int) -> str:
    if not number:
        return "best"
    if one.figure is None:
        return ""
    error = f" ± {one.error:.4f}" if one.error == one.error else ""
    return f"{'= ' if one.tied else ''}{one.gap:.4f}{error}"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
