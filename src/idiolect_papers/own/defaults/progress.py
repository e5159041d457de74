"""Runs in worker processes, with progress on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from idiolect.report.console import say
from idiolect.study.many import Outcome, finish
from idiolect.study.progress import watched

from .jobs import Run


@dataclass(frozen=True)
class Runs:
    """Where finished runs are kept, and how many are at work at once."""

    path: Path
    workers: int = 2

    def __call__(self, todo: Sequence[Run], text: str) -> dict[Run, Outcome]:
        """The results of these runs, stored before or run now."""
        say(text)
        with watched(todo) as bar:
            return finish(todo, self.path, self.workers, bar.report)
