"""Stages as one run: pre-train a shared model, personalise it, fine-tune the private part.

The recipe of the FFGG paper for real data. Each stage is a separate run in its own folder,
started from the stage before: the shared model always, the private rows where the two methods
keep the same ones. So an interrupted pipeline resumes exactly where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from ..core.knobs import SettingError
from ..data.federation import Federation
from ..methods import label_of
from ..privacy.protection import PROTECTIONS
from ..run.callbacks import Callback, Callbacks
from ..run.interrupts import finish_on_interrupt
from ..run.plan import AnyMethod, AnyModel, Plan, read_method, read_task
from ..run.result import Result
from ..run.session import Start
from ..run.typed_settings import RunSettings
from .folders import PIPELINE, Reporter, RunSeries, begin_folder, read_pipeline


def pipeline(
    stages: Sequence[tuple[AnyMethod | Plan, int]],
    task: AnyModel,
    federation: Federation,
    *,
    directory: str | Path | None = None,
    resume: bool | str = False,
    report: Reporter | None = None,
    progress: bool | None = None,
    on_round: Callback | None = None,
    on_evaluate: Callback | None = None,
    on_checkpoint: Callback | None = None,
    on_end: Callback | None = None,
    **settings: Unpack[RunSettings],
) -> list[Result]:
    """Run (method, rounds) one after the other; a Result for each. The last is what is deployed.

    Methods, model, progress and callbacks are as in `run`; a method may also be a `Plan`.

    >>> import idiolect as il
    >>> last = il.FedAlt(part="output", steps=0, who="everyone")
    >>> stages = [("fedavg", 5), (il.Ffgg(part="output"), 5), (last, 2)]
    >>> federation = il.data.load("digits", clients=4)
    >>> model = lambda: il.models.make("mlp", (1, 8, 8), 10, hidden="16")
    >>> [r.method for r in pipeline(stages, il.Task(model), federation)]
    ['fedavg', 'ffgg', 'fedalt']
    """
    whole, _ = read_task(task, federation)
    common = dict(settings)
    plans = [
        Plan.of(
            stage if isinstance(stage, Plan) else read_method(stage),
            settings={**common, "rounds": rounds},
        )
        for stage, rounds in stages
    ]
    _check_privacy(plans)
    path = None if directory is None else Path(directory)
    if path is not None:
        _begin(path, plans, resume)
    callbacks = Callbacks(on_round, on_evaluate, on_checkpoint, on_end)
    series = RunSeries(whole, federation, path, resume, report, progress, callbacks)
    results: list[Result] = []
    start: dict[int, Start] = {}
    with finish_on_interrupt("finishing this stage, then stopping") as interrupted:
        for number, plan in enumerate(plans):
            if interrupted():
                raise interrupted.stop(f"stopped before stage {number}")
            if number:
                before = results[-1]
                start = {s.seed: _handover(before, s.seed, number - 1) for s in before.seeds}
            stage = series.run(plan, f"stage-{number}", f"stage {number}", plan.run_settings, start)
            results.append(stage)
    return results


def _check_privacy(plans: Sequence[Plan]) -> None:
    """Refuse a budget that several stages would spend, each as if it were alone."""
    for plan in plans if len(plans) > 1 else ():
        protection = plan.make_settings().privacy
        if protection is not None:
            raise SettingError(
                f"privacy must be none with several stages, got {PROTECTIONS.text(protection)!r}: "
                "each stage would count what it spends by itself, and a client spends in all of "
                "them; run them one by one, and add what each table says"
            )


def _begin(path: Path, plans: Sequence[Plan], resume: bool | str) -> None:
    """pipeline.json, or the check that a resumed pipeline has the same stages."""
    stages = [
        {"method": label_of(plan.make_method()), "rounds": plan.settings["rounds"]}
        for plan in plans
    ]
    if not resume:
        description: dict[str, Any] = {"stages": stages}
        if all(plan.is_named for plan in plans):
            description["plans"] = [plan.as_dict() for plan in plans]
        begin_folder(path, PIPELINE, description)
        return
    before = read_pipeline(path)["stages"]
    if before != stages:
        raise SettingError(
            f"resume: {path} was made with other stages: {_words(before)}; "
            f"now they are {_words(stages)}"
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
