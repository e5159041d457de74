"""Many plans, each with several seeds: every run stored as it ends, and one table of results."""

from __future__ import annotations

import io
import math
import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from ..core.columns import FittedTable
from ..core.documents import plain
from ..core.files import on_disk, resume_command, unwritten, write_atomic, write_csv, write_document
from ..core.knobs import SettingError, build
from ..core.scratch import ScratchFolder
from ..core.text import PRINT_IT, plural, shown, warnings_once
from ..data.federation import Federation
from ..data.shared import SharedData, shared
from ..report.captions import diverged, has_accuracy, known
from ..report.format import number
from ..report.tables import settings_table
from ..run.callbacks import Callback, Moment
from ..run.directory import RunDirectory
from ..run.plan import Plan
from ..run.prepare import prepare
from ..run.result import Result
from ..run.run import run
from ..run.settings import Settings
from ..run.summary import Summary, merge
from ..task.groups import AnyTask
from .folders import SWEEP
from .jobs import common, finish, records

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 2  # of sweep.json
RUNS = "runs.jsonl"
TABLE = "table.csv"
PARQUET = "table.parquet"
FIGURES = ("mean", "variance", "worst10", "mean_of_clients")


@dataclass
class Stock:
    """Data and models by the names that plans have for them."""

    data: dict[str, Federation | SharedData] = field(default_factory=dict)
    tasks: dict[str, Any] = field(default_factory=dict)  # tasks, or groups of them
    opened: dict[str, Federation] = field(default_factory=dict)

    def federation(self, name: str) -> Federation:
        """Data by name; opened once per process."""
        if name not in self.opened:
            federation = self.data[name]
            self.opened[name] = (
                federation.open() if isinstance(federation, SharedData) else federation
            )
        return self.opened[name]

    def draw(self, name: str, data_seed: int | None) -> str:
        """Data under another seed of theirs, unless they are there; their name here."""
        if data_seed is None:
            return name
        drawn = f"{name} under seed {data_seed}"
        if drawn not in self.opened and drawn not in self.data:
            self.opened[drawn] = self.federation(name).redrawn(data_seed)
        return drawn

    def drawn(self, name: str, data_seed: int | None) -> Federation:
        """Data under one of their seeds, as `draw` made them; None: as they are."""
        return self.federation(self.draw(name, data_seed))

    def add(self, plan: Plan) -> Plan:
        """Make data and model of a plan, unless they are there; the plan with their names here."""
        data = repr((plan.data, sorted(plan.data_options.items())))
        if data not in self.data:
            self.data[data] = plan.make_data()
        model = repr((data, plan.model, plan.model_options, plan.loss))
        if model not in self.tasks:
            self.tasks[model] = plan.make_tasks(self.federation(data))
        return replace(plan, data=data, model=model)

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.data, "tasks": self.tasks, "opened": {}}


# -- one run --------------------------------------------------------------------------------------
class Recorder(Protocol):
    """A class whose objects hear of the evaluated rounds of one run, and have rows about them."""

    name: ClassVar[str]  # what the result of the run calls the rows
    rows: list[dict[str, Any]]

    def __init__(self, task: AnyTask, federation: Federation): ...

    def __call__(self, moment: Moment) -> None: ...


Extra = str | type[Recorder]  # what the result of a run has besides its summary


def _valid_by_client(result: Result) -> list[float]:
    """The figure that settings are chosen by, on every client's validation data."""
    metric = result.record.settings.get("metric")
    unknown = math.isnan(result.record.seeds[0].final["valid"]["accuracy"])
    measure = metric or ("loss" if unknown else "accuracy")
    return [row[f"valid_{measure}"] for row in result.clients_table()]


TABLES: dict[str, Callable[[Result], list[Any]]] = {
    "by_round": Result.rounds_table,
    "by_client": Result.clients_table,
    "valid_by_client": _valid_by_client,
    "cross_client": Result.cross_client_table,
}


@dataclass(frozen=True, eq=False)
class Trial:
    """One run with one seed: a job that any process of this machine can do."""

    plan: Plan
    seed: int
    digest: str  # the key of the plan
    keep: tuple[Extra, ...] = ()  # of `TABLES`, or a recorder

    @property
    def data_seed(self) -> int | None:
        """The seed of its data, where each seed has its own."""
        return self.plan.data_seed(self.seed)

    def key(self) -> str:
        names = (extra if isinstance(extra, str) else extra.name for extra in self.keep)
        seeds = [self.seed] if self.data_seed is None else [self.seed, self.data_seed]
        return "-".join([self.digest, ".".join(map(str, seeds)), *names])

    def cost(self) -> float:
        """Rounds: what is known before it has run."""
        return float(self.settings.rounds)

    @property
    def settings(self) -> Settings:
        return build(Settings, self.plan.of_seed(self.seed), "run")

    def describe(self) -> str:
        return f"{self.plan.label} seed={self.seed}"

    def train(self) -> dict[str, Any]:
        return self.trained()

    def trained(self, on_evaluate: Callback | None = None) -> dict[str, Any]:
        """The run itself; `on_evaluate` as in `run`."""
        stock = common()
        assert isinstance(stock, Stock)
        began = time.process_time()
        federation = stock.drawn(self.plan.data, self.data_seed)
        task = stock.tasks[self.plan.model]
        recorders = [extra(task, federation) for extra in self.keep if not isinstance(extra, str)]

        listeners: list[Callback] = [*recorders, *([on_evaluate] if on_evaluate else [])]

        def on_evaluated(moment: Moment) -> None:
            for listener in listeners:
                listener(moment)

        result = run(
            self.plan.make_method(),
            task,
            federation,
            progress=False,
            on_evaluate=on_evaluated if listeners else None,
            **self.plan.of_seed(self.seed, self.data_seed),
        )
        extras = {name: TABLES[name](result) for name in self.keep if isinstance(name, str)}
        extras |= {recorder.name: recorder.rows for recorder in recorders}
        return {**result.summary(), **extras, "cpu_seconds": time.process_time() - began}


# -- all of them ----------------------------------------------------------------------------------
Watch = Callable[[Sequence[Trial]], Any]  # a context whose value hears of ended trials


def run_many(
    plans: Sequence[Plan],
    stock: Stock,
    seeds: Sequence[int],
    *,
    jobs: int = 0,
    directory: Path | None = None,
    watch: Watch | None = None,
    title: str = "",
    manifest: Mapping[str, Any] | None = None,
    keep: Sequence[Extra] = (),
) -> Sweep:
    """Every plan with every seed, in worker processes; what is stored is not run again.

    `stock` has the data and models that the plans name. `manifest` describes the runs in their
    directory. With `keep`, the summary of every run also has its evaluated rounds ("by_round"), its
    clients ("by_client"), their models on the data of others ("cross_client"), or the rows of a
    `Recorder`.
    """
    if not len(seeds):
        raise SettingError("seeds must be at least 1, got 0")
    workers = _workers(plans, jobs)
    trials = _trials(plans, stock, seeds, tuple(keep))
    sweep = Sweep({}, title=title)
    with (
        result_file(directory, manifest or {}) as path,
        shared_by(stock, workers, trials) as share,
        watch(trials) if watch else nullcontext() as bar,
    ):

        def failed(trial: Trial, error: Exception) -> None:
            sweep.failed[trial] = f"{type(error).__name__}: {error}"
            if bar:
                bar.failed(trial, sweep.failed[trial])

        report = bar.report if bar else None
        sweep.summaries = finish(trials, path, workers, report, share, failed)
    if directory is not None:
        with on_disk("the table", directory / TABLE):
            sweep.write(directory)
    return sweep


def _workers(plans: Sequence[Plan], jobs: int) -> int:
    """Processes that runs are spread over; with hosts on Ray it is the cluster that has them."""
    settings = [build(Settings, plan.of_seed(0), "run") for plan in plans]
    if not any(s.carrier.cluster for s in settings):
        return jobs or os.cpu_count() or 1
    if jobs > 1 and not all(s.address for s in settings):
        raise SettingError(
            f"jobs must be 1 with hosts on Ray that each run would start itself, got {jobs}; or "
            "give the address of a cluster"
        )
    return jobs or 1


def _trials(
    plans: Sequence[Plan], stock: Stock, seeds: Sequence[int], keep: tuple[Extra, ...]
) -> list[Trial]:
    """Every plan with every seed, each once; errors are raised before the first run."""
    trials: dict[str, Trial] = {}
    with warnings_once():
        for plan in plans:
            federation, task = stock.federation(plan.data), stock.tasks[plan.model]
            try:
                settings = build(Settings, plan.of_seed(0), "run")
                prepare(plan.make_method(), task, federation, settings)
                for seed in seeds:
                    stock.draw(plan.data, plan.data_seed(seed))
            except SettingError as error:
                raise SettingError(f"{plan.label}: {error}") from None
            digest = plan.key(task, federation)
            for seed in seeds:
                trial = Trial(plan, seed, digest, keep)
                trials.setdefault(trial.key(), trial)
    return list(trials.values())


@contextmanager
def result_file(directory: Path | None, manifest: Mapping[str, Any]) -> Iterator[Path]:
    """Where results are stored as they come."""
    if directory is None:
        with ScratchFolder() as scratch:
            yield Path(scratch) / RUNS
        unwritten.pop(Path(scratch) / RUNS, None)  # the results are in memory
        return
    with RunDirectory(directory, fresh=True) as folder:
        folder.clear()
        write_document(directory / SWEEP, {"format": FORMAT, **plain(dict(manifest))})
        yield directory / RUNS


@contextmanager
def shared_by(stock: Stock, workers: int, trials: Sequence[Trial]) -> Iterator[Stock]:
    """What workers get: data in a file that all of them map."""
    if workers < 2 or len(trials) < 2:
        yield stock
        return
    try:
        pickle.dumps((stock.tasks, [trial.plan for trial in trials]))
    except Exception as error:  # whatever the user's own objects raise
        raise SettingError(
            f"jobs must be 1, got {workers}: model and methods cannot be sent to worker processes "
            f"({error}); or define them in a module that can be imported"
        ) from None
    with shared(stock.opened) as files:
        yield Stock(dict(files), stock.tasks)


# -- the table of results -------------------------------------------------------------------------
@dataclass(repr=False)
class Sweep:
    """The results of plans under several seeds: all, or what there is of them."""

    summaries: dict[Trial, dict[str, Any]]  # of every run, in the order of the plans
    failed: dict[Trial, str] = field(default_factory=dict)  # why
    title: str = ""
    show_test: bool = False  # whether the table has figures on test data

    @property
    def settings(self) -> list[Plan]:
        """All plans that have a result, in their order."""
        return list(self.by_plan())

    def by_plan(self) -> dict[Plan, list[dict[str, Any]]]:
        """The summaries of every plan, one per seed."""
        groups: dict[Plan, list[dict[str, Any]]] = {}
        for trial, summary in self.summaries.items():
            groups.setdefault(trial.plan, []).append(summary)
        return groups

    def rows(self) -> list[dict[str, Any]]:
        """A line per run, in the order of the plans. Times are left out: they differ each time."""
        names = list(dict.fromkeys(n for t in self.summaries for n in t.plan.varied))
        rows = []
        for trial, summary in self.summaries.items():
            row: dict[str, Any] = {"method": trial.plan.name}
            row |= {name: trial.plan.varied.get(name) for name in names}
            row |= {"seed": trial.seed, **_data_seed(trial), **_figures(summary)}
            rows.append(row)
        return rows

    def frame(self) -> pd.DataFrame:
        """`rows` as a table of pandas."""
        import pandas as pd

        return pd.DataFrame(self.rows())

    def merged(self) -> list[dict[str, Any]]:
        """A summary per plan: means over its seeds, with the interval."""
        return [
            mean_over_seeds(plan.label, summaries) for plan, summaries in self.by_plan().items()
        ]

    def best(self, measure: str = "accuracy", split: str = "valid") -> Plan:
        """The plan with the highest mean (for a loss: the lowest) on validation data.

        Of equal ones the first.
        """
        sign = -1 if measure == "loss" else 1
        groups = self.by_plan()

        def mean(plan: Plan) -> float:
            figures = [s[split][measure]["mean"] for s in groups[plan]]
            if None in figures or any(map(diverged, groups[plan])):
                return -math.inf
            return sign * sum(figures) / len(figures)

        return max(groups, key=mean)

    def table(self, width: int = 80, show_test: bool | None = None) -> FittedTable:
        """A row per plan, on validation data, as wide as the terminal has room for.

        With `show_test` (None: as `sweep` was told) figures on test data, by which no setting
        should be chosen; so too where there are no validation samples. The caption says which.
        """
        on_test = self.show_test if show_test is None else show_test
        return settings_table(self.merged(), self.title or None, width, on_test)

    def __str__(self) -> str:
        return str(self.table(140))

    def __repr__(self) -> str:
        rows = self.merged()
        parts = [f"{plural(len(rows), 'setting')}, {plural(len(self.summaries), 'run')}"]
        if self.failed:
            parts.append(f"{len(self.failed)} failed")
        measure = "accuracy" if rows and has_accuracy(rows) else "loss"
        by_label = {row["label"]: row["valid"][measure]["mean"] for row in rows}
        if any(map(known, by_label.values())):
            best = self.best(measure).label
            figure = number(by_label[best])
            parts.append(f"best by validation data: {shown(best, 80)}, {measure} {figure}")
        return f"Sweep({'; '.join(parts)}; {PRINT_IT})"

    def write(self, directory: Path) -> list[Path]:
        """table.csv, and table.parquet where pyarrow is installed."""
        rows = self.rows()
        columns = list(dict.fromkeys(name for row in rows for name in row))
        write_csv(directory / TABLE, rows, columns)
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            return [directory / TABLE]
        content = io.BytesIO()
        self.frame().to_parquet(content)
        write_atomic(directory / PARQUET, content.getvalue())
        return [directory / TABLE, directory / PARQUET]


def _data_seed(trial: Trial) -> dict[str, int]:
    """The column of the seed of the data, where each run has its own."""
    return {} if trial.data_seed is None else {"data_seed": trial.data_seed}


def _figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a line of the table says of a run."""
    tested = {"accuracy": summary["accuracy"], "loss": summary["loss"]}
    tested |= summary.get("metrics", {})
    row: dict[str, Any] = {"rounds": summary["rounds"]}
    for name, figures in tested.items():
        row |= {name if part == "mean" else f"{name}_{part}": figures[part] for part in FIGURES}
    row |= {f"valid_{name}": summary["valid"][name]["mean"] for name in tested}
    if "global_model" in summary:
        row["global_accuracy"] = summary["global_model"]["accuracy"]["mean"]
    if "held_out" in summary:
        row |= {f"held_out_{name}": summary["held_out"][name]["mean"] for name in tested}
    row |= {f"bytes_{way}": total for way, total in summary["bytes"].items()}
    row |= {name: summary[name] for name in ("gradients_per_client", "rejected", "missing")}
    row |= {"stopped": summary["stopped"][0], "collapsed": summary["collapsed"][0]}
    return row


def mean_over_seeds(label: str, summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One summary of runs that differ in their seeds alone, from the summaries of single seeds."""
    return merge([Summary.from_dict(summary) for summary in summaries], label).as_dict()


def read_sweep(directory: Path) -> list[dict[str, Any]]:
    """A summary per plan, means over the seeds that are done, in the order of their ends."""
    by_plan: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for record in records(directory / RUNS):
        digest, _, *extras = record["key"].split("-")
        label = str(record["job"]).rpartition(" seed=")[0]
        by_plan.setdefault((label, digest, *extras), []).append(record["result"])
    if not by_plan:
        raise SettingError(
            f"directory: no run of the sweep in {directory} has finished yet; "
            f"resume it: {resume_command(directory)}"
        )
    try:
        return [mean_over_seeds(label, summaries) for (label, *_), summaries in by_plan.items()]
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise SettingError(
            f"directory: cannot use {directory / RUNS}: a run in it has no {error}"
        ) from None
