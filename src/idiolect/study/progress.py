"""How many runs go, on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn

from ..core.text import shown
from ..report.console import ERR, say
from ..report.format import duration
from ..report.progress import SECONDS
from .many import Job

Kind = tuple[str, ...]  # what a run has in common with others: data and method


class _Pace:
    """How long the rest takes, by what runs of its kind have taken.

    Rounds of one data set or method may take a hundred times as long as those of another: a kind
    that has ended nowhere yet takes as long as the others on its data, or as all.
    """

    def __init__(self) -> None:
        self.todo: dict[Kind, float] = {}  # cost
        self.seen: dict[Kind, tuple[float, float]] = {}  # cost and seconds of what has ended
        self.seconds = 0.0

    def expect(self, trial: Job, cost: float) -> None:
        kind = _kind(trial)
        self.todo[kind] = self.todo.get(kind, 0.0) + cost

    def ended(self, trial: Job, cost: float, seconds: float | None) -> None:
        """One of those that were expected; without its seconds it tells nothing of others."""
        kind = _kind(trial)
        self.todo[kind] -= cost
        if seconds is None or not cost:
            return
        self.seconds += seconds
        for part in range(len(kind) + 1):
            before = self.seen.get(kind[:part], (0.0, 0.0))
            self.seen[kind[:part]] = (before[0] + cost, before[1] + seconds)

    def left(self, elapsed: float) -> float | None:
        """Seconds until the end, at the pace so far; None where nothing is known."""
        if not self.seconds:
            return None
        workers = max(1.0, self.seconds / max(elapsed, 1e-9))  # that were really at work
        return sum(cost * self._rate(kind) for kind, cost in self.todo.items()) / workers

    def _rate(self, kind: Kind) -> float:
        known = next(kind[:n] for n in range(len(kind), -1, -1) if kind[:n] in self.seen)
        cost, seconds = self.seen[known]
        return seconds / cost


def _kind(trial: Job) -> Kind:
    setting = getattr(trial, "setting", None)
    return () if setting is None else (setting.data, setting.name)


def _seconds(outcome: Any) -> float | None:
    """That a run took, where its outcome says so."""
    return outcome.get("seconds") if isinstance(outcome, Mapping) else None


class Progressing:
    """Says how many runs go: how many are done and failed, and when they will end."""

    def __init__(self, trials: Sequence[Job]):
        self.costs = {trial: trial.cost() for trial in trials}
        self.total = sum(self.costs.values())
        self.began = time.monotonic()
        self.before = 0.0  # cost of what was done at the start
        self.done = 0
        self.cost = 0.0
        self.broken = 0
        self.pace = _Pace()
        for trial, cost in self.costs.items():
            self.pace.expect(trial, cost)

    def report(self, results: Mapping[Any, Any], trial: Job | None) -> None:
        self.done = len(results)
        if trial is None:
            self.before = self.cost = sum(self.costs[t] for t in results)
            for t in results:
                self.pace.ended(t, self.costs[t], None)
            self.show(f"{self.done} were done before" if self.done else "starting", True)
            return
        self.cost += self.costs[trial]
        self.pace.ended(trial, self.costs[trial], _seconds(results[trial]))
        self.show(trial.describe(), self.done == len(self.costs))

    def failed(self, trial: Job, why: str) -> None:
        self.broken += 1
        self.cost += self.costs[trial]
        self.pace.ended(trial, self.costs[trial], None)
        self.show(f"{trial.describe()} failed: {why}", True)

    def words(self) -> str:
        text = f"{self.done} of {len(self.costs)} runs"
        text += f", {self.broken} failed" if self.broken else ""
        now = self.cost - self.before
        if now and self.cost < self.total:
            elapsed = time.monotonic() - self.began
            left = self.pace.left(elapsed)
            if left is None:
                left = (self.total - self.cost) * elapsed / now
            text += f", about {duration(left)} left"
        return text

    def show(self, what: str, always: bool) -> None:
        raise NotImplementedError


class _Bar(Progressing):
    def __init__(self, trials: Sequence[Job]):
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
def watched(trials: Sequence[Job]) -> Iterator[Progressing]:
    """What `sweep` and `finish` of run/grid.py report their runs to."""
    if not ERR.is_terminal:
        yield _Lines(trials)
        return
    made = _Bar(trials)
    with made.bar:
        yield made
