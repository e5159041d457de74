"""`idiolect sweep`: every combination of a grid, with every seed, on all cores."""

from __future__ import annotations

import json
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
from ..options import Parser, plans_of, training_flags
from ..output import directory_for, resumable

EXAMPLES = """For example:
  idiolect sweep ditto --grid lam=0.01,0.1,1 --grid lr=0.05,0.1 --data digits --seeds 3
  idiolect sweep fedavg ditto --grid data.classes_per_client=2,5,10 --data digits --clients 20
  idiolect sweep fedavg:lr=0.1 fedavg:lr=0.5,steps=1 --jobs 4 --directory sweeps/lr
A sweep that was stopped goes on with the same command, or with: idiolect resume DIRECTORY"""


def sweep(argv: list[str]) -> None:
    """Run every combination of a grid and show one table."""
    parser = Parser("sweep", "Every combination of a grid with every seed, as one job.")
    parser.epilog = EXAMPLES
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
    flags, file = training_flags(parser, argv, None)
    parsed = flags.parse(argv)
    plans = plans_of(flags, parsed, file, "sweep")
    if parsed.jobs < 0:
        raise SettingError(f"jobs: {parsed.jobs} is not accepted; a whole number >= 0")
    directory = directory_for(parsed.directory, "sweep")
    run(plans, parsed.grid, parsed.jobs, directory, parsed.json, parsed.quiet)


def run(
    plans: Sequence[Plan],
    grid: Sequence[str] | Mapping[str, Any],
    jobs: int,
    directory: Path,
    as_json: bool,
    quiet: bool,
) -> None:
    """Sweep, show the table, and say what failed."""
    watch = None if quiet else job_progress
    with resumable(directory):
        found = sweep_plans(plans, grid, jobs=jobs, directory=directory, watch=watch)
    if as_json:
        print(json.dumps(found.rows()))
    elif found.summaries:
        OUT.print(found.table(OUT.width))
    for trial, why in found.failed.items():
        say(f"failed: {shown(trial.describe())}: {shown(why)}")
    say(f"directory: {directory}")
    if found.failed:
        many = len(found.failed) + len(found.summaries)
        raise SettingError(
            f"sweep: {len(found.failed)} of {many} runs failed; the same command tries them again"
        )


def resume(directory: Path, as_json: bool, quiet: bool) -> None:
    """Go on with a sweep that was stopped."""
    saved = read_json(directory / SWEEP)
    if not isinstance(saved, dict) or "plans" not in saved:
        raise SettingError(
            f"resume: {directory} holds a sweep that was started in Python; the same call of "
            "idiolect.sweep with this directory goes on with it"
        )
    grid = saved.get("grid")
    if not isinstance(saved["plans"], list) or not isinstance(grid, dict):
        raise SettingError(f"resume: cannot use {directory / SWEEP}: no sweep is described")
    plans = [Plan.read(plan, SWEEP) for plan in saved["plans"]]
    run(plans, grid, 0, directory, as_json, quiet)
