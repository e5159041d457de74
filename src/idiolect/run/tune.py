"""Choose among candidates on validation data; test data are never looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.knobs import SettingError, build
from ..data.federation import Federation
from ..host.metrics import direction
from ..method import Method
from ..task.task import Task
from .interrupts import finish_on_interrupt
from .run import run
from .settings import Settings

Candidate = tuple[Method, Mapping[str, Any]]  # a method and the run settings of its own


@dataclass(frozen=True)
class Choice:
    """The candidate that validation data prefer, and what they said of every candidate."""

    method: Method
    settings: Mapping[str, Any]  # the run settings of this candidate
    measure: str  # the chosen metric; "accuracy", or "loss" for a regression
    figures: tuple[float | None, ...]  # of all candidates, in order; () where there was only one


def choose(
    candidates: Sequence[Candidate],
    task: Task,
    federation: Federation,
    settings: Mapping[str, Any] | None = None,
) -> Choice:
    """Run every candidate with the first seed and take the one that does best at the end.

    Best is the highest pooled accuracy on the clients' validation data, or the lowest pooled loss
    where targets are real numbers, or the best of the setting `metric`; of equal candidates the
    first. `settings` are those of `run` that all candidates share. A single candidate is chosen
    without a run.

    >>> import idiolect as il
    >>> federation = il.data.load("synthetic", clients=4, samples=60)
    >>> task = il.Task(lambda: il.models.make("linear", (60,), 10))
    >>> rates = [(il.FedAvg(lr=lr), {}) for lr in (0.0001, 0.1)]
    >>> choose(rates, task, federation, {"rounds": 10}).method.lr
    0.1
    """
    if not candidates:
        raise SettingError("candidates: there are none; at least one is needed")
    shared = build(Settings, dict(settings or {}), "run")
    measure = shared.metric or ("accuracy" if federation.classes else "loss")
    if len(candidates) == 1:
        method, own = candidates[0]
        return Choice(method, own, measure, ())
    # A target would stop a run by its test accuracy, and evaluated rounds are on test data.
    always = {"seeds": 1, "eval_every": 0, "target_accuracy": 0.0, "progress": False}
    figures: list[Any] = []
    with finish_on_interrupt("finishing this candidate, then stopping") as interrupted:
        for method, own in candidates:
            if interrupted():
                raise interrupted.stop(f"stopped after {len(figures)} candidates")
            given = {**(settings or {}), **own, **always}
            for stop in ("target_value", "patience", "keep_best"):  # they need evaluated rounds
                given.pop(stop, None)
            result = run(method, task, federation, **given)
            figures.append(result.summary()["valid"][measure]["mean"])
    sign = 1 if direction(measure, shared.metrics) else -1
    able = [i for i, figure in enumerate(figures) if figure is not None]
    if not able:
        raise SettingError(
            f"candidates: none has a finite validation {measure}; "
            "validation data are needed to choose, and candidates that do not diverge"
        )
    best = max(able, key=lambda i: sign * figures[i])
    method, own = candidates[best]
    return Choice(method, own, measure, tuple(figures))
