"""Stages as one run: pre-train a shared model, personalise it, fine-tune the private part (the FFGG paper's real-data recipe).

Each stage is a run of its own in a folder of its own, started from the stage before: the shared model always, the private rows where the
two methods keep the same ones. So an interrupted pipeline resumes exactly where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ..core.knobs import SettingError
from ..data.federation import Federation
from ..method import Method
from ..task.task import Task
from .result import Result
from .run import Progress, Start, run


def pipeline(
    stages: Sequence[tuple[Method, int]],
    task: Task,
    federation: Federation,
    *,
    directory: str | Path | None = None,
    resume: bool = False,
    report: Callable[[str, int, int], Progress] | None = None,
    origins: Sequence[dict[str, Any]] | None = None,
    **settings: Any,
) -> list[Result]:
    """Run (method, rounds) one after the other; a Result for each. The last one is what is deployed.

    >>> import idiolect as il
    >>> stages = [(il.FedAvg(), 5), (il.Ffgg(part="output"), 5), (il.FedAlt(part="output", steps=0, who="everyone"), 2)]
    >>> federation = il.data.load("digits", clients=4)
    >>> model = lambda: il.models.make("mlp", (1, 8, 8), 10, hidden="16")
    >>> [r.name for r in pipeline(stages, il.Task(model), federation)]
    ['fedavg', 'ffgg', 'fedalt']
    """
    results: list[Result] = []
    start: dict[int, Start] = {}
    for number, (method, rounds) in enumerate(stages):
        folder = None if directory is None else Path(directory) / f"stage-{number}"
        begun = resume and folder is not None and (folder / "settings.json").exists()
        progress = (
            report(f"stage {number}", int(settings.get("seed", 0)), rounds) if report else None
        )
        result = run(
            method,
            task,
            federation,
            directory=folder,
            resume=begun,
            progress=progress,
            start=start,
            origin=origins[number] if origins else None,
            **{**settings, "rounds": rounds},
        )
        results.append(result)
        if number + 1 < len(stages):
            start = {s.seed: _handover(s.engine, number, result.name) for s in result.seeds}
    return results


def _handover(engine: Any, number: int, name: str) -> Start:
    x0 = engine.handover()
    if x0 is None:
        raise SettingError(
            f"stages: stage {number} ({name}) has no shared model to hand over; it can only be the last one"
        )
    engine.host.store.read(
        torch.arange(engine.host.data.clients)
    )  # rows of clients never met are made now
    return Start(x0.clone(), {n: t.clone() for n, t in engine.host.store.rows.items()})
