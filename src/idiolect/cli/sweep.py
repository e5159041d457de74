"""`idiolect sweep`: every combination of a grid, with every seed, on all cores."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn

from ..core.files import read_json
from ..core.knobs import SettingError
from ..core.text import shown
from ..report.console import ERR, OUT, say
from ..run.plan import Plan
from ..run.sweep import sweep_plans
from ..run.sweep.sweep import MANIFEST
from ..run.sweep.trial import Trial
from .flags import Parser, plans_of, training_flags
from .progress import SECONDS, directory_for, duration, resumable

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
    watch = None if quiet else watched
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
    saved = read_json(directory / MANIFEST)
    if not isinstance(saved, dict) or "plans" not in saved:
        raise SettingError(
            f"resume: {directory} holds a sweep that was started in Python; the same call of "
            "idiolect.sweep with this directory goes on with it"
        )
    grid = saved.get("grid")
    if not isinstance(saved["plans"], list) or not isinstance(grid, dict):
        raise SettingError(f"resume: cannot use {directory / MANIFEST}: no sweep is described")
    plans = [Plan.read(plan, MANIFEST) for plan in saved["plans"]]
    run(plans, grid, 0, directory, as_json, quiet)


# -- progress ------------------------------------------------------------------------------------
class Progressing:
    """Says how a sweep goes: runs done, at work and failed, and when it will end."""

    def __init__(self, trials: Sequence[Trial]):
        self.costs = {trial: trial.cost() for trial in trials}
        self.total = sum(self.costs.values())
        self.began = time.monotonic()
        self.before = 0.0  # cost of what was done at the start
        self.done = 0
        self.cost = 0.0
        self.broken = 0

    def report(self, results: Mapping[Trial, Any], trial: Trial | None) -> None:
        self.done = len(results)
        if trial is None:
            self.before = self.cost = sum(self.costs[t] for t in results)
            self.show(f"{self.done} were done before" if self.done else "starting", True)
            return
        self.cost += self.costs[trial]
        self.show(trial.describe(), self.done == len(self.costs))

    def failed(self, trial: Trial, why: str) -> None:
        self.broken += 1
        self.cost += self.costs[trial]
        self.show(f"{trial.describe()} failed: {why}", True)

    def words(self) -> str:
        text = f"{self.done} of {len(self.costs)} runs"
        text += f", {self.broken} failed" if self.broken else ""
        now = self.cost - self.before
        if now and self.cost < self.total:
            left = (self.total - self.cost) * (time.monotonic() - self.began) / now
            text += f", about {duration(left)} left"
        return text

    def show(self, what: str, always: bool) -> None:
        raise NotImplementedError


class _Bar(Progressing):
    def __init__(self, trials: Sequence[Trial]):
        super().__init__(trials)
        columns = [BarColumn(), TextColumn("{task.description}", markup=False)]
        self.bar = Progress(*columns, console=ERR)
        self.task = self.bar.add_task("starting", total=self.total)

    def show(self, what: str, always: bool) -> None:
        self.bar.update(self.task, completed=self.cost, description=self.words())
        if self.broken and always:
            ERR.print(shown(what), highlight=False)


class _Lines(Progressing):
    """Without a terminal: a line every ten seconds and at the end."""

    said = 0.0

    def show(self, what: str, always: bool) -> None:
        if always or time.monotonic() - self.said > SECONDS:
            self.said = time.monotonic()
            say(f"{self.words()}: {shown(what)}")


@contextmanager
def watched(trials: Sequence[Trial]) -> Iterator[Progressing]:
    if not ERR.is_terminal:
        yield _Lines(trials)
        return
    made = _Bar(trials)
    with made.bar:
        yield made
