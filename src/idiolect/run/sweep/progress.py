"""How a sweep goes, on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn

from ...core.text import shown
from ...report.console import ERR, SECONDS, say
from ...report.figures import duration
from .trial import Trial


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
    """What `sweep` reports its runs to."""
    if not ERR.is_terminal:
        yield _Lines(trials)
        return
    made = _Bar(trials)
    with made.bar:
        yield made
