"""How far the trainings behind an advice have come."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...report.progress import AFTER, style_of
from .training import FIRST

Report = Callable[[int, int, str], None]  # trainings done, about how many there are, what was done
clock = time.monotonic


class Steps:
    """Counts trainings; about how many there are, since a grid may grow."""

    def __init__(self, report: Report | None, candidates: int, seeds: int, halves: int):
        self.report = report
        self.count = 0
        self.total = candidates * (len(FIRST) + 2 * (seeds - 1)) + halves
        self.later = seeds - 1

    def kept(self, tried: int, kept: int) -> None:
        """The step sizes of a candidate are found: now it is known how many trainings it takes."""
        self.total += tried - len(FIRST) + (kept - 2) * self.later

    def done(self, what: str) -> None:
        """A training is done."""
        self.count += 1
        if self.report:
            self.report(self.count, max(self.total, self.count), what)


@contextmanager
def reporting(given: bool | Report | None) -> Iterator[Report | None]:
    """What is told of every training: the user's function, a bar, or nothing."""
    if given is not None and callable(given):
        yield given
    elif style_of(given) == "bar":
        with _Bar() as bar:
            yield bar
    else:
        yield None


class _Bar:
    """A bar on stderr; it appears after two seconds of work."""

    def __init__(self) -> None:
        self.began = clock()
        self._bar: Any = None

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int, what: str) -> None:
        if self._bar is None:
            if clock() - self.began < AFTER:
                return
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}", markup=False), BarColumn())
            self._bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task("advise", total=total)
        text = f"training {done} of about {total}: {what}"
        self._bar.update(self._task, completed=done, total=total, description=text)
