"""Several methods on the same data, fair by construction.

Every comparison includes Local at equal compute and each client's majority class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from ..core.documents import plain
from ..core.files import on_disk, private_folder, write_document
from ..core.knobs import SettingError, build
from ..core.text import PRINT_IT, plural, shown, warn
from ..data.federation import Federation
from ..host.lazy_federation import positive_of
from ..host.metrics import direction, in_use
from ..host.scores import interval
from ..method import Method
from ..methods import label_of
from ..report.captions import DIVERGED, figures_of, main_figure
from ..report.format import number
from ..report.plots import write_curves
from ..report.subgroup_tables import SubgroupsView, subgroups_view
from ..report.tables import read_also, results_table
from ..report.targets import Curve, Goals, curve, point
from ..run.callbacks import Callback, Callbacks
from ..run.identity import RunIdentity
from ..run.interrupts import finish_on_interrupt
from ..run.plan import AnyMethod, AnyModel, Plan, read_tasks
from ..run.prepare import People, check_stops, prepare, reported_loss
from ..run.record import Record, SeedRecord
from ..run.repeats import federations, trivial_row
from ..run.result import Result, frame
from ..run.settings import Settings, Timing
from ..run.typed_settings import RunSettings
from ..task.groups import AnyTask, sizes_text, tasks_of
from .folders import COMPARE, Reporter, RunSeries, begin_folder, read_comparison, refuse_taken
from .trees import NOTE, tree_rows, wanted

if TYPE_CHECKING:
    import pandas

EQUAL = " (as many gradients as the most costly)"
GOALS = ("bytes", "target_value")
LONG = 400  # characters of the reason why a row is left out


def compare(
    methods: Sequence[AnyMethod | Plan],
    task: AnyModel,
    federation: Federation,
    *,
    directory: str | Path | None = None,
    baselines: bool = True,
    count: str = "bytes",
    trees: bool | None = None,
    resume: bool | str = False,
    report: Reporter | None = None,
    progress: bool | None = None,
    on_round: Callback | None = None,
    on_evaluate: Callback | None = None,
    on_checkpoint: Callback | None = None,
    on_end: Callback | None = None,
    **settings: Unpack[RunSettings],
) -> Comparison:
    """Run several methods on the same data; Local with as many gradients is included.

    A method is a `Method`, its class, a text ("lp-proj:p=1,lam=0.1", with run settings of its row
    alone, such as channel=...), or a `Plan`; model, progress and callbacks are as in `run`. A
    method that cannot be run on these data is left out, with a word.

    The settings `bytes` and `target_value` stop no run here: every summary says in
    `at_budget` and `to_target` what the method made of them (and `at_budget_values`,
    `to_target_values`: the same read as 32-bit words, the lp-proj paper's unit; `count` says which
    of the two the table shows). `trees` adds gradient-boosted trees of each client alone and of all
    data in one place (scikit-learn), which are not federated and stand last; by default for tables
    for which they are quick to train. With a directory, every run has a folder there, next to
    curves.csv and curves.png.

    >>> import idiolect as il
    >>> federation = il.data.load("synthetic", clients=4, samples=60)
    >>> model = lambda: il.models.make("linear", (60,), 10)
    >>> comparison = il.compare(["fedavg", il.Local(steps=5)], model, federation, rounds=2)
    >>> comparison.labels
    ['fedavg', 'local steps=5']
    """
    if isinstance(methods, str | Method | Plan | type):
        raise SettingError(f"methods must be a list of one or more methods, got {methods!r}")
    whole, note = read_tasks(task, federation)
    common = dict(settings)
    plans, goals, skipped = _checked(methods, whole, federation, count, common)
    path = None if directory is None else Path(directory)
    description: dict[str, Any] = {
        "baselines": baselines,
        "count": count,
        "folders": [],
        "trees": trees,
        "rounds": [plan.make_settings().rounds for plan in plans],
    }
    if path is not None:
        if all(plan.is_named for plan in plans):
            description["plans"] = [plan.as_dict() for plan in plans]
        if resume:
            _continue_folder(path, description)
        else:
            begin_folder(path, COMPARE, description)
    first = plans[0].make_settings()
    trivial = trivial_row(whole, federation, first)
    with_trees = _tree_rows(whole, federation, first, trees)
    title = f"{federation.name}: {plural(federation.clients, 'client')}, d = {sizes_text(whole)}"
    comparison = Comparison([], [], goals, trivial, title, skipped, note, with_trees)
    callbacks = Callbacks(on_round, on_evaluate, on_checkpoint, on_end)
    series = RunSeries(whole, federation, path, resume, report, progress, callbacks)
    shared = {name: value for name, value in common.items() if name not in GOALS}

    def train(plan: Plan, note: str) -> None:
        """Run a row; its result and the name of its folder are kept."""
        row_settings = {**shared, **plan.own}
        folder = f"{len(comparison.results)}-{plan.short_name.replace(':', '.')}"
        if path is not None and resume and note == EQUAL:
            folder = _folder_of_local(path, folder, plan, row_settings)
        result = series.run(plan, folder, plan.short_name, row_settings)
        comparison.results.append(result)
        comparison.labels.append(result.label + note)
        description["folders"].append(folder)

    with finish_on_interrupt("finishing this run, then stopping") as interrupted:
        for plan in plans:
            if interrupted():
                raise interrupted.stop(f"stopped before {plan.short_name}")
            train(plan, plan.note)
        if baselines:
            if interrupted():
                raise interrupted.stop("stopped before Local at equal compute")
            local = _equal_local(plans, comparison.results)
            if local is not None:
                train(local, EQUAL)
    if path is not None:
        comparison.write(path, description)
    return comparison


def _tree_rows(
    task: AnyTask, federation: Federation, s: Settings, asked: bool | None
) -> list[dict[str, Any]]:
    """Trees of the clients that the figures are about; none by default where some are malicious."""
    if s.data_seeds.count > 1:
        if asked:
            raise SettingError(
                "trees must be left out with data_seeds, got True: they are trained on one "
                "partition, and their figures would stand beside means over several"
            )
        return []
    loss = reported_loss(tasks_of(task)[0], federation, s)
    if not wanted(federation, loss, asked) or (asked is None and s.malicious):
        return []
    positive = positive_of(federation, s.positive)
    used = in_use(s.metrics, s.metric, federation.classes, loss.name, positive)
    held_out = People.of(federation, s, s.seed).held_out
    inside = [k for k in range(federation.clients) if k not in set(held_out.tolist())]
    return tree_rows(federation.of(inside), loss, used)


def _checked(
    methods: Sequence[AnyMethod | Plan],
    task: AnyTask,
    federation: Federation,
    count: str,
    settings: dict[str, Any],
) -> tuple[list[Plan], Goals, dict[str, str]]:
    """The plans of a comparison, its goals, and the rows that cannot be run, with the reason.

    All that is bad is refused here; a method that does not fit the data or the model is left out
    with a warning, if another one does.
    """
    plans = [Plan.of(method, settings=settings) for method in methods]
    if not plans:
        raise SettingError("methods must be at least one, got none")
    row_settings = [plan.make_settings() for plan in plans]
    goals = goals_of(row_settings, count, "accuracy" if federation.classes else "loss")
    federations(federation, row_settings[0])  # refuses seeds that these data do not have
    refused: dict[str, SettingError] = {}
    able = []
    for plan, s in zip(plans, row_settings, strict=True):
        check_stops(s, federation)
        method = plan.make_method()
        try:
            prepare(method, task, federation, s)
            able.append(plan)
        except SettingError as error:
            refused[label_of(method) + plan.note] = error
    if not able:
        raise next(iter(refused.values()))
    skipped = {label: str(error) for label, error in refused.items()}
    for label, reason in skipped.items():
        warn(f"{label} is left out of the comparison: {reason}")
    return able, goals, skipped


def goals_of(settings: Sequence[Settings], count: str = "bytes", figure: str = "accuracy") -> Goals:
    """The goals in the settings of a comparison.

    They are about the chosen metric, or `figure` where none is chosen. Refuses goals that differ
    between its rows, and goals that no evaluated round could show.
    """
    first = settings[0]
    for s in settings:
        for name in ("bytes", "metric", "target_value"):
            if getattr(s, name) != getattr(first, name):
                raise SettingError(
                    f"{name} must be the same for all methods of a comparison, got "
                    f"{getattr(first, name)!r} and {getattr(s, name)!r}"
                )
            if name != "metric" and getattr(s, name) and not s.eval_every:
                raise SettingError(
                    f"eval_every must be a whole number >= 1 with {name} in a comparison, to see "
                    "it pass, got 0"
                )
    metric = first.metric or figure
    if metric == "accuracy":
        return Goals(first.bytes, first.target_value or 0.0, count)
    higher = direction(metric, first.metrics)
    return Goals(first.bytes, first.target_value, count, metric, higher)


def _continue_folder(path: Path, now: dict[str, Any]) -> None:
    """Refuse to continue a comparison as another one; with other rounds it is not finished."""
    before = read_comparison(path)
    for name in ("baselines", "count"):
        if before.get(name, now[name]) != now[name]:
            raise SettingError(
                f"resume: {path} was made with another {name}: "
                f"it was {before[name]!r}, is {now[name]!r}"
            )
    if before.get("rounds", now["rounds"]) != now["rounds"]:
        with on_disk(COMPARE, path / COMPARE):
            write_document(path / COMPARE, now)


def _folder_of_local(path: Path, name: str, plan: Plan, settings: dict[str, Any]) -> str:
    """Local at equal compute may need other steps for more rounds: it is then another run."""
    if not (path / name / "settings.json").exists():
        return name
    before = RunIdentity.read(path / name).method.get("steps")
    if before == plan.make_method().as_dict()["steps"]:
        return name
    return f"{name}-{build(Settings, settings, 'run').rounds}-rounds"


def _equal_local(plans: Sequence[Plan], results: Sequence[Result]) -> Plan | None:
    """Local with as many gradients per client as the most costly method.

    None where such a row stands there already. It has the settings that all rows share. Where all
    have as many malicious clients it has the same ones, so that the same clients are counted.
    """
    costs = [(r.method, r.summary()["gradients_per_client"]) for r in results]
    most = max(gradients for _, gradients in costs)
    if not most or any(m == "local" and gradients >= 0.99 * most for m, gradients in costs):
        return None
    settings = [plan.make_settings() for plan in plans]
    own: dict[str, Any] = {"attack": "none", "malicious": 0.0}
    if len({s.malicious for s in settings}) == 1 and settings[0].malicious:
        own = {name: settings[0].as_dict()[name] for name in own}
    if any(s.asynchronous for s in settings):  # Local sends nothing that could arrive
        synchronous = Timing().as_dict()
        own |= {name: value for name, value in synchronous.items() if name != "delays"}
    pairs = zip(plans, settings, strict=True)
    rounds = next((s.rounds for p, s in pairs if "rounds" not in p.own), Settings().rounds)
    fields = {"steps": math.ceil(most / max(rounds, 1))}
    return replace(plans[0], method="local", method_fields=fields, own=own, instance=None, name="")


class Comparison:
    """Results side by side. Prints, saves and converts as a single result does."""

    def __init__(
        self,
        results: list[Result],
        labels: list[str],
        goals: Goals | None = None,
        majority: dict[str, Any] | None = None,
        title: str = "",
        skipped: dict[str, str] | None = None,
        note: str = "",
        trees: list[dict[str, Any]] | None = None,
    ):
        self.results = results
        self.labels = labels
        self.goals = goals or Goals()
        self.majority = majority  # the trivial baseline; None where there is none
        self.title = title
        self.skipped = skipped or {}  # label of a row that could not be run -> why
        self.trees = trees or []  # rows of trees, which are not federated; see `study.trees`
        self.note = note  # how the loss was chosen, where it was not given

    @property
    def curves(self) -> list[Curve]:
        """The evaluated rounds of every row, against what was sent."""
        pairs = zip(self.labels, self.results, strict=True)
        return [curve(label, r.record.timed_rounds()) for label, r in pairs]

    def rows(self) -> list[dict[str, Any]]:
        """A summary per method, with what it made of the goals and its collaboration fairness."""
        fairness = collaboration_fairness([r.record for r in self.results], self.labels)
        return [
            result.summary()
            | {"label": label, "collaboration_fairness": fair}
            | self.goals.reached(self._points(label, result))
            for label, result, fair in zip(self.labels, self.results, fairness, strict=True)
        ]

    def _points(self, label: str, result: Result) -> Curve:
        """The evaluated rounds with the figure that the goals are about."""
        metric = self.goals.metric
        lost = {s.seed: s.collapsed for s in result.seeds if s.stopped == DIVERGED}
        points = []
        for row in result.rounds_table():
            useless = row["round"] >= lost.get(row["seed"], math.inf)  # its figures are not results
            loss = {"loss": math.inf} if useless else {}
            points.append(point(label, row) | {metric: row[metric]} | loss)
        return points

    def summary(self) -> list[dict[str, Any]]:
        """What `--json` prints: the majority class, the methods, and trees where there are any."""
        rows = self.rows()
        goal_keys = {k: None for k in rows[0] if k.startswith(("at_budget", "to_target"))}
        first = [] if self.majority is None else [self.majority | goal_keys]
        return plain([*first, *rows, *(row | goal_keys for row in self.trees)])

    def rounds_table(self) -> list[dict[str, Any]]:
        """One row per method, seed and evaluated round."""
        return self._labelled([r.rounds_table() for r in self.results])

    def clients_table(self) -> list[dict[str, Any]]:
        """One row per method, seed and client."""
        return self._labelled([r.clients_table() for r in self.results])

    def subgroups_table(self) -> list[dict[str, Any]]:
        """One row per method, seed, subgroup, client and figure."""
        return self._labelled([r.record.subgroups_table() for r in self.results])

    @property
    def subgroups(self) -> SubgroupsView:
        """Figures by subgroup, a row per method and subgroup: `print` shows the tables."""
        return subgroups_view(self)

    def _labelled(self, tables: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
        pairs = zip(self.labels, tables, strict=True)
        return [{"method": label, **row} for label, table in pairs for row in table]

    def to_pandas(self, table: str = "rounds") -> pandas.DataFrame:
        """A data frame of "rounds", "clients" or "subgroups", with a column for the method."""
        tables = {
            "rounds": self.rounds_table,
            "clients": self.clients_table,
            "subgroups": self.subgroups_table,
        }
        return frame(table, tables)

    def save(self, directory: str | Path) -> Path:
        """Every result in its own folder, and the comparison."""
        path = Path(directory)
        refuse_taken(path)
        private_folder(path)
        folders = []
        for place, result in enumerate(self.results):
            folders.append(f"{place}-{result.method.replace(':', '.')}")
            result.save(path / folders[-1])
        self.write(path, {"folders": folders})
        return path

    def write(self, path: Path, saved: dict[str, Any]) -> None:
        """compare.json and the curves, next to the folders of the results."""
        content = {
            **saved,
            "labels": self.labels,
            "goals": self.goals.as_dict(),
            "majority": self.majority,
            "title": self.title,
        }
        if self.trees:
            content["tree_rows"] = self.trees
        if self.skipped:
            content["skipped"] = self.skipped
        if self.note:
            content["note"] = self.note
        with on_disk(COMPARE, path / COMPARE):
            write_document(path / COMPARE, plain(content))
        write_curves(self.curves, self.goals, path)

    def table(self, width: int = 140, also: str | Sequence[str] = ()) -> Any:
        """The table that the command line shows.

        `also`: columns on request, "best-after-20" and "collaboration".
        """
        rows = self.summary()
        table = results_table(rows, self.title or None, width, self.goals, read_also(also))
        lines = [f"{label} is left out: {reason}" for label, reason in self.skipped.items()]
        lines += [self.note] if self.note else []
        lines += [NOTE] if self.trees else []
        notes = [table.caption, *(shown(line, LONG) for line in lines)]
        return replace(table, caption="\n".join(notes))

    def __str__(self) -> str:
        return str(self.table())

    def __repr__(self) -> str:
        rows = [row for row in self.summary() if row["seeds"]]
        measure = main_figure(rows) if rows else ""
        means = (number(figures_of(row, measure).get("mean")) for row in rows)
        figures = ", ".join(f"{row['label']} {mean}" for row, mean in zip(rows, means, strict=True))
        return f"Comparison({measure}: {shown(figures, 200)}; {PRINT_IT})"


# -- collaboration fairness: do those who could do well alone end with the better models? ----------
# Lyu, Xu, Wang and Yu 2020, as in Appendix C.7.3 of the lp-proj paper: Pearson's correlation, over
# clients, between what a client reaches alone (its contribution) and what it ends with.
LOCAL = "local"


def collaboration_fairness(
    records: Sequence[Record], labels: Sequence[str]
) -> list[dict[str, Any] | None]:
    """A correlation for each record; None where no Local run is among them.

    Of several Local runs the one with the most gradients counts.
    """
    alone = [i for i, record in enumerate(records) if record.method == LOCAL]
    if not alone:
        return [None] * len(records)
    base = max(alone, key=lambda i: records[i].seeds[0].gradients_per_client)
    return [_one(record, records[base], labels[base]) for record in records]


def _one(record: Record, local: Record, label: str) -> dict[str, Any] | None:
    own = {s.seed: s for s in local.seeds}
    pairs = [(s, own[s.seed]) for s in record.seeds if s.seed in own]
    if not pairs or record.figure != local.figure:
        return None
    by_seed = [_correlation(s, other, record.figure) for s, other in pairs]
    return {
        "mean": sum(by_seed) / len(by_seed),
        "ci95": interval(by_seed),
        "by_seed": by_seed,
        "figure": record.figure,
        "alone": label,
    }


def _correlation(ended: SeedRecord, alone: SeedRecord, figure: str) -> float:
    """Pearson's correlation over the clients that are honest and tested in both runs."""
    first = _tested(alone, figure)
    last = _tested(ended, figure)
    shared = [client for client in first if client in last]
    return pearson([first[c] for c in shared], [last[c] for c in shared])


def _tested(seed: SeedRecord, figure: str) -> dict[str, float]:
    values = {
        str(row["client"]): row.get(f"test_{figure}", math.nan)
        for row in seed.clients
        if not row["malicious"] and not row["held_out"]
    }
    return {client: v for client, v in values.items() if v is not None and math.isfinite(v)}


def pearson(x: Sequence[float], y: Sequence[float]) -> float:
    """Pearson's correlation; NaN where it is not defined: two values are needed that differ.

    >>> round(pearson([1.0, 2.0, 3.0], [1.0, 2.0, 2.0]), 4)
    0.866
    """
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])
