"""Progress of many runs on stderr, with an estimate of the time left."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..core.text import shown
from ..report.progress import Meter, style_of
from .many import Job

Kind = tuple[str, ...]  # what a run has in common with others: data and method


class JobProgress:
    """Counts jobs, and estimates the time left from finished jobs of the same kind.

    Rounds on one data set or of one method may take a hundred times as long as those of another: a
    kind of which no job has finished is taken to be as fast as the others on its data, or as all.
    """

    def __init__(self, jobs: Sequence[Job], meter: Meter):
        self.meter = meter
        self.costs = {job: job.cost() for job in jobs}
        self.began = time.monotonic()
        self.finished = 0
        self.failures = 0
        self.work_left: dict[Kind, float] = {}  # cost
        self.measured: dict[Kind, tuple[float, float]] = {}  # cost and seconds of finished jobs
        for job, cost in self.costs.items():
            self.work_left[_kind(job)] = self.work_left.get(_kind(job), 0.0) + cost

    def report(self, results: Mapping[Any, Any], job: Job | None) -> None:
        """All results so far, and the job that has just finished; None at the start."""
        self.finished = len(results)
        if job is None:
            for stored in results:
                self._count(stored, None)
            self.meter.before = float(self.finished)
            if self.finished:
                self.meter.note(f"{self.finished} of {len(self.costs)} runs are stored already")
            return
        outcome = results[job]
        self._count(job, outcome.get("seconds") if isinstance(outcome, Mapping) else None)
        self._show(shown(job.describe()))

    def failed(self, job: Job, reason: str) -> None:
        self.failures += 1
        self._count(job, None)
        self.meter.note(shown(f"{job.describe()} failed: {reason}"))
        self._show("")

    def seconds_left(self) -> float | None:
        """Until the end, at the pace so far; None where no job has been timed."""
        if () not in self.measured:
            return None
        elapsed = max(time.monotonic() - self.began, 1e-9)
        busy_workers = max(1.0, self.measured[()][1] / elapsed)
        return sum(cost * self._rate(kind) for kind, cost in self.work_left.items()) / busy_workers

    def _count(self, job: Job, seconds: float | None) -> None:
        kind, cost = _kind(job), self.costs[job]
        self.work_left[kind] -= cost
        if seconds is None or not cost:
            return
        for depth in range(len(kind) + 1):
            before = self.measured.get(kind[:depth], (0.0, 0.0))
            self.measured[kind[:depth]] = (before[0] + cost, before[1] + seconds)

    def _rate(self, kind: Kind) -> float:
        """Seconds per unit of cost."""
        depths = range(len(kind), -1, -1)
        cost, seconds = next(self.measured[kind[:n]] for n in depths if kind[:n] in self.measured)
        return seconds / cost

    def _show(self, text: str) -> None:
        if self.failures:
            text = f"{self.failures} failed{', ' if text else ''}{text}"
        self.meter.update(self.finished + self.failures, text, seconds_left=self.seconds_left())


def _kind(job: Job) -> Kind:
    setting = getattr(job, "setting", None)
    return () if setting is None else (setting.data, setting.name)


@contextmanager
def job_progress(jobs: Sequence[Job]) -> Iterator[JobProgress]:
    """What `sweep` and `finish` report their runs to."""
    with Meter(len(jobs), style_of(lines=True), "runs") as meter:
        yield JobProgress(jobs, meter)
