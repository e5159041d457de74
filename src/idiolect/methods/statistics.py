"""Running statistics (BatchNorm) beside any method: private to each client, or averaged.

A wrapper, so that no method knows of them. What a client trains has statistics that its gradients
write; those of the model that travels may travel with it and are averaged as it is (as most
libraries do), or stay with the client (FedBN, Li et al. 2021). Those of a personal model stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.types import State
from ..method import Combine, Method
from ..task.here import Here
from ..task.statistics import Statistics
from ..task.task import Task

CHOICES = ("averaged", "private")
NAME = "statistics"


def with_statistics(method: Method, task: Task, how: str) -> Method:
    """The method for this task: itself where the model has no running statistics."""
    if task.statistics is None:
        return method
    averaged = how == "averaged" and method.shares_statistics and bool(method.message(task))
    return WithStatistics(inner=method, averaged=averaged)


def described(method: Method, task: Task, how: str) -> dict[str, Any]:
    """What is done about them, as plain data; {} where the model has none."""
    if task.statistics is None:
        return {}
    wrapped = with_statistics(method, task, how)
    assert isinstance(wrapped, WithStatistics)
    return {"numbers": task.statistics.m, "how": "averaged" if wrapped.averaged else "private"}


@dataclass(frozen=True)
class WithStatistics(Method):
    """A method with the running statistics of its models."""

    inner: Method
    averaged: bool  # whether those of the model that is sent travel with it

    # -- as the method within ----------------------------------------------------------------
    sends = property(lambda self: self.inner.sends)  # type: ignore[assignment]
    shared_name = property(lambda self: self.inner.shared_name)  # type: ignore[assignment]
    hears_all = property(lambda self: self.inner.hears_all)  # type: ignore[assignment]
    rates = property(lambda self: self.inner.rates)  # type: ignore[assignment]
    changes = property(lambda self: self.inner.changes)  # type: ignore[assignment]
    models = property(lambda self: self.inner.models)  # type: ignore[assignment]
    trains = property(lambda self: self.inner.trains)  # type: ignore[assignment]
    linear = property(lambda self: self.inner.linear)  # type: ignore[assignment]
    streams = property(lambda self: self.inner.streams)  # type: ignore[assignment]

    def check(self, task: Task) -> None:
        self.inner.check(task)

    def weigh(self, samples: Tensor) -> Tensor:
        return self.inner.weigh(samples)

    def scaled(self, factor: float) -> Method:
        return replace(self, inner=self.inner.scaled(factor))

    def report(self, task: Task, clients: int, heard: int) -> dict[str, dict[str, Any]]:
        return self.inner.report(task, clients, heard)

    # -- what is added -----------------------------------------------------------------------
    @property
    def plain(self) -> tuple[str, ...]:  # type: ignore[override]
        """A variance must not be rounded to nothing: no channel alters them."""
        return (*self.inner.plain, NAME)

    def message(self, task: Task) -> dict[str, int]:
        own = {NAME: _of(task).m} if self.averaged else {}
        return self.inner.message(task) | own

    def server(self, task: Task) -> State:
        own = {NAME: _of(task).start.clone()} if self.averaged else {}
        return self.inner.server(task) | own

    def broadcast(self, task: Task, server: State) -> State:
        down = self.inner.broadcast(task, _without(server))
        return down | {NAME: server[NAME]} if self.averaged else down

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        if not self.averaged:
            return self.inner.aggregate(task, server, up, rule)
        carrying = _Carrying(rule, up[NAME])
        after = self.inner.aggregate(task, _without(server), _without(up), carrying)
        mean = server[NAME] if carrying.mean is None else _of(task).sound(carrying.mean.clone())
        return after | {NAME: mean}

    def private(self, task: Task, clients: np.ndarray) -> State:
        start = _of(task).start
        kept = {_kept(model): start.repeat(len(clients), 1) for model in self._private_models()}
        return self.inner.private(task, clients) | kept

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        here.statistics = self._rows(down, private, here.rows)
        down, inner_rows = _without(down), _without(private)
        up, after = self.inner.update(task, down, inner_rows, here)
        found = here.statistics
        kept = {_kept(model): found[model] for model in self._private_models()}
        if self.averaged:
            up = up | {NAME: found[self.inner.models[0]]}
        return up, after | kept

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        here.statistics = self._rows(down, private, here.rows)
        x = self.inner.personal(task, _without(down), _without(private), here)
        if x.shape[-1] > task.d:
            return x  # the method has said which statistics belong to it
        model = self.inner.models[-1]
        w = down.get(self.inner.shared_name)
        untouched = w is not None and x.data_ptr() == w.data_ptr() and x.shape[-1] == len(w)
        if untouched and self.averaged and model == self.inner.models[0]:
            full = torch.cat([x[0], down[NAME]])  # one model for all: rows without a stride
            return full.as_strided((here.rows, len(full)), (0, 1))
        return here.complete(x, model)

    def reference(self, task: Task, down: State) -> State:
        own = {NAME: down[NAME]} if self.averaged else {}
        return self.inner.reference(task, _without(down)) | own

    def shared(self, task: Task, down: State) -> Tensor | None:
        """None where statistics are private: the global model has none to predict with."""
        w = self.inner.shared(task, _without(down)) if self.averaged else None
        return w if w is None else torch.cat([w, down[NAME]])

    def handover(self, task: Task, down: State) -> Tensor | None:
        w = self.inner.handover(task, _without(down))
        statistics = down[NAME] if self.averaged else _of(task).start
        return w if w is None else torch.cat([w, statistics])

    # -- inside ------------------------------------------------------------------------------
    def _private_models(self) -> tuple[str, ...]:
        return self.inner.models[1:] if self.averaged else self.inner.models

    def _rows(self, down: State, private: State, rows: int) -> dict[str, Tensor]:
        """Statistics of every model, as rows that gradients may write into."""
        found = {model: private[_kept(model)].clone() for model in self._private_models()}
        if self.averaged:
            found = {self.inner.models[0]: down[NAME].repeat(rows, 1)} | found
        return found


class _Carrying:
    """A rule that combines the statistics of the messages with the rest of each message."""

    def __init__(self, rule: Combine, rows: Tensor):
        self.rule = rule
        self.rows = rows
        self.mean: Tensor | None = None

    def __call__(self, up: State, weights: Tensor | None = None) -> State:
        if self.mean is not None:
            return self.rule(up, weights)
        found = self.rule(up | {NAME: self.rows}, weights)
        self.mean = found[NAME]
        return _without(found)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)


def _of(task: Task) -> Statistics:
    assert task.statistics is not None
    return task.statistics


def _kept(model: str) -> str:
    return f"{NAME}.{model}"


def _without(state: State) -> State:
    return {n: t for n, t in state.items() if n.partition(".")[0] != NAME}
