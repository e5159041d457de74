"""Should these clients learn together at all, and by which method? docs/advise.md has the rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Unpack

from torch import nn

from ...core.knobs import SettingError, build
from ...core.text import warnings_once
from ...data.federation import Federation
from ...method import Method
from ...run.plan import AnyMethod, AnyModel, read_federation, read_task
from ...run.run import torch_threads
from ...run.settings import Settings
from ...run.typed_settings import RunSettings
from ...task.task import Task
from ..compare import Row
from .advice import Advice, refuse_advice
from .asking import ALWAYS, Asking, refuse
from .holdout import Holdout
from .progress import Steps, reporting
from .training import Candidate
from .work import Work


def advise(
    federation: Federation,
    task: AnyModel,
    methods: Sequence[AnyMethod] = (),
    *,
    quick: bool = False,
    gradients: int = 0,
    tie: float = 0.01,
    validation: str = "auto",
    directory: str | Path | None = None,
    progress: bool | Callable[[int, int, str], None] | None = None,
    **settings: Unpack[RunSettings],
) -> Advice:
    """Whether these clients should learn together, by which method, and who gains by it.

    Trains Local, FedAvg and a few personalised methods (or `methods`) with as many `gradients` per
    client each, over a grid of step sizes and several seeds, and judges them on samples that none
    was trained on: the federation's validation samples, or folds of its training samples. Test
    samples are never looked at. The rule of the choice is in docs/advise.md; `tie` is a gain that
    is not worth a message. Settings are those of `run`, but for rounds and what stops a run.

    `progress` draws a bar (by default in a terminal or notebook, after two seconds of work), or is
    a function of (trainings done, about how many there are, what is at work).

    >>> import idiolect as il
    >>> federation = il.data.load("synthetic", clients=12, samples=60)
    >>> model = lambda: il.models.make("linear", (60,), 10)
    >>> advice = il.advise(federation, model, quick=True, gradients=20)
    >>> advice.metric, [row["label"] for row in advice.table]
    ('accuracy', ['local', 'fedavg', 'finetune', 'ditto', 'majority class'])
    """
    if isinstance(federation, Task | nn.Module) or isinstance(task, Federation):
        raise SettingError(
            "federation: a model stands in its place; the order is (federation, task)"
        )
    whole, note = read_task(task, read_federation(federation))
    asking = Asking(quick, gradients, tie, validation)
    given = dict(settings)
    refuse(given)
    chosen = build(Settings, {"seeds": asking.seeds, **given}, "run")
    if directory is not None:
        refuse_advice(Path(directory))
    rows = _rows(methods or asking.personal)
    metric = chosen.metric or ("accuracy" if federation.classes else "loss")
    holdout = Holdout.of(federation, asking.validation, chosen.seed)
    with reporting(progress) as report, torch_threads(chosen.threads), warnings_once():
        steps = Steps(report, len(rows), chosen.seeds, asking.splits)
        work = Work(federation, whole, asking, chosen, given, holdout, metric, steps)
        advice = work.advice(rows, [note] if note else [])
    if directory is not None:
        advice.save(directory)
    return advice


def _rows(methods: Sequence[AnyMethod]) -> list[Row]:
    """The candidates: Local and FedAvg at their defaults, and the others."""
    if isinstance(methods, str | Method | type):
        raise SettingError(f"methods: {methods!r} is not accepted; a list of methods")
    rows: dict[str, Row] = {}
    for method in (*ALWAYS, *methods):
        row = Row.of(method)
        if row.name == "dichotomy":
            raise SettingError(
                "methods: dichotomy is not accepted; it decides between fedavg and local by "
                "validation data, as advise does"
            )
        rows.setdefault(Candidate(row).label, row)
    return list(rows.values())
