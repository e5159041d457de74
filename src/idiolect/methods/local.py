"""Local: every client learns alone.

Choose it as the honest baseline of every comparison: where it wins at equal compute, the clients should not learn together.
Costs per round: nothing is sent; `steps` gradients a client. Keeps: the client's model. The alternative paper's PureLocalTraining,
eq. (1.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from ..core import streams
from ..core.knobs import knob
from ..core.types import State
from ..method import Method, Rule
from ..solvers import sgd
from ..task.batches import Batches
from ..task.task import Task


def own_models(task: Task, clients: np.ndarray, init: str) -> Tensor:  # -> x[K, d]
    """Where personal models start: all at the common x0, or each at its own random initialisation."""
    if init == "common":
        return task.x0.repeat(len(clients), 1)
    return task.draw(streams.keys(task.seed, "init", 0, clients))


@dataclass(frozen=True)
class Local(Method):
    """Every client trains alone; nothing is sent. The baseline that any collaboration has to beat at equal compute."""

    trains: ClassVar[str] = "everyone"
    sends: ClassVar[str] = "nothing"

    lr: float = knob(0.1, "step size", above=0)
    steps: int = knob(20, "SGD steps a round", low=0)
    epochs: int = knob(
        0, "passes over the client's data a round, in place of steps; 0 = use steps", low=0
    )
    init: str = knob(
        "common",
        "personal models start at the common x0, or each at its own",
        choices=("common", "own"),
    )

    def message(self, task: Task) -> dict[str, int]:
        return {}

    def server(self, task: Task) -> State:
        return {}

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"x": own_models(task, clients, self.init)}

    def update(
        self, task: Task, down: State, private: State, batches: Batches
    ) -> tuple[State, State]:
        return {}, {"x": sgd(task, private["x"], batches, self.lr, self.steps, self.epochs)}

    def aggregate(self, task: Task, server: State, up: State, weights: Tensor, rule: Rule) -> State:
        return server

    def personal(self, task: Task, down: State, private: State, batches: Batches) -> Tensor:
        return private["x"]
