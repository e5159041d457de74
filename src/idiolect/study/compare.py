"""Several methods on the same data, fair by construction.

Every comparison includes Local at equal compute and each client's majority class.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from ..core.files import private_folder, write_json
from ..core.knobs import SettingError, build
from ..core.text import warn
from ..data.federation import Federation
from ..host.metrics import direction
from ..method import Method
from ..methods import Local, label_of, make_method
from ..report.progress import RoundReport
from ..report.tables import baseline_row
from ..report.targets import Goals
from ..run.callbacks import Callback, Callbacks
from ..run.directory import on_disk
from ..run.early_stopping import check_stops
from ..run.identity import read_identity
from ..run.interrupts import finish_on_interrupt
from ..run.plan import AnyMethod, AnyModel, Plan, read_method, read_task, row_spec
from ..run.result import Result
from ..run.run import run
from ..run.settings import Settings, Timing
from ..run.typed_settings import RunSettings
from ..run.validate import check
from ..task.task import Task
from .comparison import Comparison, refuse_taken
from .manifest import COMPARE, read_comparison

EQUAL = " (as many gradients as the most costly)"
Reporter = Callable[[str, int, int], RoundReport]  # name, first seed, rounds -> progress of a run


@dataclass(frozen=True)
class Row:
    """One method of a comparison: what to run, and the settings of its row alone."""

    method: Method
    own: dict[str, Any] = field(default_factory=dict)
    note: str = ""  # behind its label
    origin: dict[str, Any] | None = None  # data and model by name, where they have one
    name: str = ""  # of its folder

    @classmethod
    def of(cls, spec: AnyMethod | Plan | Row) -> Row:
        """A row from a method, its class, a plan or a text such as "lp-proj:p=1,sample=5"."""
        if isinstance(spec, Row):
            return spec
        if isinstance(spec, Method | type):
            method = read_method(spec)
            return cls(method, name=label_of(method).split(" ")[0])
        if isinstance(spec, Plan):
            own = dict(spec.own)
            method = spec.make_method()
            return cls(method, own, _own_text(own), spec.as_dict(), spec.method)
        if not isinstance(spec, str):
            raise SettingError(
                f"methods: {spec!r} is not accepted; "
                "a Method, a Plan or a text like 'fedavg:lr=0.1'"
            )
        name, fields, own = row_spec(spec)
        return cls(make_method(name, **fields), own, _own_text(own), name=name)


def _own_text(own: dict[str, Any]) -> str:
    return "".join(f" {name}={value}" for name, value in own.items())


def compare(
    methods: Sequence[AnyMethod | Plan],
    task: AnyModel,
    federation: Federation,
    *,
    directory: str | Path | None = None,
    baselines: bool = True,
    count: str = "bytes",
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
    of the two the table shows). With a directory, every run has a folder there, next to curves.csv
    and, with matplotlib, curves.png.

    >>> import idiolect as il
    >>> federation = il.data.load("synthetic", clients=4, samples=60)
    >>> model = lambda: il.models.make("linear", (60,), 10)
    >>> found = il.compare(["fedavg", il.Local(steps=5)], model, federation, rounds=2)
    >>> found.labels
    ['fedavg', 'local steps=5']
    """
    if isinstance(methods, str | Method | Plan | type):
        raise SettingError(f"methods: {methods!r} is not accepted; a list of one or more methods")
    whole, note = read_task(task, federation)
    common = dict(settings)
    rows, row_settings, goals, skipped = _checked(methods, whole, federation, count, common)
    path = None if directory is None else Path(directory)
    saved: dict[str, Any] = {
        "baselines": baselines,
        "count": count,
        "folders": [],
        "rounds": [s.rounds for s in row_settings],
    }
    if path is not None:
        if all(row.origin for row in rows):
            saved["plans"] = [row.origin for row in rows]
        if resume:
            _continue_folder(path, saved)
        else:
            begin_folder(path, COMPARE, saved)
    goal_names = ("bytes", "target_value")
    shared = {k: v for k, v in common.items() if k not in goal_names}
    title = _title(federation, whole)
    trivial = baseline_row(
        federation, whole.criterion, row_settings[0].metrics, row_settings[0].metric
    )
    comparison = Comparison([], [], goals, trivial, title, skipped, note)
    watch = {
        "progress": progress,
        **vars(Callbacks(on_round, on_evaluate, on_checkpoint, on_end)),
    }
    work = _Work(whole, federation, path, resume, report, shared, comparison, watch)
    with finish_on_interrupt("finishing this run, then stopping") as interrupted:
        for row in rows:
            if interrupted():
                raise interrupted.stop(f"stopped before {row.name}")
            saved["folders"].append(work(row))
        if baselines:
            if interrupted():
                raise interrupted.stop("stopped before Local at equal compute")
            local = _equal_local(rows, row_settings, comparison.results)
            if local is not None:
                saved["folders"].append(work(local))
    if path is not None:
        comparison.write(path, saved)
    return comparison


def _checked(
    methods: Sequence[AnyMethod | Plan],
    task: Task,
    federation: Federation,
    count: str,
    settings: dict[str, Any],
) -> tuple[list[Row], list[Settings], Goals, dict[str, str]]:
    """The rows of a comparison, their settings, its goals, and the rows that cannot be run.

    All that is bad is refused here; a method that does not fit the data or the model is left out
    and said, if another one does.
    """
    rows = [Row.of(m) for m in methods]
    if not rows:
        raise SettingError("methods: none were given; at least one is needed")
    row_settings = [build(Settings, {**settings, **row.own}, "run") for row in rows]
    goals = goals_of(row_settings, count, "accuracy" if federation.classes else "loss")
    refused: dict[str, SettingError] = {}
    able: list[tuple[Row, Settings]] = []
    for row, s in zip(rows, row_settings, strict=True):
        check_stops(s, federation)
        try:
            check(row.method, task, federation, s)
            able.append((row, s))
        except SettingError as error:
            refused[label_of(row.method) + row.note] = error
    if not able:
        raise next(iter(refused.values()))
    skipped = {label: str(error) for label, error in refused.items()}
    for label, reason in skipped.items():
        warn(f"{label} is left out of the comparison: {reason}")
    return [row for row, _ in able], [s for _, s in able], goals, skipped


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
                    f"{name}: {getattr(s, name)!r} is not accepted; "
                    "a comparison has one for all its methods"
                )
            if name != "metric" and getattr(s, name) and not s.eval_every:
                raise SettingError(
                    f"eval_every: 0 is not accepted with {name} in a comparison; "
                    "a whole number >= 1, to see it pass"
                )
    metric = first.metric or figure
    if metric == "accuracy":
        return Goals(first.bytes, first.target_value or 0.0, count)
    higher = direction(metric, first.metrics)
    return Goals(first.bytes, first.target_value, count, metric, higher)


def begin_folder(path: Path, name: str, saved: dict[str, Any]) -> None:
    """A new folder of several runs, with the file that says which they are."""
    refuse_taken(path)
    try:
        private_folder(path)
        write_json(path / name, saved)
    except OSError as error:
        raise SettingError(f"directory: cannot write to {path}: {error.strerror}") from None


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
        with on_disk(COMPARE):
            write_json(path / COMPARE, now)


def _title(federation: Federation, task: Task) -> str:
    return f"{federation.name}: {federation.clients} clients, d = {task.d}"


@dataclass(frozen=True)
class _Work:
    """Runs the rows of a comparison one after the other."""

    task: Task
    federation: Federation
    path: Path | None
    resume: bool | str
    report: Reporter | None
    settings: dict[str, Any]  # that all rows share
    comparison: Comparison
    watch: dict[str, Any]  # progress and callbacks

    def __call__(self, row: Row) -> str:
        """Run a row and keep its result; the name of its folder."""
        number = len(self.comparison.results)
        settings = {**self.settings, **row.own}
        s = build(Settings, settings, "run")
        name = self._folder(f"{number}-{row.name.replace(':', '.')}", row, s.rounds)
        folder = None if self.path is None else self.path / name
        watch = dict(self.watch)
        if self.report:
            watch["progress"] = self.report(row.name, s.seed, s.rounds)
        begun = self.resume and folder is not None and (folder / "settings.json").exists()
        result = run(
            row.method,
            self.task,
            self.federation,
            directory=folder,
            origin=row.origin,
            resume=self.resume if begun else False,
            **watch,
            **settings,
        )
        self.comparison.results.append(result)
        self.comparison.labels.append(result.label + row.note)
        return name

    def _folder(self, name: str, row: Row, rounds: int) -> str:
        """The folder of a row.

        Local at equal compute may need other steps for more rounds: it is then another run.
        """
        if self.path is None or not self.resume or row.note != EQUAL:
            return name
        if not (self.path / name / "settings.json").exists():
            return name
        before = read_identity(self.path / name)["method"].get("steps")
        return name if before == row.method.as_dict()["steps"] else f"{name}-{rounds}-rounds"


def _equal_local(rows: list[Row], settings: list[Settings], results: list[Result]) -> Row | None:
    """Local with as many gradients per client as the most costly method.

    None where such a row stands there already. It has the settings that all rows share. Where all
    have as many malicious clients it has the same ones, so that the same clients are counted.
    """
    costs = [(r.method, r.summary()["gradients_per_client"]) for r in results]
    most = max(gradients for _, gradients in costs)
    if not most or any(m == "local" and gradients >= 0.99 * most for m, gradients in costs):
        return None
    alike = len({s.malicious for s in settings}) == 1
    first = settings[0]
    own: dict[str, Any] = {"attack": "none", "malicious": 0.0}
    if alike and first.malicious:
        own = {"attack": first.as_dict()["attack"], "malicious": first.malicious}
    if any(s.asynchronous for s in settings):  # Local sends nothing that could arrive
        plain = Timing().as_dict()
        own |= {name: value for name, value in plain.items() if name != "delays"}
    method = Local(steps=math.ceil(most / max(_shared_rounds(rows, settings), 1)))
    origin = None
    if rows[0].origin:
        plan = Plan(**rows[0].origin)
        fields = {"steps": method.steps}
        origin = dataclasses.replace(plan, method="local", method_fields=fields, own=own).as_dict()
    return Row(method, own, EQUAL, origin, "local")


def _shared_rounds(rows: list[Row], settings: list[Settings]) -> int:
    """The rounds that rows without rounds of their own have."""
    for row, s in zip(rows, settings, strict=True):
        if "rounds" not in row.own:
            return s.rounds
    return Settings().rounds
