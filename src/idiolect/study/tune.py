"""Which settings? Chosen on validation data: from a paper's grid, a grid, or trials in a space."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

from ..core.columns import Column, FittedTable
from ..core.documents import decode, plain, toml_sections
from ..core.files import on_disk, read_document, write_atomic, write_csv, write_json
from ..core.knobs import SettingError, build, check, kinds_of, written
from ..core.text import PRINT_IT, plural, shown
from ..data import DATASETS
from ..data.federation import Federation
from ..method import Method
from ..methods import METHODS, label_of, name_of
from ..models import MODELS, options_of
from ..report.captions import DIVERGED, diverged
from ..report.format import number
from ..run.plan import AnyMethod, AnyModel, Plan, read_method, read_tasks
from ..run.result import Result
from ..run.settings import Settings
from ..run.typed_settings import RunSettings
from ..task.groups import AnyTask, tasks_of
from .compare import Comparison, compare
from .folders import COMPARE, TUNING, Reporter, begin_folder
from .many import TABLE, Stock, Watch
from .search import Cost, Criterion, Search, Standing, check_validation_data, search_plans
from .space import (
    ANY,
    ONE_FEDERATION,
    Space,
    check_names,
    combinations,
    derived_space,
    grid_of,
    is_compressor,
    papers,
    place_of,
    read_file,
    read_grid,
    read_space,
    refuse_data_and_model,
)
from .tpe import need_optuna, study_search

TRIALS = 50  # in a space, by default
FORMAT = 2  # of tune.json
FINAL = "final"
SEARCH = "search"
RESULT = "tuned.json"
LISTED = 10  # settings that a table lists
Follow = Callable[[int], AbstractContextManager[Reporter]]  # rounds of all final runs -> progress


def tune(
    methods: AnyMethod | Plan | Sequence[AnyMethod | Plan],
    task: AnyModel,
    federation: Federation,
    *,
    grid: str | Mapping[str, Any] | Iterable[str] | None = None,
    space: Mapping[str, Any] | str | Path | None = None,
    trials: int | None = None,
    criterion: str = "pooled",
    search_seeds: int = 1,
    jobs: int = 0,
    directory: str | Path | None = None,
    watch: Watch | None = None,
    follow: Follow | None = None,
    **settings: Unpack[RunSettings],
) -> Tuned:
    """The best settings of each method by validation data, and a final run with them.

    What is tried: `grid`, the grid of a paper ("paper": whichever has the method; "lp-proj",
    "ffgg", "feddeper") or names with lists of values; or `trials` settings of a `space`, names
    with {"low", "high", "log"} or lists, proposed by Optuna; without a space, one is derived from
    the fields of the method. Fields that a method is given with are not varied.

    Settings are chosen by the validation data of `search_seeds` seeds from `seed` on, by
    `criterion`: the chosen metric (accuracy, or the loss of a regression) "pooled" over all
    samples, as a mean over "clients", or over the worst tenth of them, "worst10". The search has no
    test data. The final run has the `seeds` that come after, and includes Local at equal
    gradients.

    The grid is spread over `jobs` processes (0: as many as cores); trials come one after the
    other unless jobs are given. With a directory, an interrupted tuning is resumed.

    >>> import torch
    >>> import idiolect as il
    >>> federation = il.data.load("synthetic", clients=4, samples=60)
    >>> tuned = il.tune("fedavg", torch.nn.Linear(60, 10), federation,
    ...                 grid={"lr": [0.001, 0.3]}, jobs=1, rounds=5)
    >>> method, run = tuned.best
    >>> method.lr, run["seed"], [row["lr"] for row in tuned.rows()]
    (0.3, 1, [0.3, 0.001])
    """
    whole, _ = read_tasks(task, federation)
    specs = [methods] if isinstance(methods, str | Method | Plan | type) else list(methods)
    how = search_options(grid, space, trials, criterion, search_seeds)
    contenders = read_contenders(specs, dict(settings))
    manifest = {
        "methods": [contender.name for contender in contenders],
        "settings": repr(build(Settings, dict(settings), "run")),
        "data": federation.fingerprint(),
    }
    where = None if directory is None else Path(directory)
    return _tune(contenders, whole, federation, how, jobs, where, watch, follow, manifest)


def tune_plans(
    plans: Sequence[Plan],
    how: SearchOptions,
    federation: Federation,
    *,
    jobs: int = 0,
    directory: Path | None = None,
    watch: Watch | None = None,
    follow: Follow | None = None,
) -> Tuned:
    """The same for plans, whose data and model have names; all have the same."""
    contenders = read_contenders(plans, plans[0].settings)
    task = contenders[0].make_tasks(federation)
    manifest = {"plans": [plan.as_dict() for plan in plans]}
    return _tune(contenders, task, federation, how, jobs, directory, watch, follow, manifest)


def _tune(
    contenders: list[Plan],
    task: AnyTask,
    federation: Federation,
    how: SearchOptions,
    jobs: int,
    directory: Path | None,
    watch: Watch | None,
    follow: Follow | None,
    manifest: Mapping[str, Any],
) -> Tuned:
    """A search for every method, then one comparison of what is best."""
    check_validation_data(federation)
    contenders = [contender.with_data_seeds(federation) for contender in contenders]
    spaces = how.check(contenders)
    settings = contenders[0].settings  # all have the same
    first = build(Settings, settings, "run")
    if first.data_seeds and how.search_seeds > first.seeds:
        raise SettingError(
            f"search_seeds must be at most {first.seeds}, the number of data_seeds, got "
            f"{how.search_seeds}: each seed of the search has one of their partitions"
        )
    start = first.seed + how.search_seeds
    seeds = {
        "search": list(range(first.seed, start)),
        "final": list(range(start, start + first.seeds)),
    }
    jobs = jobs or (1 if spaces else 0)
    if directory is not None:
        _begin(directory, {**manifest, **asdict(how), **({"jobs": jobs} if spaces else {})})
    folders = {name: None if directory is None else directory / name for name in (SEARCH, FINAL)}
    stock = Stock(
        {plan.data: federation for plan in contenders}, {plan.model: task for plan in contenders}
    )
    searches: dict[str, Search] = {}
    if spaces:
        for place, contender in enumerate(contenders):
            searches[contender.name] = study_search(
                contender,
                spaces[contender.name],
                how.trials,
                stock,
                seeds["search"],
                how.criterion,
                jobs=jobs,
                directory=None if directory is None else directory / f"{SEARCH}-{place}",
                watch=watch,
            )
    else:
        smallest = min(one.d for one in tasks_of(task))
        search = search_plans(
            [candidate for c in contenders for candidate in how.candidates(c, smallest)],
            stock,
            seeds["search"],
            how.criterion,
            jobs=jobs,
            directory=folders[SEARCH],
            watch=watch,
        )
        searches = {contender.name: search for contender in contenders}
    fresh = {"seed": start, "seeds": first.seeds}
    final = {"threads": 1, **settings, **fresh}  # computed as in the search
    tuned = Tuned(contenders, searches, seeds, final, Comparison([], []))
    if directory is not None:
        tuned.write_choice(directory)
    best = [replace(plan, settings=final) for plan in tuned.best_plans.values()]
    rounds = [s.seeds * s.rounds for s in (plan.make_settings() for plan in best)]
    total = sum(rounds) + rounds[0]  # with Local at equal compute
    folder = folders[FINAL]
    with follow(total) if follow else nullcontext() as report:
        comparison = compare(
            best,
            task,
            federation,
            directory=folder,
            resume=folder is not None and (folder / COMPARE).exists(),
            report=report,
            progress=False,
            **final,
        )
    tuned = replace(tuned, comparison=comparison)
    if directory is not None:
        with on_disk(RESULT, directory / RESULT):
            write_json(directory / RESULT, tuned.as_dict())
    return tuned


def _begin(directory: Path, manifest: Mapping[str, Any]) -> None:
    """Describe the tuning in its directory; only the same tuning is resumed there."""
    now = json.loads(json.dumps({"format": FORMAT, **plain(dict(manifest))}, default=str))
    if not (directory / TUNING).exists():
        begin_folder(directory, TUNING, now)
    elif read_document(directory / TUNING, dict[str, Any]) != now:
        raise SettingError(
            f"directory: {directory} holds another tuning; choose another directory, "
            "or give the settings that it was started with"
        )


# -- the methods ----------------------------------------------------------------------------------
def read_contenders(specs: Sequence[AnyMethod | Plan], settings: dict[str, Any]) -> list[Plan]:
    """The methods of a tuning, each once; fields that one is given with are not varied."""
    contenders = [replace(_contender(spec, settings), settings=settings) for spec in specs]
    if not contenders:
        raise SettingError("methods must be at least one, got none")
    names = [contender.name for contender in contenders]
    for name in names:
        if names.count(name) > 1:
            raise SettingError(f"methods must differ, got {name} twice")
    return contenders


def _contender(spec: AnyMethod | Plan, settings: dict[str, Any]) -> Plan:
    """A compressor of a paper's grid is FedAvg, by its own name."""
    if isinstance(spec, str):
        name, colon, rest = spec.partition(":")
        if is_compressor(name):
            plan = Plan.of(f"{grid_of(ANY, name).method}{colon}{rest}")
        else:
            plan = Plan.of(spec, settings=settings)
            name = plan.method
    elif isinstance(spec, Plan):
        name = spec.method
        plan = replace(spec, method=grid_of(ANY, name).method) if is_compressor(name) else spec
        METHODS.find(plan.method)
    else:
        method = read_method(spec)
        changed = {
            f.name: method.as_dict()[f.name]
            for f in dataclasses.fields(method)
            if f.metadata and getattr(method, f.name) != f.default
        }
        return Plan(name_of(method), changed, "", name=label_of(method), instance=method)
    fields = "".join(f" {field}={value}" for field, value in plan.method_fields.items())
    return replace(plan, name=name + fields + plan.note)


# -- what is searched -----------------------------------------------------------------------------
@dataclass(frozen=True)
class SearchOptions:
    """What is searched, by what it is chosen, and under how many seeds. Plain data."""

    grid: str | dict[str, list[Any]]  # of a paper, or your own; or, where it is empty,
    space: dict[str, Any] | None  # your own space, or derived ones, and
    trials: int
    criterion: str
    search_seeds: int

    def check(self, contenders: list[Plan]) -> dict[str, Space]:
        """Refuse what no method has; the spaces of the methods, where spaces are searched."""
        kinds = [c.method_class for c in contenders]
        if not isinstance(self.grid, str):
            for contender in contenders:
                if contender.short_name != contender.method:
                    raise SettingError(
                        f"methods: {contender.short_name} is FedAvg through a channel, and known "
                        "by that name to a paper's grid alone; write fedavg:channel=... for "
                        "another search"
                    )
            check_names("grid", self.grid, kinds)
        if not self.trials:
            return {}
        need_optuna()
        if self.space is None:
            return {c.name: derived_space(c.method_class, c.method_fields) for c in contenders}
        whole = read_space(self.space, kinds)
        spaces = {}
        for c in contenders:
            mine = {name: e for name, e in whole.items() if place_of(name, c.method_class)[0]}
            if not mine:
                raise SettingError(f"space must have a field of {c.name}, got none")
            spaces[c.name] = mine
        return spaces

    def candidates(self, contender: Plan, d: int) -> list[Plan]:
        """The plans of a method in the grid, for a model of d numbers."""
        if not isinstance(self.grid, str):
            return list(combinations(contender, read_grid(self.grid)))
        rounds = contender.make_settings().rounds
        points = grid_of(self.grid, contender.short_name).plans(d, rounds, contender.method_fields)
        return [
            replace(
                contender,
                method_fields=point.method_fields,
                own={**contender.own, **point.own},
                varied=point.varied,
            )
            for point in points
        ]

    @classmethod
    def read(cls, saved: dict[str, Any], where: str) -> SearchOptions:
        """From tune.json, which is of unknown origin."""
        try:
            how = decode({f.name: saved.get(f.name) for f in dataclasses.fields(cls)}, cls)
        except ValueError as error:
            raise SettingError(f"{where}: {error}") from None
        grid, trials = (None, how.trials) if how.trials else (how.grid, None)
        return search_options(grid, how.space, trials, how.criterion, how.search_seeds)


def search_options(
    grid: str | Mapping[str, Any] | Iterable[str] | None = None,
    space: Mapping[str, Any] | str | Path | None = None,
    trials: int | None = None,
    criterion: str = "pooled",
    search_seeds: int = 1,
) -> SearchOptions:
    """What the user asked for; a paper's grid where nothing was asked for.

    >>> search_options().grid, search_options(["lr=0.1,1"]).grid, search_options(trials=9).trials
    ('paper', {'lr': ['0.1', '1']}, 9)
    """
    for name, count in (
        ("search_seeds", search_seeds),
        ("trials", 1 if trials is None else trials),
    ):
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise SettingError(f"{name} must be a whole number >= 1, got {count!r}")
    if grid is not None and (space is not None or trials):
        raise SettingError(
            "grid must not be given together with a space or trials; a grid is tried as a whole"
        )
    if space is not None or trials:
        # the space by value: a file may change before a tuning is resumed
        entries = read_file(Path(space)) if isinstance(space, str | Path) else space
        values = None if entries is None else dict(entries)
        return SearchOptions({}, values, trials or TRIALS, criterion, search_seeds)
    texts = [ANY if grid is None else grid] if isinstance(grid, str | None) else grid
    if not isinstance(texts, Mapping):
        texts = list(texts)
        named = [text for text in texts if "=" not in str(text)]
        if named and len(texts) == 1:
            return SearchOptions(str(named[0]), None, 0, criterion, search_seeds)
        if named:
            raise SettingError(
                f"grid must be either that of a paper ({', '.join((ANY, *papers()))}) or your own, "
                f"NAME=VALUE,VALUE,..., got {named[0]!r} together with another one"
            )
    axes = read_grid(texts)
    if not axes:
        raise SettingError("grid must be NAME=VALUE,VALUE,... or the name of a paper, got nothing")
    refuse_data_and_model("grid", axes, ONE_FEDERATION)
    own_grid = {name: list(values) for name, values in axes.items()}
    return SearchOptions(own_grid, None, 0, criterion, search_seeds)


# -- the result -----------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class Tuned:
    """The best settings of every method, how sure that is, and their final runs on test data."""

    contenders: list[Plan]
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
        return {
            name: (plan.make_method(), {**self.settings, **plan.own})
            for name, plan in self.best_plans.items()
        }

    @property
    def best_plans(self) -> dict[str, Plan]:
        """The best plan of every method, by validation data."""
        return {name: self.searches[name].best(name) for name in self.names}

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

    def table(self, width: int = 80) -> FittedTable:
        """The best settings of every method and those that are as good, at most ten of each."""
        return standings_table(self.searches, self.names, LISTED, width)

    def toml(self, name: str = "") -> str:
        """The best settings of a method as a file for `idiolect run --config`."""
        name = name or self.winner
        search = self.searches[name]
        best = search.standings(name)[0]
        why = (
            f"{name}: the best of {plural(search.tried(name), 'setting')}, {search.criterion} "
            f"{number(best.figure)}"
        )
        return settings_text(best.plan, self.chosen[name][1], why)

    def file_names(self) -> dict[str, str]:
        """The name of the file of each method's settings."""
        if len(self.names) == 1:
            return {self.names[0]: "best.toml"}
        short = [c.short_name.replace(":", ".").replace("*", "-star") for c in self.contenders]
        numbers = ["" if short.count(name) == 1 else f"{i}-" for i, name in enumerate(short)]
        files = [f"best-{place}{name}.toml" for place, name in zip(numbers, short, strict=True)]
        return dict(zip(self.names, files, strict=True))

    def write_choice(self, directory: Path) -> None:
        """The settings files and the table of all settings; before the final run."""
        rows = self.rows()
        columns = list(dict.fromkeys(name for row in rows for name in row))
        with on_disk(TABLE, directory / TABLE):
            write_csv(directory / TABLE, rows, columns)
        for name, file in self.file_names().items():
            with on_disk(file, directory / file):
                write_atomic(directory / file, self.toml(name).encode())

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
                    "varied": best.plan.varied,
                    "valid": best.figure,
                    "by_seed": list(best.by_seed),
                    "tied": len(search.ties(name)),
                    "ties": [tie.as_dict() for tie in search.ties(name)[:LISTED]],
                    "importance": search.importance(name),
                    "tried": search.tried(name),
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
        parts = [heading(self.searches[self.names[0]].criterion, self.seeds), str(self.table())]
        parts += [*self.notes(), str(self.comparison)]
        return "\n".join(parts)

    def notes(self) -> list[str]:
        """What the tables do not say: ties, importance, cost."""
        lines = []
        for name in self.names:
            search = self.searches[name]
            tried = search.tried(name)
            tied = len(search.ties(name))
            stopped = len([r for r in search.stopped if r["method"] == name])
            early = f", {stopped} of them stopped early" if stopped else ""
            many = "no other is" if not tied else f"{tied} other{'s are' if tied > 1 else ' is'}"
            lines.append(
                f"{shown(name)}: {plural(tried, 'setting')} tried{early}; {many} within one "
                "standard error of the best"
            )
            shares = search.importance(name)
            if shares:
                listing = ", ".join(f"{field} {100 * s:.0f} %" for field, s in shares.items())
                lines.append(f"  what matters: {listing} of the variance over settings")
        lines.append(f"cost of the search: {self.cost}")
        if any("privacy" in row for row in self.comparison.summary()):
            lines.append(
                "the search is not in ε: every training of it is a run on the same data, whose "
                "figures have no noise; choose settings on other data, or say so"
            )
        return lines

    def __repr__(self) -> str:
        names = shown(", ".join(self.names), 120)
        search = self.searches[self.winner]
        figure = number(search.standings(self.winner)[0].figure)
        best = f"best {shown(self.winner, 60)}, {search.criterion} {figure}"
        return f"Tuned({names}; {best}; {PRINT_IT})"


# -- tables ----------------------------------------------------------------------------------------
def heading(criterion: Criterion, seeds: Mapping[str, Sequence[int]]) -> str:
    """What was done, in a line."""
    seed_lists = {what: ", ".join(map(str, some)) for what, some in seeds.items()}
    return (
        f"chosen by {criterion} of seed {seed_lists['search']}; "
        f"final run on test data with seed {seed_lists['final']}"
    )


def standings_table(
    searches: Mapping[str, Search], names: Sequence[str], most: int, width: int
) -> FittedTable:
    """The best setting of every method and the next ones, `most` of each."""
    rows = []
    hidden = 0
    for name in names:
        standings = searches[name].standings(name)
        hidden += len(standings[most:])
        for place, one in enumerate(standings[:most]):
            label = "" if place else shown(name)
            rows.append((label, _varied(one), _figure(one), _behind(one, place)))
    caption = "± one standard error of the difference; = within it, as good as the best"
    if hidden:
        caption += f"\n{plural(hidden, 'more setting')} in table.csv and rows()"
    columns = [
        Column("method", 0, lambda row: row[0], words=True),
        Column("settings", 0, lambda row: row[1], words=True),
        Column("validation", 0, lambda row: row[2]),
        Column("behind the best", 1, lambda row: row[3]),
    ]
    title = f"settings by {searches[names[0]].criterion}"
    return FittedTable(columns, rows, title, caption, width=width)


def _varied(one: Standing) -> str:
    return " ".join(f"{name}={shown(_text(v))}" for name, v in one.plan.varied.items()) or "–"


def _figure(one: Standing) -> str:
    if one.figure is None:
        return DIVERGED if any(map(diverged, one.summaries)) else "not finite"
    return number(one.figure)


def _behind(one: Standing, place: int) -> str:
    if not place:
        return "best"
    if one.figure is None:
        return ""
    error = f" ± {number(one.error)}" if one.error == one.error else ""
    return f"{'= ' if one.tied else ''}{number(one.gap)}{error}"


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# -- The chosen settings as a file that `idiolect run --config` takes --


def settings_text(plan: Plan, run: Mapping[str, Any], why: str) -> str:
    """[method] and [run]; [data], [model] and [task] too where they have names.

    Fields of the plan's method are written even at their default.
    """
    sections = {
        "method": {"name": plan.method, **_changed(plan, plan.method_fields)},
        "run": _typed_run(run),
    }
    if plan.is_named:
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


def _changed(plan: Plan, shown_fields: Collection[str]) -> dict[str, Any]:
    """The fields to show, and those that differ from what the name alone gives."""
    fixed = METHODS.find(plan.method)[1] if plan.method in METHODS.known() else {}
    method = plan.make_method()
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
