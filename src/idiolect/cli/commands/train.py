"""`idiolect run`, `compare` and `pipeline`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.columns import FittedTable
from ...core.documents import plain
from ...core.knobs import SettingError, knob
from ...core.text import plural
from ...data import DATASETS
from ...data.federation import Federation
from ...methods import METHODS, method_alone, named_method
from ...models import MODELS, options_of
from ...report.captions import projection_line
from ...report.console import OUT, say
from ...report.plots import write_curves
from ...report.tables import results_table
from ...report.targets import COUNTS, Goals, curve
from ...run.plan import Plan, method_spec, refuse_without_sites, row_spec
from ...run.repeats import trivial_row
from ...run.result import Result
from ...run.run import run as run_method
from ...run.settings import Settings
from ...run.worker_hosts import data_of
from ...study.compare import Comparison
from ...study.compare import compare as run_compare
from ...study.pipeline import pipeline as run_pipeline
from ...study.trees import TreeOptions
from ...task.groups import AnyTask, sizes_text
from ..options import Parser, SettingsFile, TrainingParser, peek, say_what_is_named
from ..output import Output, emit, resumable
from ..suggest import is_method, unknown_method

ENOUGH = 5  # evaluated rounds before `run` draws their curve
RUN_EXAMPLES = """For example:
  idiolect run ditto --data digits --clients 20 --rounds 50 --seeds 3
  idiolect run fedavg --data table --path visits.csv --client hospital --target outcome
  idiolect run --config idiolect.toml"""
BASELINES = {
    "baselines": True,
    "count": "bytes",
    "trees": None,
}  # what a comparison has unless flags say


def run(argv: list[str]) -> None:
    """Train one method, or stages METHOD@ROUNDS, and show the results."""
    if any("@" in word and is_method(word.partition("@")[0]) for word in argv):
        pipeline(argv)
        return
    parser = TrainingParser("run", RUN_EXAMPLES, results=("against", "clients_table"))
    file = SettingsFile.read(peek(argv, "--config"))
    spec, rest = _find_method(argv, parser, file)
    parser.prog = f"idiolect run {spec or 'METHOD'}"
    if not spec:
        if {"-h", "--help"} & set(rest):
            parser.request(rest, file=file)
        raise SettingError(f"run: name a method: {', '.join(METHODS)}")
    method, fields, settings = row_spec(spec)
    say_what_is_named(spec)
    request = parser.request(rest, method, file)
    if named_method(file.name("method", method)).method != method:
        say(f"[method] of {file.path} is about {file.name('method')}: not used")
        file.sections["method"].clear()
    fields = file.fields("method") | fields | parser.values(request.flags, "method")
    plan = request.plan(method, fields)
    plan = dataclasses.replace(plan, settings={**settings, **plan.settings})
    output = request.flags.output
    run_plan(plan, output.new_directory(method), output)


def _find_method(
    argv: list[str], parser: Parser, file: SettingsFile
) -> tuple[str | None, list[str]]:
    """The method, wherever it stands among the arguments or in the settings file; the others."""
    classes: list[type] = [cls for cls, _ in METHODS.known().values()]
    classes += DATASETS.known().values()
    classes += map(options_of, MODELS.known().values())
    places = parser.words(argv, classes)
    methods = [i for i in places if is_method(argv[i])]
    if len(methods) > 1:
        names = " ".join(argv[i] for i in methods)
        raise SettingError(f"run: one method at a time; did you mean: idiolect compare {names}?")
    topics = [i for i in places if i and argv[i - 1] in ("-h", "--help")]
    candidates = methods or [i for i in places if i not in topics]
    if not candidates:
        return file.name("method") or None, argv
    place = candidates[0]
    word = argv[place]
    if not methods and (hint := unknown_method(word)):
        raise SettingError(f"method: {hint}")
    return word, [*argv[:place], *argv[place + 1 :]]


def run_plan(plan: Plan, directory: Path, output: Output, resume: bool | str = False) -> None:
    method = plan.make_method()
    settings = plan.make_settings()
    refuse_without_sites(method, settings, plan)
    federation = data_of([plan])
    output.check_clients(federation, settings)
    task = plan.make_tasks(federation)
    with output.meter(settings.seeds * settings.rounds) as meter, resumable(directory):
        result = run_method(
            method,
            task,
            federation,
            directory=directory,
            origin=plan.as_dict(),
            progress=meter(plan.method, settings.seed, settings.rounds),
            resume=resume,
            **plan.run_settings,
        )
    _draw(result, directory, output.against)
    if "projection" in result.record.notes:
        say(projection_line(result.record.notes["projection"]))
    summary = result.summary()
    rows = [*_baseline(federation, task, settings), summary]
    emit(output.json, summary, _table(rows, plan, federation, task))
    output.show_clients(result)
    output.show_subgroups(result)
    say(f"run directory: {directory}")


def _draw(result: Result, directory: Path, against: Sequence[str]) -> None:
    """curves.csv and curves.png, if enough rounds were evaluated or panels are named."""
    rows = result.record.timed_rounds()
    if len(rows) < ENOUGH and not against:
        return
    write_curves([curve(result.label, rows)], Goals(), directory, against)


def _baseline(federation: Federation, task: AnyTask, s: Settings) -> list[dict[str, Any]]:
    row = trivial_row(task, federation, s)
    return [] if row is None else [row]


def _table(
    rows: list[dict[str, Any]], plan: Plan, federation: Federation, task: AnyTask
) -> FittedTable:
    name = federation.name if plan.data == "table" else plan.data
    return results_table(
        rows, f"{name}: {plural(federation.clients, 'client')}, d = {sizes_text(task)}"
    )


@dataclass(frozen=True)
class CompareOptions(TreeOptions):
    """What a comparison has beside the methods."""

    no_baselines: bool = knob(False, "leave out Local at equal compute")
    count: str = knob(
        "bytes",
        "what --bytes counts: bytes really sent, or values: 32-bit words as the lp-proj paper "
        "counts",
        choices=COUNTS,
    )


def compare(argv: list[str]) -> None:
    """Train several methods on the same data and show them in one table."""
    parser = TrainingParser(
        "compare",
        "Here --bytes and --target-value stop no run: they add columns, accuracy at the budget "
        "and the cost of the target.",
        CompareOptions,
        results=("against", "clients_table", "also"),
    )
    parser.add_argument(
        "methods",
        nargs="*",
        help="methods, with fields and run settings of their own: "
        "lp-proj:p=1,lam=0.1 'fedavg:channel=qsgd(levels=16)' mymodule:MyMethod",
    )
    request = parser.request(argv)
    options, output = request.flags.options, request.flags.output
    plans = request.plans("compare")
    saved = {
        "baselines": not options.no_baselines,
        "count": options.count,
        "trees": options.with_trees,
    }
    compare_plans(plans, saved, output.new_directory("compare"), output)


def compare_plans(
    plans: list[Plan],
    saved: dict[str, Any],
    directory: Path,
    output: Output,
    resume: bool | str = False,
) -> None:
    """Train the methods and show their table."""
    comparison = train_plans(plans, saved, directory, output, resume)
    if output.against:
        write_curves(comparison.curves, comparison.goals, directory, output.against)
    emit(output.json, comparison.summary(), comparison.table(OUT.width, output.also))
    output.show_clients(comparison)
    output.show_subgroups(comparison)
    say(f"run directory: {directory}")


def train_plans(
    plans: list[Plan],
    saved: dict[str, Any],
    directory: Path,
    output: Output,
    resume: bool | str = False,
) -> Comparison:
    """Train the methods on the data of the first plan, and show progress."""
    settings = [p.make_settings() for p in plans]
    federation = data_of(plans)
    output.check_clients(federation, settings[0])
    task = plans[0].make_tasks(federation)
    rounds = [s.seeds * s.rounds for s in settings]
    total = sum(rounds) + saved["baselines"] * rounds[0]
    with output.meter(total) as meter, resumable(directory):
        return run_compare(
            plans,
            task,
            federation,
            directory=directory,
            baselines=saved["baselines"],
            count=saved["count"],
            trees=saved["trees"],
            resume=resume,
            report=meter,
            **plans[0].settings,
        )


def pipeline(argv: list[str]) -> None:
    """Train several stages as one run."""
    parser = TrainingParser("pipeline")
    parser.add_argument(
        "stages",
        nargs="+",
        help="METHOD:field=value,...@ROUNDS, in order: fedavg@50 ffgg:part=output@50",
    )
    request = parser.request(argv)
    plans = []
    for stage in request.flags.stages:
        spec, at, rounds = stage.rpartition("@")
        if not at or not rounds.isdigit():
            raise SettingError(f"stages must be METHOD:field=value,...@ROUNDS, got {stage!r}")
        name, fields = method_spec(spec)
        entry = method_alone(name)
        plan = request.plan(entry.method, {**entry.fields, **fields})
        settings = {**plan.settings, "rounds": int(rounds)}
        plans.append(dataclasses.replace(plan, settings=settings))
    output = request.flags.output
    pipeline_plans(plans, output.new_directory("pipeline"), output)


def pipeline_plans(
    plans: list[Plan], directory: Path, output: Output, resume: bool | str = False
) -> None:
    federation = data_of(plans)
    task = plans[0].make_task(federation)
    settings = [p.make_settings() for p in plans]
    for plan in plans:
        plan.make_method().check(task)
    total = sum(s.seeds * s.rounds for s in settings)
    with output.meter(total) as meter, resumable(directory):
        results = run_pipeline(
            [(plan, s.rounds) for plan, s in zip(plans, settings, strict=True)],
            task,
            federation,
            directory=directory,
            resume=resume,
            report=meter,
            **plans[0].settings,
        )
    rows = [r.summary() | {"label": f"stage {i}: {r.label}"} for i, r in enumerate(results)]
    rows = [*_baseline(federation, task, settings[0]), *rows]
    emit(output.json, plain(rows), _table(rows, plans[0], federation, task))
    output.show_subgroups(results[-1])
    say(f"run directory: {directory}")
