"""Running statistics (BatchNorm) around any method: private to each client, or averaged.

What a client trains has statistics that its gradients write. Those of the model that is sent may be
sent with it and averaged as it is (as most libraries do), or stay with the client (FedBN, Li et al.
2021). Those of a personal model stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.types import Personal, State
from ..method import Combine, Method, Traits
from ..task.buffers import Statistics
from ..task.context import Here
from ..task.task import Task
from .wrapped import Wrapped

CHOICES = ("averaged", "private")
NAME = "statistics"


def with_statistics(method: Method, task: Task, how: str) -> Method:
    """The method for this task: itself where the model has no running statistics."""
    if task.statistics is None:
        return method
    return WithStatistics(method, averages(method, task, how))


def averages(method: Method, task: Task, how: str) -> bool:
    """Whether the statistics of the model that is sent are sent with it."""
    sends = any(method.message(task).values())
    return how == "averaged" and method.traits.shares_statistics and sends


def described(method: Method, task: Task, how: str) -> dict[str, Any]:
    """What is done about them, as plain data."""
    kind = "averaged" if averages(method, task, how) else "private"
    return {"numbers": _of(task).m, "how": kind}


@dataclass(frozen=True)
class WithStatistics(Wrapped):
    """A method with statistics among its private rows or in its messages, unseen by the method."""

    averaged: bool

    def refine(self, traits: Traits) -> Traits:
        """A variance must not be rounded to zero: no channel alters them. They follow the data."""
        inner = self.inner.traits
        kept = (*inner.uncompressed, NAME)
        return replace(inner, uncompressed=kept, data_through_gradients=False)

    def message(self, task: Task) -> dict[str, int]:
        own = {NAME: _of(task).m} if self.averaged else {}
        return self.inner.message(task) | own

    def common_shapes(self, task: Task) -> list[tuple[int, ...]]:
        own = [tuple(s) for s in _of(task).layout.shapes] if self.averaged else []
        return self.inner.common_shapes(task) + own

    def server(self, task: Task) -> State:
        own = {NAME: _of(task).start.clone()} if self.averaged else {}
        return self.inner.server(task) | own

    def broadcast(self, task: Task, server: State) -> State:
        down = self.inner.broadcast(task, _without(server))
        return down | {NAME: server[NAME]} if self.averaged else down

    def address(self, task: Task, server: State, clients: Tensor) -> State:
        return self.inner.address(task, _without(server), clients)

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        if not self.averaged:
            return self.inner.aggregate(task, server, up, rule)
        carrying = _Carrying(rule, up[NAME])
        after = self.inner.aggregate(task, _without(server), _without(up), carrying)
        mean = server[NAME] if carrying.mean is None else _of(task).sound(carrying.mean.clone())
        return after | {NAME: mean}

    def private(self, task: Task, clients: np.ndarray) -> State:
        start = _of(task).start
        own = {_row_name(model): start.repeat(len(clients), 1) for model in self._private_models()}
        return self.inner.private(task, clients) | own

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        here.statistics = self._rows(down, private, here.rows)
        up, after = self.inner.update(task, _without(down), _without(private), here)
        rows = here.statistics
        if self.averaged:
            up = up | {NAME: rows[self.traits.models[0]]}
        return up, after | {_row_name(model): rows[model] for model in self._private_models()}

    def personal(self, task: Task, down: State, private: State, here: Here) -> Personal:
        here.statistics = self._rows(down, private, here.rows)
        x = self.inner.personal(task, _without(down), _without(private), here)
        if not isinstance(x, Tensor) or x.shape[-1] > task.d:
            return x  # the method has completed it with the statistics that belong to it
        models = self.traits.models
        w = down.get(self.traits.shared_name)
        untouched = w is not None and x.data_ptr() == w.data_ptr() and x.shape[-1] == len(w)
        if untouched and self.averaged and models[-1] == models[0]:
            full = torch.cat([x[0], down[NAME]])  # one model for all: rows without a stride
            return full.as_strided((here.rows, len(full)), (0, 1))
        return here.complete(x, models[-1])

    def reference(self, task: Task, down: State) -> State:
        own = {NAME: down[NAME]} if self.averaged else {}
        return self.inner.reference(task, _without(down)) | own

    def shared(self, task: Task, down: State) -> Tensor | None:
        """None where statistics are private: the global model has none to predict with."""
        w = self.inner.shared(task, _without(down)) if self.averaged else None
        return w if w is None or NAME not in down else torch.cat([w, down[NAME]])

    def handover(self, task: Task, down: State) -> Tensor | None:
        w = self.inner.handover(task, _without(down))
        if w is None:
            w = self.inner.shared(task, _without(down))
        statistics = down[NAME] if self.averaged else _of(task).start
        return w if w is None else torch.cat([w, statistics])

    # -- inside ----------------------------------------------------------------------------------
    def _private_models(self) -> tuple[str, ...]:
        return self.traits.models[1:] if self.averaged else self.traits.models

    def _rows(self, down: State, private: State, rows: int) -> dict[str, Tensor]:
        """Statistics of every model, as rows that gradients may write into."""
        own = {model: private[_row_name(model)].clone() for model in self._private_models()}
        if not self.averaged:
            return own
        return {self.traits.models[0]: down[NAME].expand(rows, -1).clone()} | own


class _Carrying:
    """A rule that combines the statistics of the messages with the rest of each message."""

    def __init__(self, rule: Combine, rows: Tensor):
        self.rule = rule
        self.rows = rows
        self.mean: Tensor | None = None

    def __call__(self, up: State, weights: Tensor | None = None) -> State:
        if self.mean is not None:
            return self.rule(up, weights)
        combined = self.rule(up | {NAME: self.rows}, weights)
        self.mean = combined[NAME]
        return _without(combined)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)


def _of(task: Task) -> Statistics:
    assert task.statistics is not None
    return task.statistics


def _row_name(model: str) -> str:
    return f"{NAME}.{model}"


def _without(state: State) -> State:
    return {n: t for n, t in state.items() if n.partition(".")[0] != NAME}
