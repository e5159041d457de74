"""Progress of the cases on stderr."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .measure import CaseJob


class Bar:
    """A bar over all cases, and a line for each that is done."""

    def __init__(self, jobs: Sequence[CaseJob]):
        self.total = len(jobs)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
        )

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.progress.stop()

    def report(self, results: Mapping[CaseJob, dict[str, Any]], job: CaseJob | None) -> None:
        """See `idiolect.study.many.finish`."""
        if job is None:
            self.task = self.progress.add_task("cases", total=self.total)
        else:
            found = results[job]
            self.progress.console.print(f"{job.describe()}: {found['choice']}", highlight=False)
        self.progress.update(self.task, completed=len(results))
