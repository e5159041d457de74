"""One run of a sweep, with one seed: a job that any process of this machine can do."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import pickle
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

from torch import Tensor

from ..core.documents import plain
from ..core.files import write_json
from ..core.knobs import SettingError, build
from ..core.text import warnings_once
from ..core.types import map_tree
from ..data.federation import Federation
from ..data.shared import SharedData, shared
from ..method import Method
from ..methods import name_of
from ..run.callbacks import Callback, Moment
from ..run.directory import RunDirectory, on_disk
from ..run.identity import identity_of
from ..run.plan import AnyMethod, AnyModel, Plan, read_task
from ..run.result import Result
from ..run.run import run
from ..run.settings import Settings
from ..run.typed_settings import RunSettings
from ..run.validate import check
from ..task.task import Task
from .compare import Row
from .many import common, finish
from .results import RUNS, SWEEP, Sweep
from .space import Axis, check_axes, combinations, read_axes

FORMAT = 1  # of stored results: a change in what they mean makes the old ones void


def _valid_by_client(result: Result) -> list[float]:
    """The figure that settings are chosen by, on every client's validation data."""
    metric = result.record.settings.get("metric")
    unknown = math.isnan(result.record.seeds[0].final["valid"]["accuracy"])
    measure = metric or ("loss" if unknown else "accuracy")
    return [row[f"valid_{measure}"] for row in result.clients_table()]


KEPT: dict[str, Callable[[Result], list[Any]]] = {  # what a summary leaves out
    "by_round": Result.rounds_table,
    "by_client": Result.clients_table,
    "valid_by_client": _valid_by_client,
}
GLOBAL = "global_by_round"  # the global model in every evaluated round: it is watched, see there


@dataclass
class Stock:
    """What all trials have in common: data and models by name."""

    data: dict[str, Federation | SharedData]
    tasks: dict[str, Task]
    opened: dict[str, Federation] = field(default_factory=dict)

    def federation(self, name: str) -> Federation:
        """Data by name; opened once per process."""
        if name not in self.opened:
            federation = self.data[name]
            self.opened[name] = (
                federation.open() if isinstance(federation, SharedData) else federation
            )
        return self.opened[name]

    def __getstate__(self) -> dict[str, Any]:
        return {"data": self.data, "tasks": self.tasks, "opened": {}}


@dataclass(frozen=True, eq=False)
class Setting:
    """What the runs of a sweep with several seeds have in common."""

    method: Method
    run: dict[str, Any]  # settings, but for the seed
    data: str  # names of a `Stock`
    task: str
    name: str  # of the method
    varied: dict[str, Any]  # by the grid: name -> value

    @property
    def label(self) -> str:
        """A few words: the method, and what is varied."""
        return " ".join([self.name, *(f"{k}={_text(v)}" for k, v in self.varied.items())])

    def digest(self, task: Task, federation: Federation) -> str:
        """Of everything that its results depend on, but for the seed."""
        settings = build(Settings, self.settings(0), "run")
        identity = identity_of(self.method, task, federation, settings)
        del identity["id"]
        text = json.dumps([FORMAT, plain(identity), self.label], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def settings(self, seed: int) -> dict[str, Any]:
        """Of one seed. One thread by default, so that results do not depend on `jobs`."""
        return {"threads": 1, **self.run, "seed": seed, "seeds": 1}


@dataclass(frozen=True, eq=False)
class Trial:
    """One run of a sweep."""

    setting: Setting
    seed: int
    digest: str  # of everything that the result depends on, but for the seed
    keep: tuple[str, ...] = ()  # names of `KEPT`, or `GLOBAL`: more than the summary

    def key(self) -> str:
        return "-".join([self.digest, str(self.seed), *self.keep])

    def cost(self) -> float:
        """Rounds: what is known before it has run."""
        return float(build(Settings, self.setting.settings(self.seed), "run").rounds)

    def describe(self) -> str:
        return f"{self.setting.label} seed={self.seed}"

    def train(self) -> dict[str, Any]:
        return self.trained()

    def trained(self, on_evaluate: Callback | None = None) -> dict[str, Any]:
        """The run itself; `on_evaluate` as in `run`."""
        stock = common()
        assert isinstance(stock, Stock)
        settings = self.setting.settings(self.seed)
        began = time.process_time()
        federation = stock.federation(self.setting.data)
        task = stock.tasks[self.setting.task]
        watched = GlobalRounds(task, federation) if GLOBAL in self.keep else None
        watch: dict[str, Any] = {"progress": False, "on_evaluate": watched or on_evaluate}
        result = run(self.setting.method, task, federation, **watch, **settings)
        extras = {name: KEPT[name](result) for name in self.keep if name != GLOBAL}
        if watched:
            extras[GLOBAL] = watched.rows
        return {**result.summary(), **extras, "cpu_seconds": time.process_time() - began}


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# -- Run every setting of a grid with every seed, in worker processes; nothing is run twice --

Watch = Callable[[Sequence[Trial]], Any]  # a context whose value hears of ended trials
Grid = Mapping[str, Any] | Iterable[str]


def sweep(
    methods: AnyMethod | Plan | Sequence[AnyMethod | Plan],
    task: AnyModel,
    federation: Federation,
    *,
    grid: Grid = (),
    jobs: int = 0,
    directory: str | Path | None = None,
    watch: Watch | None = None,
    **settings: Unpack[RunSettings],
) -> Sweep:
    """Every combination of a grid with every seed, as one resumable job.

    `grid` has names with values: fields of the methods (`lr`) or run settings (`sample`); a method
    that has no such field is run once for it. Methods are as in `compare`. Runs are spread over
    `jobs` processes (0: as many as there are cores), each with one thread unless `threads` says
    more; results do not depend on it. With a directory, each run is stored there as it ends, and a
    sweep that was stopped does only what is missing.

    >>> import torch
    >>> import idiolect as il
    >>> federation = il.data.load("synthetic", clients=4, samples=60)
    >>> found = il.sweep("fedavg", torch.nn.Linear(60, 10), federation, grid={"lr": [0.01, 0.1]},
    ...                  seeds=2, jobs=1, rounds=2)
    >>> [(row["lr"], row["seed"]) for row in found.rows()]
    [(0.01, 0), (0.01, 1), (0.1, 0), (0.1, 1)]
    """
    whole, _ = read_task(task, federation)
    specs = [methods] if isinstance(methods, str | Method | Plan | type) else list(methods)
    rows = [Row.of(one) for one in specs]
    axes = read_axes(grid)
    for axis in axes:
        if axis.part in ("data", "model"):
            raise SettingError(
                f"grid: {axis.name} is not accepted for data and a model that are given; sweep "
                "over plans, whose data and model have names"
            )
    if not rows:
        raise SettingError("methods: none were given; at least one is needed")
    check_axes(axes, [type(row.method) for row in rows])
    first = build(Settings, dict(settings), "run")
    common = {k: v for k, v in settings.items() if k not in ("seed", "seeds")}
    points = [
        _setting(row.method, {**common, **row.own}, row.name or name_of(row.method), choice)
        for row in rows
        for choice in combinations(axes, type(row.method))
    ]
    stock = Stock({"": federation}, {"": whole})
    title = f"{federation.name}: {federation.clients} clients, d = {whole.d}"
    where = None if directory is None else Path(directory)
    manifest = {"grid": {axis.name: list(axis.values) for axis in axes}}
    seeds = range(first.seed, first.seed + first.seeds)
    return sweep_settings(
        points,
        stock,
        seeds,
        jobs=jobs,
        directory=where,
        watch=watch,
        title=title,
        manifest=manifest,
    )


def sweep_plans(
    plans: Sequence[Plan],
    grid: Grid = (),
    *,
    jobs: int = 0,
    directory: Path | None = None,
    watch: Watch | None = None,
) -> Sweep:
    """The same for plans, whose data and model have names: the grid may vary those too."""
    axes = read_axes(grid)
    kinds = [type(plan.make_method()) for plan in plans]
    check_axes(axes, kinds)
    first = plans[0].make_settings()
    data: dict[str, Federation] = {}
    tasks: dict[str, Task] = {}
    points = []
    for plan, kind in zip(plans, kinds, strict=True):
        for choice in combinations(axes, kind):
            varied_plan = _changed(plan, choice, kind)
            data_name = repr((varied_plan.data, sorted(varied_plan.data_options.items())))
            if data_name not in data:
                data[data_name] = varied_plan.make_data()
            task_name = repr(
                (data_name, varied_plan.model, varied_plan.model_options, varied_plan.loss)
            )
            if task_name not in tasks:
                tasks[task_name] = varied_plan.make_task(data[data_name])
            varied = {axis.name: value for axis, value in choice.items()}
            rest = {k: v for k, v in varied_plan.run_settings.items() if k not in ("seed", "seeds")}
            named = _named(plan)
            points.append(
                Setting(varied_plan.make_method(), rest, data_name, task_name, named, varied)
            )
    stock = Stock(dict(data), tasks)
    one = next(iter(data.values()))
    title = f"{one.name}: {one.clients} clients" if len(data) == 1 else f"{len(data)} data sets"
    manifest = {
        "plans": [plan.as_dict() for plan in plans],
        "grid": {axis.name: list(axis.values) for axis in axes},
    }
    seeds = range(first.seed, first.seed + first.seeds)
    return sweep_settings(
        points,
        stock,
        seeds,
        jobs=jobs,
        directory=directory,
        watch=watch,
        title=title,
        manifest=manifest,
    )


# -- settings ------------------------------------------------------------------------------------
def _setting(
    method: Method, run: Mapping[str, Any], name: str, choice: Mapping[Axis, Any]
) -> Setting:
    fields = {a.key: v for a, v in choice.items() if a.place(type(method)) == "method"}
    more = {a.key: v for a, v in choice.items() if a.place(type(method)) == "run"}
    if fields:
        method = build(type(method), {**method.as_dict(), **fields}, name)
    varied = {axis.name: value for axis, value in choice.items()}
    return Setting(method, {**run, **more}, "", "", name, varied)


def _changed(plan: Plan, choice: Mapping[Axis, Any], kind: type[Method]) -> Plan:
    parts: dict[str, dict[str, Any]] = {}
    for axis, value in choice.items():
        parts.setdefault(axis.place(kind), {})[axis.key] = value
    return dataclasses.replace(
        plan,
        method_fields={**plan.method_fields, **parts.get("method", {})},
        data_options={**plan.data_options, **parts.get("data", {})},
        model_options={**plan.model_options, **parts.get("model", {})},
        own={**plan.own, **parts.get("run", {})},
    )


def _named(plan: Plan) -> str:
    """The method with the fields that were given for it."""
    fields = {**plan.method_fields, **plan.own}
    return " ".join([plan.method, *(f"{name}={value}" for name, value in fields.items())])


# -- running -------------------------------------------------------------------------------------
def sweep_settings(
    points: Sequence[Setting],
    stock: Stock,
    seeds: Sequence[int],
    *,
    jobs: int = 0,
    directory: Path | None = None,
    watch: Watch | None = None,
    title: str = "",
    manifest: Mapping[str, Any] | None = None,
    keep: Sequence[str] = (),
) -> Sweep:
    """The same for settings that are made already, each with every seed.

    `manifest` describes the sweep in its directory. With `keep`, the summary of every run has its
    evaluated rounds ("by_round"), its clients ("by_client") or the global model in its evaluated
    rounds ("global_by_round") besides its figures.
    """
    if not len(seeds):
        raise SettingError("seeds: 0 is not accepted; at least one")
    workers = _workers(points, jobs)
    trials = _trials(points, stock, seeds, tuple(keep))
    results = Sweep({}, title=title)
    with (
        folder_for(directory, manifest or {}) as path,
        shared_by(stock, workers, trials) as share,
        watch(trials) if watch else nullcontext() as bar,
    ):

        def failed(trial: Trial, error: Exception) -> None:
            results.failed[trial] = f"{type(error).__name__}: {error}"
            if bar:
                bar.failed(trial, results.failed[trial])

        report = bar.report if bar else None
        results.summaries = finish(trials, path, workers, report, share, failed)
    if directory is not None:
        with on_disk("the table"):
            results.write(directory)
    return results


def _workers(points: Sequence[Setting], jobs: int) -> int:
    """Processes that runs are spread over; with hosts on Ray it is the cluster that has them."""
    settings = [build(Settings, point.settings(0), "run") for point in points]
    if not any(s.carrier.cluster for s in settings):
        return jobs or os.cpu_count() or 1
    if jobs > 1 and not all(s.address for s in settings):
        raise SettingError(
            f"jobs must be 1 with hosts on Ray that each run would start itself, got {jobs}; or "
            "give the address of a cluster"
        )
    return jobs or 1


def _trials(
    points: Sequence[Setting], stock: Stock, seeds: Sequence[int], keep: tuple[str, ...]
) -> list[Trial]:
    """Every setting with every seed, each once; errors are raised before the first run."""
    trials: dict[str, Trial] = {}
    with warnings_once():
        for point in points:
            federation, task = stock.federation(point.data), stock.tasks[point.task]
            try:
                check(point.method, task, federation, build(Settings, point.settings(0), "run"))
            except SettingError as error:
                raise SettingError(f"{point.label}: {error}") from None
            digest = point.digest(task, federation)
            for seed in seeds:
                trial = Trial(point, seed, digest, keep)
                trials.setdefault(trial.key(), trial)
    return list(trials.values())


@contextmanager
def folder_for(directory: Path | None, manifest: Mapping[str, Any]) -> Iterator[Path]:
    """Where results are stored as they come."""
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="idiolect-") as scratch:
            yield Path(scratch) / RUNS
        return
    with RunDirectory(directory, fresh=True) as folder:
        folder.clear()
        write_json(directory / SWEEP, {"format": FORMAT, **plain(dict(manifest))})
        yield directory / RUNS


@contextmanager
def shared_by(stock: Stock, workers: int, trials: Sequence[Trial]) -> Iterator[Stock]:
    """What workers get: data in a file that all of them map."""
    if workers < 2 or len(trials) < 2:
        yield stock
        return
    try:
        pickle.dumps((stock.tasks, [trial.setting for trial in trials]))
    except Exception as error:  # whatever the user's own objects raise
        raise SettingError(
            f"jobs: {workers} is not accepted here; model and methods cannot be sent to worker "
            f"processes ({error}). Define them in a module that can be imported, or give jobs=1"
        ) from None
    with shared(stock.opened) as files:
        yield Stock(dict(files), stock.tasks)


# -- The global model in every evaluated round, for runs of a sweep --

MOST = 5000  # samples of a split: more would take longer than the training between two of these
AT_ONCE = 500  # samples of one forward pass


@dataclass
class GlobalRounds:
    """Hears of evaluated rounds, and keeps loss and accuracy of the global model in each."""

    task: Task
    federation: Federation
    rows: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, moment: Moment) -> None:
        w = moment.state().get("w")
        if w is None or len(w) != self.task.d:
            return
        row: dict[str, Any] = {"seed": moment.seed, "round": moment.round}
        for split in ("train", "test"):
            loss, accuracy = self._figures(w.to(self.task.x0), split)
            row |= {f"{split}_loss": loss, f"{split}_accuracy": accuracy}
        self.rows.append(row)

    def _figures(self, w: Tensor, split: str) -> tuple[float, float]:
        """Means over all samples of a split, or over `MOST` of them that are evenly spaced."""
        offsets = self.federation.offsets[split]
        low, high = int(offsets[0]), int(offsets[-1])
        places = list(range(low, high, max(1, -(-(high - low) // MOST))))
        loss = hits = 0.0
        for start in range(0, len(places), AT_ONCE):
            some = places[start : start + AT_ONCE]
            inputs = map_tree(lambda t, some=some: t[some], self.federation.inputs)
            targets = map_tree(lambda t, some=some: t[some], self.federation.targets)
            outputs = self.task.outputs_of_one(w, inputs)
            hit, lost = self.task.criterion.scores(outputs, targets)
            hits += float(hit.sum())
            loss += float(lost.sum())
        return loss / len(places), hits / len(places)
