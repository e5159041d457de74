"""What commands that train have in common: a progress bar, a directory, a word on how to resume."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from ..core.paths import given_folder, resume_command
from ..core.text import shown
from ..report.console import ERR
from ..run.compare import Reporter
from ..run.interrupts import Interrupted
from ..run.run import Progress as Report


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
    """A bar over all rounds of all seeds: rounds per second and the current accuracy.

    Gives a function that makes a run's reporter.
    """
    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=ERR, disable=quiet or not total) as bar:
        task = bar.add_task("starting", total=total, rate="")
        began = time.perf_counter()
        done = 0  # rounds of all runs so far
        before = 0  # rounds of the runs before this one

        def start(name: str, first_seed: int, rounds: int) -> Report:
            nonlocal before
            before = done

            def report(seed: int, round: int, figure: float) -> None:
                nonlocal done
                done = before + (seed - first_seed) * rounds + round
                name_of = getattr(figure, "name", "accuracy")
                reached = "" if figure != figure else f", {name_of} {figure:.4f}"
                rate = f"{done / (time.perf_counter() - began):.1f} rounds/s"
                text = f"{shown(name)} seed {seed}{reached}"
                bar.update(task, completed=done, description=text, rate=rate)

            return report

        yield start
        bar.update(task, completed=total)
