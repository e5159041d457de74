"""`idiolect tune`: which settings? Chosen on validation data, then trained with and tested."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from ...core.files import read_json
from ...core.knobs import SettingError
from ...methods import METHODS
from ...report.console import OUT, say
from ...run.plan import Plan
from ...study.grids import grid_of, is_compressor
from ...study.progress import job_progress
from ...study.tune import TUNING, How, read_how, tune_plans
from ...study.tuning import Tuned, heading
from ..options import Parser, plans_of, training_flags
from ..output import directory_for, meter, resumable

EXAMPLES = """For example:
  idiolect tune ditto --data digits --grid lam=0.01,0.1,1 --grid lr=0.05,0.1
  idiolect tune lp-proj-1 fedavg qsgd --grid paper --data synthetic --seeds 3
  idiolect tune ditto --trials 30 --data digits
  idiolect tune fedavg --space space.toml --trials 30 --criterion worst10
The best settings are in DIRECTORY/best.toml: idiolect run --config DIRECTORY/best.toml
A tuning that was stopped goes on with: idiolect resume DIRECTORY"""


def tune(argv: list[str]) -> None:
    """Choose settings on validation data, then train with them and test."""
    parser = Parser("tune", "Choose settings on validation data, then train with them and test.")
    parser.epilog = EXAMPLES
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
    flags, file = training_flags(parser, argv, None)
    parsed = flags.parse(argv)
    plans = _plans(flags, parsed, file)
    if parsed.jobs < 0:
        raise SettingError(f"jobs: {parsed.jobs} is not accepted; a whole number >= 0")
    how = read_how(parsed.grid, parsed.space, parsed.trials, parsed.criterion, parsed.search_seeds)
    directory = directory_for(parsed.directory, "tune")
    run(plans, how, parsed.jobs, directory, parsed.json, parsed.quiet)


def _plans(flags: Any, parsed: Any, file: dict[str, Any]) -> list[Plan]:
    """The plans of the methods; a compressor of a paper's grid is FedAvg under another name."""
    specs = parsed.methods or file["methods"]
    if not specs:
        raise SettingError(f"tune: name methods: {', '.join(METHODS)}")
    plans = []
    for spec in specs:
        name, colon, rest = spec.partition(":")
        if not is_compressor(name):
            parsed.methods = [spec]
            plans += plans_of(flags, parsed, file, "tune")
            continue
        parsed.methods = [f"{grid_of('paper', name).method}{colon}{rest}"]
        (plan,) = plans_of(flags, parsed, file, "tune")
        plans.append(dataclasses.replace(plan, method=name))
    return plans


def run(
    plans: list[Plan], how: How, jobs: int, directory: Path, as_json: bool, quiet: bool
) -> None:
    """Tune, and show what was found."""
    with resumable(directory):
        tuned = tune_plans(
            plans,
            how,
            plans[0].make_data(),
            jobs=jobs,
            directory=directory,
            watch=None if quiet else job_progress,
            follow=lambda total: meter(total, quiet),
        )
    if as_json:
        print(json.dumps(tuned.as_dict()))
    else:
        show(tuned, directory)
    say(f"directory: {directory}")


def show(tuned: Tuned, directory: Path) -> None:
    """The search, what it says, and the final table."""
    first = tuned.searches[tuned.names[0]]
    OUT.print(heading(first.criterion, tuned.seeds), highlight=False)
    OUT.print(tuned.table(OUT.width))
    for line in tuned.notes():
        OUT.print(line, highlight=False, markup=False)
    OUT.print(tuned.comparison.table(OUT.width))
    for file in tuned.file_names().values():
        OUT.print(f"settings: {directory / file}", highlight=False, markup=False, soft_wrap=True)


def resume(directory: Path, as_json: bool, quiet: bool) -> None:
    """Go on with a tuning that was stopped."""
    saved = read_json(directory / TUNING)
    if not isinstance(saved, dict) or "plans" not in saved:
        raise SettingError(
            f"resume: {directory} holds a tuning that was started in Python; the same call of "
            "idiolect.tune with this directory goes on with it"
        )
    if not isinstance(saved["plans"], list) or not saved["plans"]:
        raise SettingError(f"resume: cannot use {directory / TUNING}: no tuning is described")
    plans = [Plan.read(plan, TUNING) for plan in saved["plans"]]
    how = How.read(saved, TUNING)
    jobs = saved.get("jobs", 0)
    run(plans, how, jobs if isinstance(jobs, int) else 0, directory, as_json, quiet)
