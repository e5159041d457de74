"""The result of a tuning: its tables, files and plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.columns import Column, fitted_table
from ..core.documents import plain, toml_sections
from ..core.files import write_atomic, write_csv, write_json
from ..core.knobs import build, check, kinds_of, written
from ..core.text import shown
from ..data import DATASETS
from ..method import Method
from ..methods import METHODS
from ..models import MODELS, options_of
from ..report.tables import render
from ..run.directory import on_disk
from ..run.plan import Plan
from ..run.result import Result
from ..run.settings import Settings
from .comparison import Comparison
from .grids import Contender
from .search import Cost, Criterion, Search, Standing

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
        choices = {}
        for contender in self.contenders:
            best = self.searches[contender.name].best(contender.name)
            own = {**contender.own, **contender.points[best].run}
            choices[contender.name] = (best.method, {**self.settings, **own})
        return choices

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
        """How much each field matters, for every method; {} where it cannot be estimated."""
        return {name: self.searches[name].importance(name) for name in self.names}

    @property
    def ties(self) -> dict[str, list[Standing]]:
        """The settings within one standard error of the best, for every method."""
        return {name: self.searches[name].ties(name) for name in self.names}

    @property
    def cost(self) -> Cost:
        """Of the search; the final run says its own."""
        searches = list(dict.fromkeys(self.searches[name] for name in self.names))
        return sum((search.cost for search in searches[1:]), searches[0].cost)

    def rows(self) -> list[dict[str, Any]]:
        """A line per setting that was tried, the best of each method first."""
        searches = dict.fromkeys(self.searches[name] for name in self.names)
        return [row for search in searches for row in search.rows()]

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
        columns = list(dict.fromkeys(name for row in rows for name in row))
        with on_disk(TABLE):
            write_csv(directory / TABLE, rows, columns)
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
                listing = ", ".join(f"{field} {100 * s:.0f} %" for field, s in shares.items())
                lines.append(f"  what matters: {listing} of the variance over settings")
        lines.append(f"cost of the search: {self.cost}")
        return lines

    def __repr__(self) -> str:
        return f"Tuned({', '.join(map(shown, self.names))}; best {shown(self.winner)})"


# -- The settings of a search side by side --

if TYPE_CHECKING:
    from rich.table import Table


def heading(criterion: Criterion, seeds: Mapping[str, Sequence[int]]) -> str:
    """What was done, in a line."""
    seed_lists = {what: ", ".join(map(str, some)) for what, some in seeds.items()}
    return (
        f"chosen by {criterion} of seed {seed_lists['search']}; "
        f"final run on test data with seed {seed_lists['final']}"
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


# -- The chosen settings as a file that `idiolect run --config` takes --


def settings_text(
    name: str,
    method: Method,
    run: Mapping[str, Any],
    plan: Plan | None,
    why: str,
    shown_fields: Collection[str] = (),
) -> str:
    """[method] and [run]; [data], [model] and [task] too where they have names.

    `shown_fields`: fields of the method that are written even at their default.
    """
    sections = {
        "method": {"name": name, **_changed(name, method, shown_fields)},
        "run": _typed_run(run),
    }
    if plan is not None:
        sections["run"] |= {"loss": plan.loss} if plan.loss else {}
        sections["task"] = dict(plan.task_options)
        sections["data"] = {
            "name": plan.data,
            **_typed(DATASETS.find(plan.data), plan.data_options),
        }
        if plan.model:
            options = _typed(options_of(MODELS.find(plan.model)), plan.model_options)
            sections["model"] = {"name": plan.model, **options}
    comment = "".join(f"# {line}\n" for line in why.splitlines())
    return comment + toml_sections(sections)


def _changed(name: str, method: Method, shown_fields: Collection[str]) -> dict[str, Any]:
    """The fields to show, and those that differ from what the name alone gives."""
    fixed = METHODS.find(name)[1] if name in METHODS.known() else {}
    values = method.as_dict()
    return {
        f.name: values[f.name]
        for f in dataclasses.fields(method)
        if f.name in shown_fields
        or (f.metadata and getattr(method, f.name) != fixed.get(f.name, f.default))
    }


def _typed_run(run: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as given, in their types; but for targets, which would stop the run."""
    values = build(Settings, dict(run), "run").as_dict()
    names = [name for name in run if name not in ("target_value",)]
    return {name: values[name] for name in names if values[name] is not None}


def _typed(cls: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options in the types of their fields: the command line has them as text."""
    fields = {f.name: f for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}
    kinds = kinds_of(cls) if fields else {}
    return {
        name: written(fields[name], check(name, value, fields[name], kinds[name]))
        if name in fields and fields[name].metadata
        else value
        for name, value in options.items()
    }
