"""`idiolect run`, `compare`, `pipeline`, `demo` and `resume`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from ..core.knobs import SettingError
from ..core.paths import given_path
from ..core.plain import plain
from ..core.registry import names_in
from ..data.federation import Federation
from ..methods import METHODS
from ..report.captions import projection_line
from ..report.console import ERR, OUT, say
from ..report.goals import COUNTS
from ..report.tables import baseline_row, results_table
from ..run.compare import compare as run_compare
from ..run.identity import read_identity
from ..run.manifest import read_comparison, read_pipeline
from ..run.pipeline import pipeline as run_pipeline
from ..run.plan import Plan, method_spec, row_spec
from ..run.run import run as run_method
from ..run.settings import Settings
from ..task.task import Task
from .flags import Flags, Parser, peek, plan_of, training_flags
from .progress import directory_for, progress_bar, resumable
from .settings_file import read_toml


def run(argv: list[str]) -> None:
    """Train one method and show what came out."""
    parser = Parser("run METHOD", "Train one method and show what came out.")
    named = bool(argv) and not argv[0].startswith("-")
    method = argv[0] if named else read_toml(peek(argv, "--config"))["method"].get("name")
    if method is None:
        if argv and argv[0] in ("-h", "--help"):
            training_flags(parser, argv, None)[0].parser.print_help()
            return
        raise SettingError(f"run: name a method: {', '.join(METHODS)}")
    METHODS.find(method)
    rest = argv[1:] if named else argv
    parser.prog = f"idiolect run {method}"
    flags, file = training_flags(parser, rest, method)
    parsed = flags.parse(rest)
    from_file = {k: v for k, v in file["method"].items() if k != "name"}
    fields = from_file | flags.values(parsed, "method")
    plan = plan_of(flags, parsed, file, method, fields)
    _run_plan(plan, directory_for(parsed.directory, method), parsed.json, parsed.quiet)


def _run_plan(
    plan: Plan, directory: Path, as_json: bool, quiet: bool, resume: bool | str = False
) -> None:
    method = plan.make_method()
    settings = plan.make_settings()
    federation = plan.make_data()
    task = plan.make_task(federation)
    with progress_bar(settings.seeds * settings.rounds, quiet) as bar, resumable(directory):
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
    if "projection" in result.record.notes:
        say(projection_line(result.record.notes["projection"]))
    if as_json:
        print(json.dumps(result.summary()))
    else:
        baseline = _baseline(federation, task, settings)
        _table([*baseline, result.summary()], _title(plan, federation, task.d))
    say(f"run directory: {directory}")


def _title(plan: Plan, federation: Federation, d: int) -> str:
    return f"{plan.data}: {federation.clients} clients, d = {d}"


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
        "Here --bytes and --target-accuracy stop no run: they add columns, accuracy at the budget "
        "and the cost of the target."
    )
    flags, file = training_flags(parser, argv, None)
    parsed = flags.parse(argv)
    specs = parsed.methods or file["methods"]
    if not specs:
        raise SettingError(f"compare: name methods: {', '.join(METHODS)}")
    plans = []
    for spec in specs:
        name, fields, own = row_spec(spec)
        plan = plan_of(flags, parsed, file, name, fields)
        plans.append(dataclasses.replace(plan, own=own))
    directory = directory_for(parsed.directory, "compare")
    saved = {"baselines": not parsed.no_baselines, "count": parsed.count}
    _compare_plans(plans, saved, directory, parsed.json, parsed.quiet)


def _compare_plans(
    plans: list[Plan],
    saved: dict[str, Any],
    directory: Path,
    as_json: bool,
    quiet: bool,
    resume: bool | str = False,
) -> None:
    settings = [p.make_settings() for p in plans]
    federation = plans[0].make_data()
    task = plans[0].make_task(federation)
    rounds = [s.seeds * s.rounds for s in settings]
    total = sum(rounds) + saved["baselines"] * rounds[0]
    with progress_bar(total, quiet) as bar, resumable(directory):
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
    if as_json:
        print(json.dumps(found.summary()))
    else:
        OUT.print(found.table(OUT.width))
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
    _compare_plans(plans, saved, directory, parsed.json, parsed.quiet)
    ERR.print(
        "Reading it: one class already answers most of a client's questions here (majority). "
        "Models of one's own beat the shared one (fedavg, fedprox). lp-proj sends 21 numbers per "
        "message instead of 610. Against Local, look at the row with as many gradients: on these "
        "data the gain of lp-proj over training alone is compute, not collaboration.",
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
    _pipeline_plans(plans, directory, parsed.json, parsed.quiet)


def _pipeline_plans(
    plans: list[Plan], directory: Path, as_json: bool, quiet: bool, resume: bool | str = False
) -> None:
    federation = plans[0].make_data()
    task = plans[0].make_task(federation)
    settings = [p.make_settings() for p in plans]
    stages = [(p.make_method(), s.rounds) for p, s in zip(plans, settings, strict=True)]
    for method, _ in stages:
        method.check(task)
    total = sum(s.seeds * s.rounds for s in settings)
    with progress_bar(total, quiet) as bar, resumable(directory):
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
    if as_json:
        print(json.dumps(plain(rows)))
    else:
        _table(rows, _title(plans[0], federation, task.d))
    say(f"run directory: {directory}")


def resume(argv: list[str]) -> None:
    """Continue an interrupted run."""
    parser = Parser(
        "resume", "Continue an interrupted run to exactly the result it would have had."
    )
    parser.add_argument("run", help="the run's directory")
    parser.add_json()
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument(
        "--force",
        action="store_true",
        help="also with changed code: the result may differ from that of an uninterrupted run",
    )
    parser.add_argument(
        "--trust",
        action="store_true",
        help="run the user's own code (module:Name) that the directory names",
    )
    parser.add_argument("--threads", type=int, help="CPU threads; as many as before unless given")
    parser.add_argument("--memory", type=float, help="GiB, as in: idiolect run")
    parsed = Flags(parser).parse(argv)
    path = given_path(parsed.run, "run")
    with names_in(path, parsed.trust):
        _resume(path, parsed)


def _resume(path: Path, parsed: Any) -> None:
    """Whatever the directory holds: a run, a comparison or a pipeline."""
    how: bool | str = "force" if parsed.force else True
    if (path / "compare.json").exists():
        saved = read_comparison(path)
        if "plans" not in saved:
            raise _made_in_python(path, "compare")
        saved = {"baselines": True, "count": "bytes", **saved}
        plans = [_changed(Plan(**p), parsed) for p in saved["plans"]]
        _compare_plans(plans, saved, path, parsed.json, parsed.quiet, how)
        return
    if (path / "pipeline.json").exists():
        saved = read_pipeline(path)
        if "plans" not in saved:
            raise _made_in_python(path, "pipeline")
        plans = [_changed(Plan(**p), parsed) for p in saved["plans"]]
        _pipeline_plans(plans, path, parsed.json, parsed.quiet, how)
        return
    if not (path / "settings.json").exists():
        raise SettingError(f"directory: {path} holds no run (settings.json is missing)")
    origin = read_identity(path)["origin"]
    if not origin:
        raise _made_in_python(path, "run")
    plan = Plan.read(origin, f"directory: origin in {path / 'settings.json'}")
    _run_plan(_changed(plan, parsed), path, parsed.json, parsed.quiet, how)


def _changed(plan: Plan, parsed: Any) -> Plan:
    """The plan with the settings that are given anew."""
    given = {"threads": parsed.threads, "memory": parsed.memory}
    new = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(plan, settings={**plan.settings, **new})


def _made_in_python(path: Path, function: str) -> SettingError:
    return SettingError(
        f"resume: {path} was started from Python with the user's own data; "
        f"continue it there: idiolect.{function}(..., resume=True)"
    )
