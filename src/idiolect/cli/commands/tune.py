"""`idiolect tune`: which settings? Chosen on validation data, then trained with and tested."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ...core.files import read_json
from ...core.knobs import SettingError
from ...report.console import OUT, say
from ...run.plan import Plan
from ...study.grids import grid_of, is_compressor
from ...study.progress import job_progress
from ...study.tune import TUNING, How, read_how, tune_plans
from ...study.tuning import Tuned, heading
from ..options import Request, TrainingParser
from ..output import Output, directory_for, emit, resumable
from .sweep import check_jobs

EXAMPLES = """For example:
  idiolect tune ditto --data digits --grid lam=0.01,0.1,1 --grid lr=0.05,0.1
  idiolect tune lp-proj-1 fedavg qsgd --grid paper --data synthetic --seeds 3
  idiolect tune ditto --trials 30 --data digits
  idiolect tune fedavg --space space.toml --trials 30 --criterion worst10
The best settings are in DIRECTORY/best.toml: idiolect run --config DIRECTORY/best.toml
Continue an interrupted search with: idiolect resume DIRECTORY"""


def tune(argv: list[str]) -> None:
    """Choose settings on validation data, then train with them and test."""
    parser = TrainingParser(
        "tune", "Choose settings on validation data, then train with them and test.", EXAMPLES
    )
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
    parser.add_argument(
        "--criterion",
        default="pooled",
        help="on validation data: pooled over samples, mean over clients (clients), or over their "
        "worst tenth (worst10) (default pooled)",
    )
    parser.add_argument(
        "--search-seeds",
        type=int,
        default=1,
        help="seeds of the search, from --seed on; the final run has the --seeds after them "
        "(default 1)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=0,
        help="worker processes (default 0: for a grid as many as cores, for trials one)",
    )
    request = parser.request(argv)
    parsed = request.flags
    plans = _plans(request)
    check_jobs(parsed.jobs)
    how = read_how(parsed.grid, parsed.space, parsed.trials, parsed.criterion, parsed.search_seeds)
    directory = directory_for(parsed.directory, "tune")
    run(plans, how, parsed.jobs, directory, Output.of(parsed))


def _plans(request: Request) -> list[Plan]:
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


def run(plans: list[Plan], how: How, jobs: int, directory: Path, output: Output) -> None:
    """Tune, and show the search and the final runs."""
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
    if output.json:
        emit(True, tuned.as_dict())
    else:
        show(tuned, directory)
    say(f"directory: {directory}")


def show(tuned: Tuned, directory: Path) -> None:
    """The search, its notes, and the table of the final runs."""
    first = tuned.searches[tuned.names[0]]
    OUT.print(heading(first.criterion, tuned.seeds), highlight=False)
    OUT.print(tuned.table(OUT.width))
    for line in tuned.notes():
        OUT.print(line, highlight=False, markup=False)
    OUT.print(tuned.comparison.table(OUT.width))
    for file in tuned.file_names().values():
        OUT.print(f"settings: {directory / file}", highlight=False, markup=False, soft_wrap=True)


def resume(directory: Path, output: Output) -> None:
    """Continue an interrupted search."""
    saved = read_json(directory / TUNING)
    if not isinstance(saved, dict) or "plans" not in saved:
        raise SettingError(
            f"resume: {directory} is a search started in Python; the same call of "
            "idiolect.tune with this directory continues it"
        )
    if not isinstance(saved["plans"], list) or not saved["plans"]:
        raise SettingError(f"resume: cannot use {directory / TUNING}: no tuning is described")
    plans = [Plan.read(plan, TUNING) for plan in saved["plans"]]
    how = How.read(saved, TUNING)
    jobs = saved.get("jobs", 0)
    run(plans, how, jobs if isinstance(jobs, int) else 0, directory, output)
