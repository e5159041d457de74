"""Local: every client learns alone.

Choose it as the baseline of every comparison: where it wins at equal compute, the clients should
not learn together. Costs per round: nothing is sent; `steps` gradients per client. Keeps: the
client's model. PureLocalTraining, eq. (1.3), in the paper of Chen, Zheng, Long and Su (2021).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Traits
from ..task.context import Here
from ..task.task import Task
from .options import (
    LocalSgd,
    ball_knob,
    epochs_knob,
    init_knob,
    own_models,
    step_rule_knob,
    steps_knob,
)


@dataclass(frozen=True)
class Local(LocalSgd):
    """Every client trains alone; nothing is sent. The baseline to beat at equal compute."""

    traits = Traits(
        data_through_gradients=True,
        sends="nothing",
        trains="everyone",
        shares_statistics=False,
        unlike_models=True,
        optimizers=("w",),
        reductions={"steps": "no model is trained"},
    )

    lr: float = knob(0.1, "step size", above=0)
    steps: int = steps_knob(20, "SGD steps per round")
    epochs: int = epochs_knob()
    init: str = init_knob()
    step_rule: str = step_rule_knob()
    ball: float = ball_knob()

    def message(self, task: Task) -> dict[str, int]:
        return {}

    def server(self, task: Task) -> State:
        return {}

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"x": own_models(task, clients, self.init)}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        x = self.sgd(task, private["x"], here, self.lr, self.steps, self.epochs)
        return {}, {"x": x}

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return private["x"]
