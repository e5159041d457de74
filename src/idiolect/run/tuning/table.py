"""The settings of a search side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
    """The best setting of every method, those tied with it, and the next ones, up to `most`."""
    from rich.table import Table
    from rich.text import Text

    criterion = searches[names[0]].criterion
    table = Table(title=f"settings by {criterion}", width=width, title_style="bold")
    table.add_column("method")
    table.add_column("settings", overflow="fold")
    for column in ("validation", "behind best"):
        table.add_column(column, justify="right", no_wrap=True)
    for name in names:
        standings = searches[name].standings(name)
        for number, one in enumerate(standings[:most]):
            label = shown(name) if not number else ""
            table.add_row(Text(label), Text(_varied(one)), _figure(one), _behind(one, number))
        if len(standings) > most:
            table.add_row("", f"... {len(standings) - most} more: table.csv", "", "")
        table.add_section()
    table.caption = "± one standard error of the difference; = as good as the best within it"
    table.caption_justify = "left"
    return table


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
