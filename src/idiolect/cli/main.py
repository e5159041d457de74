"""The `idiolect` command."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from .. import methods
from ..core.knobs import SettingError, nearest
from ..core.plain import plain
from ..data.federation import Federation
from ..report.captions import projection_line
from ..report.console import ERR, OUT
from ..report.goals import COUNTS, Goals
from ..report.tables import majority_row, results_table
from ..run.checkpoint import CheckpointError
from ..run.compare import compare, goals_of
from ..run.directory import RunDirectory
from ..run.pipeline import pipeline
from ..run.plan import Plan, method_spec, row_spec
from ..run.run import Interrupted, run
from ..run.run import Progress as Report
from . import lists as info
from .flags import Flags, Parser, common, plan_of


def main(argv: list[str] | None = None) -> int:
    """Run a command; 0 when it worked, 2 for a setting that is not accepted, 130 after Ctrl-C."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        if not argv or argv[0] in ("-h", "--help"):
            _help()
            return 0
        if argv[0] == "--version":
            from importlib.metadata import version

            print(version("idiolect"))
            return 0
        if argv[0] not in COMMANDS:
            raise nearest(argv[0], COMMANDS, "command")
        COMMANDS[argv[0]][0](argv[1:])
        return 0
    except (SettingError, CheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(f"interrupted: {stop}", file=sys.stderr)
        return 130
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0


def _help() -> None:
    table = Table(
        title="idiolect: personalised federated learning",
        title_justify="left",
        show_header=False,
        box=None,
    )
    for name, (_, usage, text) in COMMANDS.items():
        table.add_row(f"idiolect {name} {usage}", text)
    OUT.print(table)
    OUT.print("Each command has --help; those that show figures or lists have --json.")


# -- run, compare, demo, resume ------------------------------------------------------------------------------------------------
def _run(argv: list[str]) -> None:
    from .flags import peek, read_toml

    parser = Parser(
        prog="idiolect run METHOD",
        allow_abbrev=False,
        description="Train one method and show what came out.",
    )
    method = (
        argv[0]
        if argv and not argv[0].startswith("-")
        else read_toml(peek(argv, "--config"))["method"].get("name")
    )
    if method is None:
        if argv and argv[0] in ("-h", "--help"):
            common(parser, argv, None)[0].parser.print_help()
            return
        raise SettingError(f"run: name a method: {', '.join(methods.METHODS)}")
    if method not in methods.METHODS:
        raise nearest(method, methods.METHODS, "method")
    rest = argv[1:] if argv and argv[0] == method else argv
    parser.prog = f"idiolect run {method}"
    flags, file = common(parser, rest, method)
    parsed = flags.parse(rest)
    from_file = {k: v for k, v in file["method"].items() if k != "name"}
    plan = plan_of(flags, parsed, file, method, from_file | flags.values(parsed, "method"))
    _run_plan(plan, _directory(parsed.directory, method), parsed.json, parsed.quiet, resume=False)


def _run_plan(plan: Plan, directory: Path, as_json: bool, quiet: bool, resume: bool) -> None:
    method, settings = plan.make_method(), plan.make_settings()
    federation = plan.make_data()
    task = plan.make_task(federation)
    with _progress(settings.seeds * settings.rounds, quiet) as bar, _resumable(directory):
        report = bar(plan.method, settings.seed, settings.rounds)
        result = run(
            method,
            task,
            federation,
            directory=directory,
            origin=plan.as_dict(),
            progress=report,
            resume=resume,
            **plan.run_settings,
        )
    if "projection" in result.notes:
        ERR.print(projection_line(result.notes["projection"]), highlight=False)
    _show(
        [result.summary()],
        federation,
        as_json,
        single=True,
        title=f"{plan.data}: {federation.clients} clients, d = {task.d}",
    )
    ERR.print(f"run directory: {directory}", highlight=False)


def _compare(argv: list[str]) -> None:
    parser = Parser(
        prog="idiolect compare",
        allow_abbrev=False,
        description="Train several methods on the same data and show them in one table.",
    )
    parser.add_argument(
        "methods",
        nargs="*",
        help="methods, with fields and run settings of their own: lp-proj:p=1,lam=0.1 'fedavg:channel=qsgd(levels=16)'",
    )
    parser.add_argument(
        "--no-baselines", action="store_true", help="leave out Local at equal compute"
    )
    text = "what --bytes counts: bytes really sent, or values: 32-bit words as the lp-proj paper counts (default bytes)"
    parser.add_argument("--count", choices=COUNTS, default="bytes", help=text)
    parser.epilog = "Here --bytes and --target-accuracy stop no run: they add columns, accuracy at the budget and the cost of the target."
    flags, file = common(parser, argv, None)
    parsed = flags.parse(argv)
    specs = parsed.methods or file["methods"]
    if not specs:
        raise SettingError(f"compare: name methods: {', '.join(methods.METHODS)}")
    plans = []
    for spec in specs:
        name, fields, own = row_spec(spec)
        plans.append(dataclasses.replace(plan_of(flags, parsed, file, name, fields), own=own))
    directory = _directory(parsed.directory, "compare")
    _compare_plans(
        plans,
        not parsed.no_baselines,
        directory,
        parsed.json,
        parsed.quiet,
        resume=False,
        count=parsed.count,
    )


def _compare_plans(
    plans: list[Plan],
    baselines: bool,
    directory: Path,
    as_json: bool,
    quiet: bool,
    resume: bool,
    count: str = "bytes",
) -> None:
    settings, federation = [p.make_settings() for p in plans], plans[0].make_data()
    task, goals = plans[0].make_task(federation), goals_of(settings, count)
    rounds = [s.seeds * s.rounds for s in settings]
    with _progress(sum(rounds) + baselines * rounds[0], quiet) as bar, _resumable(directory):
        rows = compare(
            plans,
            federation,
            task,
            directory,
            baselines=baselines,
            count=count,
            resume=resume,
            report=bar,
        )
    title = f"{plans[0].data}: {federation.clients} clients, d = {task.d}"
    _show(rows, federation, as_json, single=False, title=title, goals=goals)
    ERR.print(f"run directory: {directory}", highlight=False)


def _pipeline(argv: list[str]) -> None:
    parser = Parser(
        prog="idiolect pipeline",
        allow_abbrev=False,
        description="Stages as one run, each started from the one before.",
    )
    parser.add_argument(
        "stages",
        nargs="+",
        help="METHOD:field=value,...@ROUNDS, in order: fedavg@50 ffgg:part=output@50",
    )
    flags, file = common(parser, argv, None)
    parsed = flags.parse(argv)
    plans = []
    for stage in parsed.stages:
        spec, at, rounds = stage.partition("@")
        if not at or not rounds.isdigit():
            raise SettingError(f"stages: {stage!r} is not accepted; METHOD:field=value,...@ROUNDS")
        plan = plan_of(flags, parsed, file, *method_spec(spec))
        plans.append(dataclasses.replace(plan, settings={**plan.settings, "rounds": int(rounds)}))
    directory = _directory(parsed.directory, "pipeline")
    if directory.exists():
        raise SettingError(
            f"directory: {directory} already exists; choose another, or: idiolect resume {directory}"
        )
    directory.mkdir(parents=True)
    (directory / "pipeline.json").write_text(json.dumps([p.as_dict() for p in plans], indent=1))
    _pipeline_plans(plans, directory, parsed.json, parsed.quiet, resume=False)


def _pipeline_plans(
    plans: list[Plan], directory: Path, as_json: bool, quiet: bool, resume: bool
) -> None:
    federation = plans[0].make_data()
    task = plans[0].make_task(federation)
    settings = [p.make_settings() for p in plans]
    stages = [(p.make_method(), s.rounds) for p, s in zip(plans, settings, strict=True)]
    for method, _ in stages:
        method.check(task)
    with _progress(sum(s.seeds * s.rounds for s in settings), quiet) as bar, _resumable(directory):
        origins = [p.as_dict() for p in plans]
        results = pipeline(
            stages,
            task,
            federation,
            directory=directory,
            resume=resume,
            report=bar,
            origins=origins,
            **plans[0].settings,
        )
    rows = [r.summary() | {"label": f"stage {i}: {r.label}"} for i, r in enumerate(results)]
    _show(
        rows,
        federation,
        as_json,
        single=False,
        title=f"{plans[0].data}: {federation.clients} clients, d = {task.d}",
    )
    ERR.print(f"run directory: {directory}", highlight=False)


def _demo(argv: list[str]) -> None:
    parser = Parser(
        prog="idiolect demo",
        allow_abbrev=False,
        description="Several methods on Synthetic(0, 0), 100 clients, 3 seeds.",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON value on stdout, everything else on stderr",
    )
    parser.add_argument("--directory", help="where the runs are written (default runs/<time>-demo)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parsed = Flags(parser).parse(argv)
    settings = {"rounds": 100, "sample": 10, "seeds": 3, "eval_every": 5, "threads": 1}
    specs = ("local:steps=1", "local:steps=20", "fedavg", "fedprox", "lp-proj-1", "lp-proj-2")
    plans = [
        Plan(
            *method_spec(s),
            data="synthetic",
            data_options={"alpha": 0.0, "beta": 0.0},
            settings=settings,
        )
        for s in specs
    ]
    ERR.print(
        "Synthetic(0, 0): 100 clients, 10 heard a round, 100 rounds, 3 seeds; every client is tested on its own data",
        highlight=False,
    )
    _compare_plans(
        plans, True, _directory(parsed.directory, "demo"), parsed.json, parsed.quiet, resume=False
    )
    ERR.print(
        "Reading it: one class already answers most of a client's questions here (majority). Models of one's own beat the shared one "
        "(fedavg, fedprox). lp-proj sends 21 numbers a message instead of 610. Against Local, look at the row with as many gradients: "
        "on these data the gain of lp-proj over training alone is compute, not collaboration.",
        highlight=False,
    )


def _resume(argv: list[str]) -> None:
    parser = Parser(
        prog="idiolect resume",
        allow_abbrev=False,
        description="Continue an interrupted run to exactly the result it would have had.",
    )
    parser.add_argument("run", help="the run's directory")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON value on stdout, everything else on stderr",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parsed = Flags(parser).parse(argv)
    path = Path(parsed.run)
    if (path / "compare.json").exists():
        saved = json.loads((path / "compare.json").read_text())
        _compare_plans(
            [Plan(**p) for p in saved["plans"]],
            saved["baselines"],
            path,
            parsed.json,
            parsed.quiet,
            True,
            saved.get("count", "bytes"),
        )
        return
    if (path / "pipeline.json").exists():
        stages = [Plan(**p) for p in json.loads((path / "pipeline.json").read_text())]
        _pipeline_plans(stages, path, parsed.json, parsed.quiet, resume=True)
        return
    with RunDirectory(path, fresh=False) as folder:
        origin = folder.read_json("settings.json").get("origin")
    if not origin:
        raise SettingError(
            f"resume: {path} was started from Python with the user's own data; continue it there: idiolect.run(..., resume=True)"
        )
    _run_plan(Plan(**origin), path, parsed.json, parsed.quiet, resume=True)


# -- data --------------------------------------------------------------------------------------------------------------------
def _data(argv: list[str]) -> None:
    from . import data as data_cli

    data_cli.main(argv, OUT)


# -- shared --------------------------------------------------------------------------------------------------------------------
def _show(
    rows: list[dict[str, Any]],
    federation: Federation,
    as_json: bool,
    single: bool,
    title: str,
    goals: Goals | None = None,
) -> None:
    asked = {key: None for key in rows[0] if key.startswith(("at_budget", "to_target"))}
    baseline = [majority_row(federation) | asked] if federation.classes else []
    if as_json:
        print(json.dumps(plain(rows[0] if single else baseline + rows)))
    else:
        OUT.print(results_table(baseline + rows, title, OUT.width, goals))


def _directory(given: str | None, name: str) -> Path:
    if given:
        return Path(given)
    base = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    path, n = base, 1
    while path.exists():
        path, n = base.with_name(f"{base.name}-{n}"), n + 1
    return path


@contextmanager
def _resumable(directory: Path) -> Iterator[None]:
    try:
        yield
    except Interrupted as stop:
        raise Interrupted(f"{stop}; continue with: idiolect resume {directory}") from None


@contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Any]:
    """A bar over all rounds of all seeds: rounds a second and the current accuracy. Gives a function that makes a run's reporter."""
    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=ERR, disable=quiet or not total, transient=False) as bar:
        task = bar.add_task("starting", total=total, rate="")
        began, done, first = time.perf_counter(), [0], [0]

        def start(name: str, seed0: int, rounds: int) -> Report:
            first[0] = done[0]

            def report(seed: int, round: int, accuracy: float) -> None:
                done[0] = first[0] + (seed - seed0) * rounds + round
                shown = "" if accuracy != accuracy else f", accuracy {accuracy:.4f}"
                rate = f"{done[0] / (time.perf_counter() - began):.1f} rounds/s"
                bar.update(
                    task, completed=done[0], description=f"{name} seed {seed}{shown}", rate=rate
                )

            return report

        yield start
        bar.update(task, completed=total)


COMMANDS: dict[str, tuple[Any, str, str]] = {
    "demo": (
        _demo,
        "",
        "several methods compared on 100 clients, in under a minute, without a download",
    ),
    "run": (_run, "METHOD", "train one method"),
    "compare": (
        _compare,
        "METHODS…",
        "train several methods on the same data, with Local at equal compute beside them",
    ),
    "pipeline": (_pipeline, "STAGES…", "stages as one run: pre-train, personalise, fine-tune"),
    "reproduce": (info.reproduce, "NAME", "a stored table again, by name"),
    "methods": (info.methods, "", "what there is, when to use it, what it costs"),
    "channels": (
        info.channels,
        "",
        "how to send less: what each channel does and the bytes of a message",
    ),
    "attacks": (info.attacks, "", "what malicious clients can do"),
    "rules": (info.rules, "", "how the server combines messages, and how many liars it bears"),
    "projections": (
        info.projections,
        "",
        "what each kind of P costs for your model: singular values, memory, time, bytes",
    ),
    "kernels": (
        info.kernels,
        "",
        "how fast each way to compute the cohort gradient is on your data and model",
    ),
    "data": (
        _data,
        "list | get NAME | show NAME",
        "data sets: what there is, get one, see who has what",
    ),
    "resume": (_resume, "RUN", "continue an interrupted run, exactly"),
}

if __name__ == "__main__":
    sys.exit(main())
