"""The runs of an experiment, on several cores, with progress; an interrupted command goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from idiolect.run.identity import package_source
from idiolect.study.many import finish
from idiolect.study.sweep.progress import watched


@dataclass(frozen=True)
class Work:
    """One run: a frozen dataclass of plain fields whose `train` gives plain data."""

    def train(self) -> dict[str, Any]:
        raise NotImplementedError

    def cost(self) -> float:
        """How long it takes, in any unit that all runs of the experiment share."""
        return 1.0

    def key(self) -> str:
        """A digest of its fields and of the code."""
        text = json.dumps([package_source(), type(self).__name__, asdict(self)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def describe(self) -> str:
        return f"{type(self).__name__} {asdict(self)}"


W = TypeVar("W", bound=Work)


def finished(
    jobs: Sequence[W], folder: Path, name: str, workers: int = 2
) -> dict[W, dict[str, Any]]:
    """The results of all runs, with progress on stderr.

    They are stored while the experiment runs, so that the same command goes on where it was; what
    is stored is removed when all are there.
    """
    kept = folder / f".{name}.jsonl"
    with watched(jobs) as bar:
        results = finish(jobs, kept, workers, bar.report)
    kept.unlink(missing_ok=True)
    return results
