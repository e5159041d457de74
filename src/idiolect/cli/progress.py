"""What commands that train have in common: a progress bar, a directory, a word on how to resume."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from ..core.files import given_folder, resume_command
from ..core.text import shown
from ..report.console import ERR, SECONDS, say
from ..report.figures import duration
from ..run.interrupts import Interrupted
from ..run.run import Progress as Report
from ..study.compare import Reporter

clock = time.monotonic


def directory_for(given: str | None, name: str) -> Path:
    """The run directory: as given, or a new one named by time and method."""
    if given:
        return given_folder(given, "directory")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    base = Path("runs") / f"{stamp}-{name.replace(':', '.')}"
    path = base
    number = 1
    while path.exists():
        path = base.with_name(f"{base.name}-{number}")
        number += 1
    return path


@contextmanager
def resumable(directory: Path) -> Iterator[None]:
    """An interrupted run says how to continue it."""
    try:
        yield
    except Interrupted as stop:
        text = f"{stop}; continue with: {resume_command(directory)}"
        raise Interrupted(text, stop.number) from None


@contextmanager
def progress_bar(total: int, quiet: bool) -> Iterator[Reporter]:
    """Progress over all rounds of all seeds: rounds per second and the current accuracy.

    On a terminal a bar; elsewhere (a log file, a pipe, a scheduler) a line on stderr now and then.
    Gives a function that makes a run's reporter.
    """
    if quiet or not total:
        yield _Rounds(lambda done, text, rate: None)
    elif ERR.is_terminal:
        columns = [
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
        ]
        with Progress(*columns, console=ERR) as bar:
            task = bar.add_task("starting", total=total, rate="")

            def draw(done: int, text: str, rate: float) -> None:
                speed = f"{rate:.1f} rounds/s"
                bar.update(task, completed=done, description=text, rate=speed)

            yield _Rounds(draw)
            bar.update(task, completed=total)
    else:
        yield _Rounds(Lines(total))


class Lines:
    """A line of progress every ten seconds and at each tenth of the rounds, on stderr."""

    def __init__(self, total: int, say: Callable[[str], None] = say):
        self.total = total
        self.say = say
        self.said_at = clock()
        self.tenth = 0

    def __call__(self, done: int, text: str, rate: float) -> None:
        tenth = 10 * done // self.total
        if tenth <= self.tenth and clock() - self.said_at < SECONDS:
            return
        self.tenth = max(tenth, self.tenth)
        self.said_at = clock()
        left = f", about {duration((self.total - done) / rate)} left" if rate else ""
        left = left if done < self.total else ""
        part = 100 * done // self.total
        self.say(f"{done:,} of {self.total:,} rounds ({part} %): {text}, {rate:.3g} rounds/s{left}")


class _Rounds:
    """Makes a reporter per run, which counts the rounds of all runs and says how they go."""

    def __init__(self, show: Callable[[int, str, float], None]):
        self.show = show
        self.began = clock()
        self.first = 0  # rounds that were done before this command, where a run is resumed
        self.done = 0  # rounds of all runs so far
        self.counted = False

    def __call__(self, name: str, first_seed: int, rounds: int) -> Report:
        before = self.done

        def report(seed: int, round: int, figure: float) -> None:
            self.done = before + (seed - first_seed) * rounds + round
            if not self.counted:
                self.counted = True
                self.first = self.done - 1
            what = getattr(figure, "name", "accuracy")
            reached = "" if figure != figure else f", {what} {figure:.4f}"
            rate = (self.done - self.first) / max(clock() - self.began, 1e-9)
            self.show(self.done, f"{shown(name)} seed {seed}{reached}", rate)

        return report
