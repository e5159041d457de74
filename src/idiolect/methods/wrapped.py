"""A method with something around it that it does not know of, such as its optimiser's state."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from ..core.knobs import Factors
from ..core.types import Personal, State, Tree, prefixed, under
from ..method import Combine, Method, Traits
from ..task.client_optimizer import ClientOptimizer
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

    def extended(self, task: Task) -> Task:
        return self.inner.extended(task)

    def check(self, task: Task) -> None:
        self.inner.check(task)

    def step_coordinates(self, task: Task) -> dict[str, Tensor | None]:
        return self.inner.step_coordinates(task)

    def message(self, task: Task) -> dict[str, int]:
        return self.inner.message(task)

    def common_shapes(self, task: Task) -> list[tuple[int, ...]]:
        return self.inner.common_shapes(task)

    def weigh(self, samples: Tensor) -> Tensor:
        return self.inner.weigh(samples)

    def server(self, task: Task) -> State:
        return self.inner.server(task)

    def server_rows(self, task: Task, clients: np.ndarray) -> State:
        return self.inner.server_rows(task, clients)

    def broadcast(self, task: Task, server: State) -> State:
        return self.inner.broadcast(task, server)

    def address(self, task: Task, server: State, clients: Tensor) -> State:
        return self.inner.address(task, server, clients)

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        return self.inner.aggregate(task, server, up, rule)

    def private(self, task: Task, clients: np.ndarray) -> State:
        return self.inner.private(task, clients)

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        return self.inner.update(task, down, private, here)

    def personal(self, task: Task, down: State, private: State, here: Here) -> Personal:
        return self.inner.personal(task, down, private, here)

    def predict(self, task: Task, personal: State, inputs: Tree) -> Tree:
        return self.inner.predict(task, personal, inputs)

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


# -- client optimisers whose state each client keeps from round to round ---------------------------
_PREFIX = "optimizer."


@dataclass(frozen=True)
class WithOptimizerState(Wrapped):
    """A method with the optimiser's state among its private rows, named "optimizer.*".

    >>> import torch
    >>> from .fedavg import FedAvg
    >>> optimizer = ClientOptimizer("sgd", "momentum=0.9", "private")
    >>> method = WithOptimizerState(FedAvg(), optimizer)
    >>> rows = method.private(Task(torch.nn.Linear(3, 2)), np.arange(4))
    >>> {name: tuple(t.shape) for name, t in rows.items()}
    {'optimizer.w.count': (4, 1), 'optimizer.w.momentum_buffer': (4, 8)}
    """

    optimizer: ClientOptimizer

    def private(self, task: Task, clients: np.ndarray) -> State:
        fitted = self.optimizer.fit(task.layout, self.inner.step_coordinates(task))
        blank = prefixed(fitted.blank(len(clients), task.x0), _PREFIX)
        return self.inner.private(task, clients) | blank

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        assert here.optimise is not None
        here.optimise.adopt(under(private, _PREFIX))
        up, after = self.inner.update(task, down, _without_state(private), here)
        return up, after | prefixed(here.optimise.kept(), _PREFIX)

    def personal(self, task: Task, down: State, private: State, here: Here) -> Personal:
        """Steps before use start with a new optimiser, whose state is dropped."""
        return self.inner.personal(task, down, _without_state(private), here)


def _without_state(private: State) -> State:
    return {n: t for n, t in private.items() if not n.startswith(_PREFIX)}
