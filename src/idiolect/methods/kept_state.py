"""Client optimisers whose state each client keeps from round to round, for any method."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from ..core.types import State, prefixed, under
from ..method import Method
from ..task.here import Here
from ..task.optimise import ClientOptimizer
from ..task.task import Task
from .extended import extended

_PREFIX = "optimizer."


def keeping(method: Method, optimizer: ClientOptimizer) -> Method:
    """The same method, with what the optimiser keeps among the private rows.

    >>> import torch
    >>> from .fedavg import FedAvg
    >>> method = keeping(FedAvg(lr=0.2), ClientOptimizer("sgd", "momentum=0.9", "private"))
    >>> rows = method.private(Task(torch.nn.Linear(3, 2)), np.arange(4))
    >>> method.lr, {name: tuple(t.shape) for name, t in rows.items()}
    (0.2, {'optimizer.w.count': (4, 1), 'optimizer.w.momentum_buffer': (4, 8)})
    """
    return extended(method, _Keeping, _optimizer=optimizer)


class _Keeping:
    """What changes: private rows named "optimizer.*", which the inner method does not see."""

    _optimizer: ClientOptimizer

    def private(self, task: Task, clients: np.ndarray) -> State:
        inner: Any = super()
        fitted = self._optimizer.fit(task.layout, inner.stepped(task))
        blank = prefixed(fitted.blank(len(clients), task.x0), _PREFIX)
        return inner.private(task, clients) | blank

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        inner: Any = super()
        assert here.optimise is not None
        here.optimise.adopt(under(private, _PREFIX))
        up, after = inner.update(task, down, _without(private), here)
        return up, after | prefixed(here.optimise.kept(), _PREFIX)

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        """Steps before use start with a new optimiser: nothing is kept of them."""
        inner: Any = super()
        return inner.personal(task, down, _without(private), here)


def _without(private: State) -> State:
    return {n: t for n, t in private.items() if not n.startswith(_PREFIX)}
