"""Progress of the grid on stderr."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .grid import CellJob
from .tables import Cell


class Bar:
    """A bar over all jobs, weighted by their cost, and a line for each cell that is complete."""

    def __init__(self, jobs: Sequence[CellJob]):
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
            speed_estimate_period=600,
        )
        self.seeds: dict[tuple, list[CellJob]] = {}
        for job in jobs:
            self.seeds.setdefault(job.cell, []).append(job)
        self.total = sum(job.cost() for job in jobs)

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.progress.stop()

    def report(self, results: Mapping[CellJob, dict[str, Any]], job: CellJob | None) -> None:
        """See `idiolect.run.grid.finish`."""
        if job is None:
            self.task = self.progress.add_task("robustness", total=self.total)
            self.progress.update(self.task, completed=sum(j.cost() for j in results))
            return
        self.progress.update(self.task, advance=job.cost(), description=job.title())
        seeds = self.seeds[job.cell]
        if all(j in results for j in seeds):
            cell = Cell.of([results[j] for j in seeds])
            self.progress.console.print(f"{job.title()}: {cell.text()}", highlight=False)
