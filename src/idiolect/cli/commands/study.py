"""`idiolect sweep`, `tune`, `advise` and `splits`: questions that many runs answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.files import given_path, read_document
from ...core.knobs import Knobs, SettingError, knob, refused_in
from ...core.text import plural, shown
from ...models.adapters import KINDS
from ...report.console import OUT, literal, say
from ...report.progress import Meter
from ...run.plan import Plan
from ...run.settings import Settings
from ...study.advise.advise import AdviceOptions
from ...study.advise.advise import advise as run_advise
from ...study.folders import SWEEP, TUNING
from ...study.jobs import job_progress
from ...study.space import grid_of, is_compressor
from ...study.splits import ROUNDS
from ...study.splits import splits as measure_splits
from ...study.sweep import sweep_plans
from ...study.trees import TreeOptions
from ...study.tune import SearchOptions, heading, search_options, tune_plans
from ..options import Request, TrainingParser
from ..output import Output, emit, resumable

SWEEP_EXAMPLES = """For example:
  idiolect sweep ditto --grid lam=0.01,0.1,1 --grid lr=0.05,0.1 --data digits --seeds 3
  idiolect sweep fedavg ditto --grid data.classes_per_client=2,5,10 --data digits --clients 20
  idiolect sweep fedavg:lr=0.1 fedavg:lr=0.5,steps=1 --jobs 4 --directory sweeps/lr
Resume an interrupted sweep with the same command, or with: idiolect resume DIRECTORY"""
TUNE_EXAMPLES = """For example:
  idiolect tune ditto --data digits --grid lam=0.01,0.1,1 --grid lr=0.05,0.1
  idiolect tune lp-proj-1 fedavg qsgd --grid paper --data synthetic --seeds 3
  idiolect tune ditto --trials 30 --data digits
  idiolect tune fedavg --space space.toml --trials 30 --criterion worst10
The best settings are in DIRECTORY/best.toml: idiolect run --config DIRECTORY/best.toml
Continue an interrupted search with: idiolect resume DIRECTORY"""
ADVISE_EXAMPLES = """Judged on validation samples, or folds of the training samples; test samples \
are not looked at.
For example:
  idiolect advise --data table --path visits.csv --client hospital --target outcome
  idiolect advise --config idiolect.toml --quick
  idiolect advise ditto:lam=1 lp-proj:dim=50 --data digits --clients 20
Local and fedavg are always among the candidates."""
SPLITS_EXAMPLES = f"""The start is {ROUNDS} rounds of FedAvg (--rounds, --start), or --weights FILE.
Then the private part of every client is fine-tuned (--finetune-steps 50; --finetune-lr, else the \
best of several).
For example:
  idiolect splits --data digits --clients 20 --classes-per-client 2 --seeds 3
  idiolect splits --data sotu --model transformer --width 64 --hidden 128 --parts 'input;output'"""


# -- sweep -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SweepOptions(Knobs):
    """How a sweep is run."""

    jobs: int = knob(0, "worker processes; 0 = as many as cores", low=0)
    show_test: bool = knob(
        False, "figures on test data in the table, by which no setting should be chosen"
    )


def sweep(argv: list[str]) -> None:
    """Run every combination of a grid and show one table."""
    parser = TrainingParser("sweep", SWEEP_EXAMPLES, SweepOptions)
    parser.add_argument(
        "methods", nargs="*", help="methods, with fields and run settings: lp-proj:p=1,sample=5"
    )
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="NAME=VALUE,VALUE,...",
        help="what is varied: a field of the methods, a run setting, data.OPTION or model.OPTION; "
        "may be given several times",
    )
    request = parser.request(argv)
    output = request.flags.output
    plans = request.plans("sweep")
    options = request.flags.options
    directory = output.new_directory("sweep")
    run_sweep(plans, request.flags.grid, options.jobs, directory, output, options.show_test)


def run_sweep(
    plans: Sequence[Plan],
    grid: Sequence[str] | Mapping[str, Any],
    jobs: int,
    directory: Path,
    output: Output,
    show_test: bool = False,
) -> None:
    """Sweep, and show the table and the failures."""
    watch = None if output.quiet else job_progress
    with resumable(directory):
        outcome = sweep_plans(plans, grid, jobs=jobs, directory=directory, watch=watch)
    views = [outcome.table(OUT.width, show_test)] if outcome.summaries else []
    emit(output.json, outcome.rows(), *views)
    for trial, why in outcome.failed.items():
        say(f"failed: {shown(trial.describe())}: {shown(why)}")
    say(f"directory: {directory}")
    if outcome.failed:
        many = len(outcome.failed) + len(outcome.summaries)
        raise SettingError(
            f"sweep: {len(outcome.failed)} of {plural(many, 'run')} failed; the same command "
            "tries them again"
        )


def resume_sweep(directory: Path, output: Output) -> None:
    """Continue an interrupted sweep."""
    saved = _saved(directory, SWEEP, "sweep")
    grid = saved.get("grid")
    if not isinstance(grid, dict):
        raise SettingError(f"resume: cannot use {directory / SWEEP}: no grid is described")
    run_sweep([Plan.read(plan, SWEEP) for plan in saved["plans"]], grid, 0, directory, output)


def _saved(directory: Path, name: str, function: str) -> dict[str, Any]:
    """The file that describes a sweep or a search of the command line."""
    saved = read_document(directory / name, dict[str, Any])
    if "plans" not in saved:
        raise SettingError(
            f"resume: {directory} was started in Python; the same call of "
            f"idiolect.{function} with this directory continues it"
        )
    if not isinstance(saved["plans"], list) or not saved["plans"]:
        raise SettingError(f"resume: cannot use {directory / name}: no plan is described")
    return saved


# -- tune ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class TuneOptions(Knobs):
    """How settings are searched."""

    criterion: str = knob(
        "pooled",
        "on validation data: pooled over samples, mean over clients (clients), or over their "
        "worst tenth (worst10)",
    )
    search_seeds: int = knob(
        1, "seeds of the search, from --seed on; the final run has the --seeds after them"
    )
    jobs: int = knob(0, "worker processes; 0 = for a grid as many as cores, for trials one", low=0)


def tune(argv: list[str]) -> None:
    """Choose settings on validation data, then train with them and test."""
    parser = TrainingParser("tune", TUNE_EXAMPLES, TuneOptions)
    parser.add_argument(
        "methods",
        nargs="*",
        help="methods; fields that are given are not varied: lp-proj:p=1,dim=50. For the grid of "
        "the lp-proj paper also sketch, lbgm, qsgd and dgc: FedAvg through these channels",
    )
    parser.add_argument(
        "--grid",
        action="append",
        metavar="PAPER | NAME=VALUE,VALUE,...",
        help="paper: the grid of the paper that has the method; lp-proj, ffgg or feddeper; or a "
        "grid of your own, which may be given several times (default paper)",
    )
    parser.add_argument(
        "--space",
        metavar="FILE",
        help="TOML with lines such as lr = {low = 0.001, high = 1, log = true}, steps = [1, 5]",
    )
    parser.add_argument(
        "--trials",
        type=int,
        help="settings that Optuna tries in the space (default 50); without one, in a space that "
        "is derived from the fields of the method",
    )
    request = parser.request(argv)
    flags, options = request.flags, request.flags.options
    plans = _tuned_plans(request)
    how = search_options(
        flags.grid, flags.space, flags.trials, options.criterion, options.search_seeds
    )
    run_tune(plans, how, options.jobs, flags.output.new_directory("tune"), flags.output)


def _tuned_plans(request: Request) -> list[Plan]:
    """The plans of the methods; a compressor of a paper's grid is FedAvg under another name."""
    plans = []
    for spec in request.flags.methods or request.file.methods or [""]:
        name, colon, rest = spec.partition(":")
        if is_compressor(name):
            method = f"{grid_of('paper', name).method}{colon}{rest}"
            (plan,) = request.plans("tune", [method])
            plans.append(dataclasses.replace(plan, method=name))
        else:
            plans += request.plans("tune", [spec] if spec else None)
    return plans


def run_tune(
    plans: list[Plan], how: SearchOptions, jobs: int, directory: Path, output: Output
) -> None:
    """Tune, and show the search, its notes and the table of the final runs."""
    with resumable(directory):
        tuned = tune_plans(
            plans,
            how,
            plans[0].make_data(),
            jobs=jobs,
            directory=directory,
            watch=None if output.quiet else job_progress,
            follow=output.meter,
        )
    first = tuned.searches[tuned.names[0]]
    emit(
        output.json,
        tuned.as_dict(),
        heading(first.criterion, tuned.seeds),
        tuned.table(OUT.width),
        *map(literal, tuned.notes()),
        tuned.comparison.table(OUT.width),
    )
    for file in tuned.file_names().values() if not output.json else ():
        OUT.print(literal(f"settings: {directory / file}"), soft_wrap=True)
    say(f"directory: {directory}")


def resume_tune(directory: Path, output: Output) -> None:
    """Continue an interrupted search."""
    saved = _saved(directory, TUNING, "tune")
    plans = [Plan.read(plan, TUNING) for plan in saved["plans"]]
    jobs = saved.get("jobs", 0)
    how = SearchOptions.read(saved, TUNING)
    run_tune(plans, how, jobs if isinstance(jobs, int) else 0, directory, output)


# -- advise ----------------------------------------------------------------------------------------
def advise(argv: list[str]) -> None:
    """Whether these clients should learn together, by which method, and who gains by it."""
    parser = TrainingParser("advise", ADVISE_EXAMPLES, TreeOptions)
    parser.add_argument(
        "methods", nargs="*", help="candidates beside local and fedavg, with fields of their own"
    )
    parser.add_argument("--picture", metavar="FILE", help="draw the advice on one page, as PNG")
    parser.add_argument("--verbose", action="store_true", help="print details of the theory too")
    parser.add_fields("advise", AdviceOptions, "advice")
    request = parser.request(argv)
    flags, output = request.flags, request.flags.output
    picture = given_path(flags.picture, "picture") if flags.picture else None
    plan = request.plan("fedavg", {})
    # settings of a file that concern whole runs are left out
    refused = set(refused_in(Settings, "advise")) - set(parser.values(flags, "run"))
    if ignored := [name for name in plan.settings if name in refused]:
        say(f"ignored from the settings file: {', '.join(ignored)} (not for advise)")
    if request.file.methods and not flags.methods:
        say(
            f"methods of the settings file ({', '.join(request.file.methods)}) "
            "do not narrow advise: name the candidates on the command line to do that"
        )
    directory = output.new_directory("advise")
    federation = plan.make_data()
    task = plan.make_task(federation)
    with Meter(1, output.style, "trainings", estimated=True) as trainings:
        advice = run_advise(
            federation,
            task,
            flags.methods,
            directory=directory,
            progress=lambda count, total, what: trainings.update(count, what, total=total),
            trees=flags.options.with_trees,
            **parser.values(flags, "advise"),
            **{name: value for name, value in plan.settings.items() if name not in ignored},
        )
    if picture is not None:
        advice.picture(Path(picture))
    shown_advice = dataclasses.replace(advice, verbose=flags.verbose)
    emit(output.json, advice.as_dict(), shown_advice)
    say(f"advice directory: {directory}")


# -- splits ----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class SplitsOptions(Knobs):
    """Which parts are measured, and how."""

    parts: str = knob(
        "",
        "candidates, separated by semicolons: 'input;output;block:2;adapter,norms'; "
        "'' = every block or layer, norms, biases, adapters",
    )
    rank: int = knob(
        4, "inner width of the adapters that a model without any is given; 0 = none", low=0
    )
    adapters: str = knob("low-rank", "the kind of these adapters", choices=tuple(KINDS))
    start: str = knob(
        "fedavg", "the method whose shared model is the start: fedavg:lr=0.05,steps=10"
    )
    private_start: str = knob(
        "common",
        "where the private part starts: common (as the start has it), or random, as in ffgg "
        "unless it has start=common",
        choices=("common", "random"),
    )


def splits(argv: list[str]) -> None:
    """Measure every part of a model that could be personal."""
    request = TrainingParser("splits", SPLITS_EXAMPLES, SplitsOptions).request(argv)
    options, output = request.flags.options, request.flags.output
    plan = request.plan("fedavg", {})
    federation = plan.make_data()
    task = plan.make_task(federation)
    settings = plan.make_settings()
    rounds = settings.rounds if "rounds" in plan.settings else ROUNDS
    with output.meter(settings.seeds * rounds) as meter:
        candidates = measure_splits(
            task,
            federation,
            parts=options.parts,
            rank=options.rank,
            adapter=options.adapters,
            start=options.start,
            private_start=options.private_start,
            report=meter,
            tell=None if output.quiet else say,
            progress=False,
            **plan.settings,
        )
    emit(output.json, candidates.summary(), candidates.table())
