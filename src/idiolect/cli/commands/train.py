"""`idiolect run`, `compare`, `pipeline`, `demo` and `resume`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.documents import plain
from ...core.knobs import SettingError
from ...data.federation import Federation
from ...methods import METHODS
from ...report.captions import projection_line
from ...report.clients import clients_view
from ...report.console import ERR, OUT, say
from ...report.plots import write_curves
from ...report.tables import baseline_row, read_also, results_table
from ...report.targets import COUNTS, Goals, curve
from ...run.plan import Plan, method_spec, refuse_without_sites, row_spec
from ...run.result import Result
from ...run.run import run as run_method
from ...run.settings import Settings
from ...run.survey import data_of
from ...study.compare import compare as run_compare
from ...study.comparison import Comparison
from ...study.pipeline import pipeline as run_pipeline
from ...task.task import Task
from ..options import Flags, Parser, peek, plan_of, plans_of, read_toml, training_flags, words_among
from ..output import (
    add_against,
    add_also,
    add_clients_table,
    directory_for,
    meter,
    panels,
    resumable,
)
from ..suggest import is_method, unknown_method

ENOUGH = 5  # evaluated rounds from which on `run` draws their curve
RUN_EXAMPLES = """For example:
  idiolect run ditto --data digits --clients 20 --rounds 50 --seeds 3
  idiolect run fedavg --data table --path visits.csv --client hospital --target outcome
  idiolect run --config idiolect.toml"""


@dataclass(frozen=True)
class Output:
    """What a command that trains shows, and how."""

    json: bool
    quiet: bool
    against: tuple[str, ...] = ()  # the panels of curves.png; () = all
    clients_table: bool = False
    also: tuple[str, ...] = ()  # further columns of the table

    @classmethod
    def of(cls, parsed: Any) -> Output:
        against = panels(getattr(parsed, "against", None))
        clients = getattr(parsed, "clients_table", False)
        also = read_also(getattr(parsed, "also", None))
        return cls(parsed.json, parsed.quiet, against, clients, also)

    def clients(self, result: Result | Comparison) -> None:
        """The clients by name, where they were asked for; stdout is JSON's alone."""
        if self.clients_table:
            (ERR if self.json else OUT).print(clients_view(result))


def run(argv: list[str]) -> None:
    """Train one method and show what came out."""
    spec, rest = _method_among(argv)
    parser = Parser(f"run {spec or 'METHOD'}", "Train one method and show what came out.")
    parser.epilog = RUN_EXAMPLES
    add_against(parser)
    add_clients_table(parser)
    if spec is None:
        if {"-h", "--help"} & set(rest):
            training_flags(parser, rest, None)[0].parse(rest)
        raise SettingError(f"run: name a method: {', '.join(METHODS)}")
    method, named_fields, named_settings = row_spec(spec)
    flags, file = training_flags(parser, rest, method)
    parsed = flags.parse(rest)
    if file["method"].get("name", method) != method:
        say(f"[method] of {parsed.config} is about {file['method']['name']}: it is left out")
        file["method"] = {}
    from_file = {k: v for k, v in file["method"].items() if k != "name"}
    fields = from_file | named_fields | flags.values(parsed, "method")
    plan = plan_of(flags, parsed, file, method, fields)
    plan = dataclasses.replace(plan, settings={**named_settings, **plan.settings})
    run_plan(plan, directory_for(parsed.directory, method), Output.of(parsed))


def _method_among(argv: list[str]) -> tuple[str | None, list[str]]:
    """The method, wherever it stands among the arguments or in the settings file; the others."""
    scratch = Parser("run", "")
    add_against(scratch)
    add_clients_table(scratch)
    training_flags(scratch, argv, None)
    places = words_among(argv, scratch)
    known = [i for i in places if is_method(argv[i])]
    if len(known) > 1:
        named = " ".join(argv[i] for i in known)
        raise SettingError(f"run: one method at a time; did you mean: idiolect compare {named}?")
    asked = [i for i in places if i and argv[i - 1] in ("-h", "--help")]
    chosen = known or [i for i in places if i not in asked]
    if not chosen:
        return read_toml(peek(argv, "--config"))["method"].get("name"), argv
    place = chosen[0]
    word = argv[place]
    if not known and (hint := unknown_method(word)):
        raise SettingError(f"method: {hint}")
    return word, [*argv[:place], *argv[place + 1 :]]


def run_plan(plan: Plan, directory: Path, output: Output, resume: bool | str = False) -> None:
    method = plan.make_method()
    settings = plan.make_settings()
    refuse_without_sites(method, settings, plan)
    federation = data_of([plan])
    task = plan.make_task(federation)
    with meter(settings.seeds * settings.rounds, output.quiet) as bar, resumable(directory):
        result = run_method(
            method,
            task,
            federation,
            directory=directory,
            origin=plan.as_dict(),
            progress=bar(plan.method, settings.seed, settings.rounds),
            resume=resume,
            **plan.run_settings,
        )
    _draw(result, directory, output.against)
    if "projection" in result.record.notes:
        say(projection_line(result.record.notes["projection"]))
    if output.json:
        print(json.dumps(result.summary()))
    else:
        baseline = _baseline(federation, task, settings)
        _table([*baseline, result.summary()], _title(plan, federation, task.d))
    output.clients(result)
    say(f"run directory: {directory}")


def _draw(result: Result, directory: Path, against: Sequence[str]) -> None:
    """curves.csv and curves.png, where there are enough evaluated rounds to see anything."""
    rows = result.record.timed_rounds()
    if len(rows) < ENOUGH and not against:
        return
    try:
        write_curves([curve(result.label, rows)], Goals(), directory, against)
    except OSError as error:  # the run is worth more than its picture
        say(f"warning: the curves could not be written ({error.strerror})")


def _title(plan: Plan, federation: Federation, d: int) -> str:
    name = federation.name if plan.data == "table" else plan.data
    return f"{name}: {federation.clients} clients, d = {d}"


def _baseline(federation: Federation, task: Task, s: Settings) -> list[dict[str, Any]]:
    row = baseline_row(federation, task.criterion, s.metrics, s.metric)
    return [] if row is None else [row]


def _table(rows: list[dict[str, Any]], title: str) -> None:
    OUT.print(results_table(rows, title, OUT.width))


def compare(argv: list[str]) -> None:
    """Train several methods on the same data and show them in one table."""
    parser = Parser("compare", "Train several methods on the same data and show them in one table.")
    parser.add_argument(
        "methods",
        nargs="*",
        help="methods, with fields and run settings of their own: "
        "lp-proj:p=1,lam=0.1 'fedavg:channel=qsgd(levels=16)' mymodule:MyMethod",
    )
    add_against(parser)
    add_clients_table(parser)
    add_also(parser)
    parser.add_argument(
        "--no-baselines", action="store_true", help="leave out Local at equal compute"
    )
    parser.add_argument(
        "--count",
        choices=COUNTS,
        default="bytes",
        help="what --bytes counts: bytes really sent, or values: 32-bit words as the lp-proj paper "
        "counts (default bytes)",
    )
    parser.epilog = (
        "Here --bytes and --target-value stop no run: they add columns, accuracy at the budget "
        "and the cost of the target."
    )
    flags, file = training_flags(parser, argv, None)
    parsed = flags.parse(argv)
    plans = plans_of(flags, parsed, file, "compare")
    output = Output.of(parsed)  # refuses what it does not know before anything is trained
    directory = directory_for(parsed.directory, "compare")
    saved = {"baselines": not parsed.no_baselines, "count": parsed.count}
    compare_plans(plans, saved, directory, output)


def compare_plans(
    plans: list[Plan],
    saved: dict[str, Any],
    directory: Path,
    output: Output,
    resume: bool | str = False,
) -> None:
    settings = [p.make_settings() for p in plans]
    federation = data_of(plans)
    task = plans[0].make_task(federation)
    rounds = [s.seeds * s.rounds for s in settings]
    total = sum(rounds) + saved["baselines"] * rounds[0]
    with meter(total, output.quiet) as bar, resumable(directory):
        found = run_compare(
            plans,
            task,
            federation,
            directory=directory,
            baselines=saved["baselines"],
            count=saved["count"],
            resume=resume,
            report=bar,
            **plans[0].settings,
        )
    if output.against:
        write_curves(found.curves, found.goals, directory, output.against)
    if output.json:
        print(json.dumps(found.summary()))
    else:
        OUT.print(found.table(OUT.width, output.also))
    output.clients(found)
    say(f"run directory: {directory}")


def demo(argv: list[str]) -> None:
    """Several methods on Synthetic(0, 0)."""
    parser = Parser("demo", "Several methods on Synthetic(0, 0), 100 clients, 3 seeds.")
    parser.add_output()
    parsed = Flags(parser).parse(argv)
    settings = {"rounds": 100, "sample": 10, "seeds": 3, "eval_every": 5, "threads": 1}
    specs = ("local:steps=1", "local:steps=20", "fedavg", "fedprox", "lp-proj-1", "lp-proj-2")
    options = {"alpha": 0.0, "beta": 0.0}
    plans = [
        Plan(*method_spec(s), data="synthetic", data_options=options, settings=settings)
        for s in specs
    ]
    ERR.print(
        "Synthetic(0, 0): 100 clients, 10 heard per round, 100 rounds, 3 seeds; every client is "
        "tested on its own data",
        highlight=False,
    )
    directory = directory_for(parsed.directory, "demo")
    saved = {"baselines": True, "count": "bytes"}
    compare_plans(plans, saved, directory, Output.of(parsed))
    ERR.print(
        "TableOptions it: one class already answers most of a client's questions here (majority). "
        "Models of one's own beat the shared one (fedavg, fedprox). lp-proj sends 21 numbers per "
        "message instead of 610: it ties 3 % of the model, and in the rest a client has its own "
        "data alone. What it gains by others grows with dim / d (docs/choose.md). Against Local, "
        "look at the row with as many gradients: on these data the gain of lp-proj over training "
        "alone is compute, not collaboration.",
        highlight=False,
    )


def pipeline(argv: list[str]) -> None:
    """Stages as one run."""
    parser = Parser("pipeline", "Stages as one run, each started from the one before.")
    parser.add_argument(
        "stages",
        nargs="+",
        help="METHOD:field=value,...@ROUNDS, in order: fedavg@50 ffgg:part=output@50",
    )
    flags, file = training_flags(parser, argv, None)
    parsed = flags.parse(argv)
    plans = []
    for stage in parsed.stages:
        spec, at, rounds = stage.rpartition("@")
        if not at or not rounds.isdigit():
            raise SettingError(f"stages: {stage!r} is not accepted; METHOD:field=value,...@ROUNDS")
        plan = plan_of(flags, parsed, file, *method_spec(spec))
        settings = {**plan.settings, "rounds": int(rounds)}
        plans.append(dataclasses.replace(plan, settings=settings))
    directory = directory_for(parsed.directory, "pipeline")
    pipeline_plans(plans, directory, Output.of(parsed))


def pipeline_plans(
    plans: list[Plan], directory: Path, output: Output, resume: bool | str = False
) -> None:
    federation = data_of(plans)
    task = plans[0].make_task(federation)
    settings = [p.make_settings() for p in plans]
    stages = [(p.make_method(), s.rounds) for p, s in zip(plans, settings, strict=True)]
    for method, _ in stages:
        method.check(task)
    total = sum(s.seeds * s.rounds for s in settings)
    with meter(total, output.quiet) as bar, resumable(directory):
        results = run_pipeline(
            stages,
            task,
            federation,
            directory=directory,
            resume=resume,
            report=bar,
            origins=[p.as_dict() for p in plans],
            **plans[0].settings,
        )
    rows = [r.summary() | {"label": f"stage {i}: {r.label}"} for i, r in enumerate(results)]
    rows = [*_baseline(federation, task, settings[0]), *rows]
    if output.json:
        print(json.dumps(plain(rows)))
    else:
        _table(rows, _title(plans[0], federation, task.d))
    say(f"run directory: {directory}")
