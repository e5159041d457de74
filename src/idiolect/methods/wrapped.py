"""A method with something around it that it does not know of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from ..core.knobs import Factors
from ..core.types import State
from ..method import Combine, Method, Traits
from ..task.context import Here
from ..task.task import Task


@dataclass(frozen=True)
class Wrapped(Method):
    """Base of wrappers: every function is the inner method's unless a subclass overrides it."""

    inner: Method

    def refine(self, traits: Traits) -> Traits:
        return self.inner.traits

    def as_dict(self) -> dict[str, Any]:
        return self.inner.as_dict()

    def check(self, task: Task) -> None:
        self.inner.check(task)

    def step_coordinates(self, task: Task) -> dict[str, Tensor | None]:
        return self.inner.step_coordinates(task)

    def message(self, task: Task) -> dict[str, int]:
        return self.inner.message(task)

    def weigh(self, samples: Tensor) -> Tensor:
        return self.inner.weigh(samples)

    def server(self, task: Task) -> State:
        return self.inner.server(task)

    def broadcast(self, task: Task, server: State) -> State:
        return self.inner.broadcast(task, server)

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        return self.inner.aggregate(task, server, up, rule)

    def private(self, task: Task, clients: np.ndarray) -> State:
        return self.inner.private(task, clients)

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        return self.inner.update(task, down, private, here)

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return self.inner.personal(task, down, private, here)

    def reference(self, task: Task, down: State) -> State:
        return self.inner.reference(task, down)

    def shared(self, task: Task, down: State) -> Tensor | None:
        return self.inner.shared(task, down)

    def handover(self, task: Task, down: State) -> Tensor | None:
        return self.inner.handover(task, down)

    def report(self, task: Task, clients: int, heard: int) -> dict[str, dict[str, Any]]:
        return self.inner.report(task, clients, heard)

    def scaled(self, factors: Factors) -> Method:
        inner = self.inner.scaled(factors)
        return self if inner is self.inner else replace(self, inner=inner)


def innermost(method: Method) -> Method:
    """The method itself, without what is wrapped around it."""
    while isinstance(method, Wrapped):
        method = method.inner
    return method
