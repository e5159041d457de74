"""What a method is: five short functions of tensors, and its hyper-parameters as fields.

Every function is pure. What is not in a State does not exist, so a checkpoint is the States and nothing else. A cohort is a
matrix: private state and messages have the client as leading axis, the server's state has none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from .core.knobs import Knobs
from .core.types import State
from .task.batches import Batches
from .task.task import Task

Rule = Callable[[Tensor, Tensor], Tensor]  # rows[S, m], weights[S] -> [m]


@dataclass(frozen=True)
class Method(Knobs):
    """The interface; its defaults are a method that sends one vector "w" of R^d and averages it."""

    trains: ClassVar[str] = (
        "sampled"  # who updates in a round: "sampled", or "everyone" (then only the sampled are heard)
    )
    sends: ClassVar[str] = "d"  # numbers a message holds, in words
    hears_all: ClassVar[bool] = (
        False  # whether the method makes sense only if every client is heard every round
    )
    rates: ClassVar[tuple[str, ...]] = ("lr",)  # the fields a learning-rate schedule scales
    changes: ClassVar[
        tuple[str, ...]
    ] = ()  # parts of the message that are changes or gradients, not models
    plain: ClassVar[
        tuple[str, ...]
    ] = ()  # parts that no channel may alter (a few numbers that must arrive)

    def check(self, task: Task) -> None:
        """Refuse, before any work, what does not fit the task."""

    def message(self, task: Task) -> dict[str, int]:
        """What a client sends: name -> how many numbers."""
        return {"w": task.d}

    def server(self, task: Task) -> State:
        """The server's state before round 0."""
        return {"w": task.x0.clone()}

    def private(self, task: Task, clients: np.ndarray) -> State:
        """Private rows of clients met for the first time (`clients`: their stream keys, uint64[K])."""
        return {}

    def broadcast(self, task: Task, server: State) -> State:
        """The message down."""
        return server

    def reference(self, task: Task, down: State) -> State:
        """What a receiver knows already of a message: channels code the difference to it. Nothing where the message is a change."""
        models = {n: m for n, m in self.message(task).items() if n not in self.changes}
        return {n: down[n] for n, m in models.items() if n in down and down[n].shape == (m,)}

    def update(
        self, task: Task, down: State, private: State, batches: Batches
    ) -> tuple[State, State]:
        """A round at the clients: (message up, new private rows); rows in, rows out."""
        raise NotImplementedError

    def aggregate(self, task: Task, server: State, up: State, weights: Tensor, rule: Rule) -> State:
        """The server's step; `weights[S]` are the clients' numbers of samples over the federation's mean."""
        return server | {name: rule(rows, weights) for name, rows in up.items()}

    def personal(self, task: Task, down: State, private: State, batches: Batches) -> Tensor:
        """x[K, d]: the model each client predicts with."""
        return down["w"].expand(batches.rows, -1)

    def shared(self, task: Task, down: State) -> Tensor | None:  # -> [d]
        """The method's one global model, where it has one: evaluated beside the personal models at the end."""
        w = down.get("w")
        return w if w is not None and w.shape == task.x0.shape else None

    def handover(self, task: Task, down: State) -> Tensor | None:  # -> [d]
        """The model that a next stage starts from: the shared one; None where there is none."""
        return self.shared(task, down)

    def report(self, task: Task, clients: int, heard: int) -> dict[str, dict[str, Any]]:
        """What a reader of the result should know beside its figures, as plain data; a text under "warning" is shown before the run."""
        return {}

    def scaled(self, factor: float) -> Method:
        """The method with its learning rates times `factor` (a schedule over rounds)."""
        tiny = sys.float_info.min  # a rate that has decayed to nothing is still a rate
        return (
            self
            if factor == 1
            else replace(
                self, **{name: max(factor * getattr(self, name), tiny) for name in self.rates}
            )
        )
