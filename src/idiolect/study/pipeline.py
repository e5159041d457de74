"""Stages as one run: pre-train a shared model, personalise it, fine-tune the private part.

The recipe of the FFGG paper for real data. Each stage is a separate run in its own folder,
started from the stage before: the shared model always, the private rows where the two methods
keep the same ones. So an interrupted pipeline resumes exactly where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Unpack, cast

from ..core.knobs import SettingError
from ..data.federation import Federation
from ..method import Method
from ..methods import label_of
from ..report.progress import RoundReport
from ..run.callbacks import Callback, Callbacks
from ..run.interrupts import finish_on_interrupt
from ..run.plan import AnyMethod, AnyModel, read_method, read_task
from ..run.result import Result
from ..run.run import run
from ..run.session import Start
from ..run.typed_settings import RunSettings
from .manifest import PIPELINE, begin_folder, read_pipeline


def pipeline(
    stages: Sequence[tuple[AnyMethod, int]],
    task: AnyModel,
    federation: Federation,
    *,
    directory: str | Path | None = None,
    resume: bool | str = False,
    report: Callable[[str, int, int], RoundReport] | None = None,
    origins: Sequence[dict[str, Any]] | None = None,
    progress: bool | None = None,
    on_round: Callback | None = None,
    on_evaluate: Callback | None = None,
    on_checkpoint: Callback | None = None,
    on_end: Callback | None = None,
    **settings: Unpack[RunSettings],
) -> list[Result]:
    """Run (method, rounds) one after the other; a Result for each. The last is what is deployed.

    Methods, model, progress and callbacks are as in `run`.

    >>> import idiolect as il
    >>> last = il.FedAlt(part="output", steps=0, who="everyone")
    >>> stages = [("fedavg", 5), (il.Ffgg(part="output"), 5), (last, 2)]
    >>> federation = il.data.load("digits", clients=4)
    >>> model = lambda: il.models.make("mlp", (1, 8, 8), 10, hidden="16")
    >>> [r.method for r in pipeline(stages, il.Task(model), federation)]
    ['fedavg', 'ffgg', 'fedalt']
    """
    methods = [(read_method(method), rounds) for method, rounds in stages]
    whole, _ = read_task(task, federation)
    watch: dict[str, Any] = vars(Callbacks(on_round, on_evaluate, on_checkpoint, on_end))
    common = cast(dict[str, Any], settings)
    path = None if directory is None else Path(directory)
    if path is not None:
        _begin(path, methods, origins, resume)
    results: list[Result] = []
    start: dict[int, Start] = {}
    with finish_on_interrupt("finishing this stage, then stopping") as interrupted:
        for number, (method, rounds) in enumerate(methods):
            if interrupted():
                raise interrupted.stop(f"stopped before stage {number}")
            if number:
                before = results[-1]
                start = {s.seed: _handover(before, s.seed, number - 1) for s in before.seeds}
            folder = None if path is None else path / f"stage-{number}"
            begun = resume and folder is not None and (folder / "settings.json").exists()
            first = int(common.get("seed", 0))
            result = run(
                method,
                whole,
                federation,
                directory=folder,
                resume=resume if begun else False,
                progress=report(f"stage {number}", first, rounds) if report else progress,
                start=start,
                origin=origins[number] if origins else None,
                **watch,
                **{**common, "rounds": rounds},
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
