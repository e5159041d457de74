"""`idiolect sweep`: every combination of a grid, with every seed, on all cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.files import read_json
from ...core.knobs import SettingError
from ...core.text import shown
from ...report.console import OUT, say
from ...run.plan import Plan
from ...study.progress import job_progress
from ...study.results import SWEEP
from ...study.sweep import sweep_plans
from ..options import TrainingParser
from ..output import Output, directory_for, emit, resumable

EXAMPLES = """For example:
  idiolect sweep ditto --grid lam=0.01,0.1,1 --grid lr=0.05,0.1 --data digits --seeds 3
  idiolect sweep fedavg ditto --grid data.classes_per_client=2,5,10 --data digits --clients 20
  idiolect sweep fedavg:lr=0.1 fedavg:lr=0.5,steps=1 --jobs 4 --directory sweeps/lr
Resume an interrupted sweep with the same command, or with: idiolect resume DIRECTORY"""


def sweep(argv: list[str]) -> None:
    """Run every combination of a grid and show one table."""
    parser = TrainingParser(
        "sweep", "Every combination of a grid with every seed, as one job.", EXAMPLES
    )
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
    parser.add_argument(
        "--jobs", type=int, default=0, help="worker processes (default 0: as many as cores)"
    )
    request = parser.request(argv)
    flags = request.flags
    plans = request.plans("sweep")
    check_jobs(flags.jobs)
    directory = directory_for(flags.directory, "sweep")
    run(plans, flags.grid, flags.jobs, directory, Output.of(flags))


def check_jobs(jobs: int) -> None:
    """Refuse a negative number of worker processes."""
    if jobs < 0:
        raise SettingError(f"jobs must be a whole number >= 0, got {jobs}")


def run(
    plans: Sequence[Plan],
    grid: Sequence[str] | Mapping[str, Any],
    jobs: int,
    directory: Path,
    output: Output,
) -> None:
    """Sweep, and show the table and the failures."""
    watch = None if output.quiet else job_progress
    with resumable(directory):
        outcome = sweep_plans(plans, grid, jobs=jobs, directory=directory, watch=watch)
    emit(output.json, outcome.rows(), *([outcome.table(OUT.width)] if outcome.summaries else []))
    for trial, why in outcome.failed.items():
        say(f"failed: {shown(trial.describe())}: {shown(why)}")
    say(f"directory: {directory}")
    if outcome.failed:
        many = len(outcome.failed) + len(outcome.summaries)
        raise SettingError(
            f"sweep: {len(outcome.failed)} of {many} runs failed; the same command tries them again"
        )


def resume(directory: Path, output: Output) -> None:
    """Continue an interrupted sweep."""
    saved = read_json(directory / SWEEP)
    if not isinstance(saved, dict) or "plans" not in saved:
        raise SettingError(
            f"resume: {directory} is a sweep started in Python; the same call of "
            "idiolect.sweep with this directory continues it"
        )
    grid = saved.get("grid")
    if not isinstance(saved["plans"], list) or not isinstance(grid, dict):
        raise SettingError(f"resume: cannot use {directory / SWEEP}: no sweep is described")
    plans = [Plan.read(plan, SWEEP) for plan in saved["plans"]]
    run(plans, grid, 0, directory, output)
