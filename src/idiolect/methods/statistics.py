"""Running statistics (BatchNorm) beside any method: private to each client, or averaged.

They are added to a method, so that none knows of them. What a client trains has statistics that its
gradients write; those of the model that travels may travel with it and are averaged as it is (as
most libraries do), or stay with the client (FedBN, Li et al. 2021). Those of a personal model stay.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.types import State
from ..method import Combine, Method
from ..task.here import Here
from ..task.statistics import Statistics
from ..task.task import Task
from .extended import extended

CHOICES = ("averaged", "private")
NAME = "statistics"


def with_statistics(method: Method, task: Task, how: str) -> Method:
    """The method for this task: itself where the model has no running statistics."""
    if task.statistics is None:
        return method
    return extended(method, _WithStatistics, averaged=averages(method, task, how))


def averages(method: Method, task: Task, how: str) -> bool:
    """Whether the statistics of the model that is sent travel with it."""
    return how == "averaged" and method.shares_statistics and bool(method.message(task))


def described(method: Method, task: Task, how: str) -> dict[str, Any]:
    """What is done about them, as plain data."""
    kind = "averaged" if averages(method, task, how) else "private"
    return {"numbers": _of(task).m, "how": kind}


class _WithStatistics:
    """What changes: statistics among the private rows or the messages, unseen by the method."""

    averaged: bool
    models: tuple[str, ...]
    shared_name: str

    @property
    def plain(self) -> tuple[str, ...]:
        """A variance must not be rounded to nothing: no channel alters them."""
        inner: Any = super()
        return (*inner.plain, NAME)

    def message(self, task: Task) -> dict[str, int]:
        inner: Any = super()
        own = {NAME: _of(task).m} if self.averaged else {}
        return inner.message(task) | own

    def server(self, task: Task) -> State:
        inner: Any = super()
        own = {NAME: _of(task).start.clone()} if self.averaged else {}
        return inner.server(task) | own

    def broadcast(self, task: Task, server: State) -> State:
        inner: Any = super()
        down = inner.broadcast(task, _without(server))
        return down | {NAME: server[NAME]} if self.averaged else down

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        inner: Any = super()
        if not self.averaged:
            return inner.aggregate(task, server, up, rule)
        carrying = _Carrying(rule, up[NAME])
        after = inner.aggregate(task, _without(server), _without(up), carrying)
        mean = server[NAME] if carrying.mean is None else _of(task).sound(carrying.mean.clone())
        return after | {NAME: mean}

    def private(self, task: Task, clients: np.ndarray) -> State:
        inner: Any = super()
        start = _of(task).start
        kept = {_kept(model): start.repeat(len(clients), 1) for model in self._private_models()}
        return inner.private(task, clients) | kept

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        inner: Any = super()
        here.statistics = self._rows(down, private, here.rows)
        down, inner_rows = _without(down), _without(private)
        up, after = inner.update(task, down, inner_rows, here)
        found = here.statistics
        kept = {_kept(model): found[model] for model in self._private_models()}
        if self.averaged:
            up = up | {NAME: found[self.models[0]]}
        return up, after | kept

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        inner: Any = super()
        here.statistics = self._rows(down, private, here.rows)
        x = inner.personal(task, _without(down), _without(private), here)
        if x.shape[-1] > task.d:
            return x  # the method has said which statistics belong to it
        model = self.models[-1]
        w = down.get(self.shared_name)
        untouched = w is not None and x.data_ptr() == w.data_ptr() and x.shape[-1] == len(w)
        if untouched and self.averaged and model == self.models[0]:
            full = torch.cat([x[0], down[NAME]])  # one model for all: rows without a stride
            return full.as_strided((here.rows, len(full)), (0, 1))
        return here.complete(x, model)

    def reference(self, task: Task, down: State) -> State:
        inner: Any = super()
        own = {NAME: down[NAME]} if self.averaged else {}
        return inner.reference(task, _without(down)) | own

    def shared(self, task: Task, down: State) -> Tensor | None:
        """None where statistics are private: the global model has none to predict with."""
        inner: Any = super()
        w = inner.shared(task, _without(down)) if self.averaged else None
        return w if w is None or NAME not in down else torch.cat([w, down[NAME]])

    def handover(self, task: Task, down: State) -> Tensor | None:
        inner: Any = super()
        w = inner.handover(task, _without(down))
        if w is None:
            w = inner.shared(task, _without(down))
        statistics = down[NAME] if self.averaged else _of(task).start
        return w if w is None else torch.cat([w, statistics])

    # -- inside ----------------------------------------------------------------------------------
    def _private_models(self) -> tuple[str, ...]:
        return self.models[1:] if self.averaged else self.models

    def _rows(self, down: State, private: State, rows: int) -> dict[str, Tensor]:
        """Statistics of every model, as rows that gradients may write into."""
        found = {model: private[_kept(model)].clone() for model in self._private_models()}
        if self.averaged:
            found = {self.models[0]: down[NAME].expand(rows, -1).clone()} | found
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
