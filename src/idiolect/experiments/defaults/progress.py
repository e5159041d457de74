"""Runs in worker processes, with a bar on stderr."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ...run.grid import Outcome, finish
from .jobs import Run


@dataclass(frozen=True)
class Runs:
    """Where finished runs are kept, and how many are at work at once."""

    path: Path
    workers: int = 2

    def __call__(self, todo: Sequence[Run], text: str) -> dict[Run, Outcome]:
        """The results of these runs, stored before or run now."""
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
            speed_estimate_period=120,
        )
        line = bar.add_task(text, total=sum(run.cost() for run in set(todo)))

        def report(results: Mapping[Run, Outcome], last: Run | None) -> None:
            if last is None:
                bar.update(line, completed=sum(run.cost() for run in results))
            else:
                words = f"{text}: {last.method}, {last.federation}"
                bar.update(line, advance=last.cost(), description=words)

        with bar:
            return finish(todo, self.path, self.workers, report)
