"""Client optimisers whose state each client keeps from round to round, for any method."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..core.types import State, prefixed, under
from ..task.client_optimizer import ClientOptimizer
from ..task.context import Here
from ..task.task import Task
from .wrapped import Wrapped

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

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        """Steps before use start with a new optimiser, whose state is dropped."""
        return self.inner.personal(task, down, _without_state(private), here)


def _without_state(private: State) -> State:
    return {n: t for n, t in private.items() if not n.startswith(_PREFIX)}
