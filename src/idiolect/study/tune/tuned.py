"""What a tuning found."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.documents import plain
from ...core.files import write_atomic, write_json
from ...core.text import shown
from ...method import Method
from ...report.tables import render
from ...run.directory import on_disk
from ...run.result import Result
from ..comparison import Comparison
from .contender import Contender
from .cost import Cost
from .files import settings_text
from .search import Search, Standing
from .table import heading, standings_table

if TYPE_CHECKING:
    from rich.table import Table

TABLE = "table.csv"
RESULT = "tuned.json"
LISTED = 10  # settings that a table lists


@dataclass(frozen=True, eq=False)
class Tuned:
    """The best settings of every method, how sure that is, and their final runs on test data."""

    contenders: list[Contender]
    searches: Mapping[str, Search]  # by the name of the method
    seeds: Mapping[str, list[int]]  # of the "search" and of the "final" run
    settings: Mapping[str, Any]  # of the final run, that all methods share
    comparison: Comparison

    @property
    def names(self) -> list[str]:
        """The methods, as they were given."""
        return [contender.name for contender in self.contenders]

    @property
    def chosen(self) -> dict[str, tuple[Method, dict[str, Any]]]:
        """The best settings of every method: the method, and the settings of its run."""
        found = {}
        for contender in self.contenders:
            best = self.searches[contender.name].best(contender.name)
            own = {**contender.own, **contender.points[best].run}
            found[contender.name] = (best.method, {**self.settings, **own})
        return found

    @property
    def winner(self) -> str:
        """The method that is best on validation data."""

        def figure(name: str) -> float:
            search = self.searches[name]
            return search.criterion.better(search.standings(name)[0].figure)

        return max(self.names, key=figure)

    @property
    def best(self) -> tuple[Method, dict[str, Any]]:
        """The best method on validation data, and the settings of its run."""
        return self.chosen[self.winner]

    @property
    def result(self) -> Result:
        """The final run of the best method."""
        return self.comparison.results[self.names.index(self.winner)]

    @property
    def importance(self) -> dict[str, dict[str, float]]:
        """How much each field matters, for every method; {} where it cannot be told."""
        return {name: self.searches[name].importance(name) for name in self.names}

    @property
    def ties(self) -> dict[str, list[Standing]]:
        """The settings within one standard error of the best, for every method."""
        return {name: self.searches[name].ties(name) for name in self.names}

    @property
    def cost(self) -> Cost:
        """Of the search; the final run says its own."""
        found = list(dict.fromkeys(self.searches[name] for name in self.names))
        return sum((search.cost for search in found[1:]), found[0].cost)

    def rows(self) -> list[dict[str, Any]]:
        """A line per setting that was tried, the best of each method first."""
        found = dict.fromkeys(self.searches[name] for name in self.names)
        return [row for search in found for row in search.rows()]

    def table(self, width: int = 80) -> Table:
        """The best settings of every method and those that are as good, at most ten of each."""
        return standings_table(self.searches, self.names, LISTED, width)

    def toml(self, name: str = "") -> str:
        """The best settings of a method as a file for `idiolect run --config`."""
        contender = self.contenders[self.names.index(name or self.winner)]
        method, run = self.chosen[contender.name]
        search = self.searches[contender.name]
        best = search.standings(contender.name)[0]
        tried = len([row for row in search.rows() if row["method"] == contender.name])
        why = (
            f"{contender.name}: the best of {tried} settings, {search.criterion} {best.figure:.4f}"
        )
        fields = contender.points[best.setting].fields
        return settings_text(contender.method, method, run, contender.plan, why, fields)

    def file_names(self) -> dict[str, str]:
        """The name of the file of each method's settings."""
        if len(self.names) == 1:
            return {self.names[0]: "best.toml"}
        plain_names = [c.row.replace(":", ".").replace("*", "-star") for c in self.contenders]
        return {
            name: f"best-{plain}.toml"
            if plain_names.count(plain) == 1
            else f"best-{i}-{plain}.toml"
            for i, (name, plain) in enumerate(zip(self.names, plain_names, strict=True))
        }

    def write_choice(self, directory: Path) -> None:
        """The settings files and the table of all settings; before the final run."""
        rows = self.rows()
        names = list(dict.fromkeys(name for row in rows for name in row))
        text = io.StringIO()
        lines = csv.DictWriter(text, names, lineterminator="\n")
        lines.writeheader()
        lines.writerows(rows)
        with on_disk(TABLE):
            write_atomic(directory / TABLE, text.getvalue().encode())
        for name, file in self.file_names().items():
            with on_disk(file):
                write_atomic(directory / file, self.toml(name).encode())

    def write(self, directory: Path) -> None:
        """Everything as plain data, when all is done."""
        with on_disk(RESULT):
            write_json(directory / RESULT, self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Plain data: what `--json` prints."""
        first = self.searches[self.names[0]].criterion
        methods = []
        for name in self.names:
            search = self.searches[name]
            best = search.standings(name)[0]
            method, run = self.chosen[name]
            methods.append(
                {
                    "name": name,
                    "best": {"method": method.as_dict(), "run": dict(run)},
                    "varied": best.setting.varied,
                    "valid": best.figure,
                    "by_seed": list(best.by_seed),
                    "tied": len(search.ties(name)),
                    "ties": [tie.as_dict() for tie in search.ties(name)[:LISTED]],
                    "importance": search.importance(name),
                    "tried": len([r for r in search.rows() if r["method"] == name]),
                }
            )
        return plain(
            {
                "criterion": {"kind": first.kind, "measure": first.measure},
                "seeds": dict(self.seeds),
                "best": self.winner,
                "methods": methods,
                "cost": self.cost.as_dict(),
                "final": self.comparison.summary(),
            }
        )

    def __str__(self) -> str:
        parts = [heading(self.searches[self.names[0]].criterion, self.seeds), render(self.table())]
        parts += [*self.notes(), str(self.comparison)]
        return "\n".join(parts)

    def notes(self) -> list[str]:
        """What the tables do not say: ties, importance, cost."""
        lines = []
        for name in self.names:
            search = self.searches[name]
            tried = len([r for r in search.rows() if r["method"] == name])
            tied = len(search.ties(name))
            stopped = len([r for r in search.stopped if r["method"] == name])
            early = f", {stopped} of them stopped early" if stopped else ""
            many = "no other is" if not tied else f"{tied} other{'s are' if tied > 1 else ' is'}"
            lines.append(
                f"{shown(name)}: {tried} settings tried{early}; {many} within one standard error "
                "of the best"
            )
            shares = search.importance(name)
            if shares:
                told = ", ".join(f"{field} {100 * s:.0f} %" for field, s in shares.items())
                lines.append(f"  what matters: {told} of the variance over settings")
        lines.append(f"cost of the search: {self.cost}")
        return lines

    def __repr__(self) -> str:
        return f"Tuned({', '.join(map(shown, self.names))}; best {shown(self.winner)})"
