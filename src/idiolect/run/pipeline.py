"""Stages as one run: pre-train a shared model, personalise it, fine-tune the private part.

The recipe of the FFGG paper for real data. Each stage is a run of its own in a folder of its own,
started from the stage before: the shared model always, the private rows where the two methods
keep the same ones. So an interrupted pipeline resumes exactly where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..core.knobs import SettingError
from ..data.federation import Federation
from ..method import Method
from ..methods import label_of
from ..task.task import Task
from .compare import begin_folder
from .interrupts import finish_on_interrupt
from .manifest import PIPELINE, read_pipeline
from .result import Result
from .run import Progress, run
from .session import Start


def pipeline(
    stages: Sequence[tuple[Method, int]],
    task: Task,
    federation: Federation,
    *,
    directory: str | Path | None = None,
    resume: bool | str = False,
    report: Callable[[str, int, int], Progress] | None = None,
    origins: Sequence[dict[str, Any]] | None = None,
    **settings: Any,
) -> list[Result]:
    """Run (method, rounds) one after the other; a Result for each. The last is what is deployed.

    >>> import idiolect as il
    >>> last = il.FedAlt(part="output", steps=0, who="everyone")
    >>> stages = [(il.FedAvg(), 5), (il.Ffgg(part="output"), 5), (last, 2)]
    >>> federation = il.data.load("digits", clients=4)
    >>> model = lambda: il.models.make("mlp", (1, 8, 8), 10, hidden="16")
    >>> [r.method for r in pipeline(stages, il.Task(model), federation)]
    ['fedavg', 'ffgg', 'fedalt']
    """
    path = None if directory is None else Path(directory)
    if path is not None:
        _begin(path, stages, origins, resume)
    results: list[Result] = []
    start: dict[int, Start] = {}
    with finish_on_interrupt("finishing this stage, then stopping") as interrupted:
        for number, (method, rounds) in enumerate(stages):
            if interrupted():
                raise interrupted.stop(f"stopped before stage {number}")
            if number:
                before = results[-1]
                start = {s.seed: _handover(before, s.seed, number - 1) for s in before.seeds}
            folder = None if path is None else path / f"stage-{number}"
            begun = resume and folder is not None and (folder / "settings.json").exists()
            first = int(settings.get("seed", 0))
            result = run(
                method,
                task,
                federation,
                directory=folder,
                resume=resume if begun else False,
                progress=report(f"stage {number}", first, rounds) if report else None,
                start=start,
                origin=origins[number] if origins else None,
                **{**settings, "rounds": rounds},
            )
            results.append(result)
    return results


def _begin(
    path: Path,
    stages: Sequence[tuple[Method, int]],
    origins: Sequence[dict[str, Any]] | None,
    resume: bool | str,
) -> None:
    """pipeline.json, or the check that a resumed pipeline has the same stages."""
    saved: dict[str, Any] = {
        "stages": [{"method": label_of(method), "rounds": rounds} for method, rounds in stages]
    }
    if origins:
        saved["plans"] = list(origins)
    if not resume:
        begin_folder(path, PIPELINE, saved)
        return
    before = read_pipeline(path)["stages"]
    if before != saved["stages"]:
        raise SettingError(
            f"resume: {path} was made with other stages: {_words(before)}; "
            f"now they are {_words(saved['stages'])}"
        )


def _words(stages: list[dict[str, Any]]) -> str:
    return ", ".join(f"{stage['method']}@{stage['rounds']}" for stage in stages)


def _handover(result: Result, seed: int, number: int) -> Start:
    """What the next stage starts from."""
    session = result.session(seed)
    x0 = session.server.handover()
    if x0 is None:
        raise SettingError(
            f"stages: stage {number} ({result.method}) has no shared model to hand over; "
            "it can only be the last one"
        )
    return Start(x0.clone(), session)
