"""FedBABU: the federation trains the body under a head that stays as it was initialised.

Oh, Kim and Yun 2022 (federated averaging with body aggregation and body update). Choose it when
personal models are made after the federation, by fine-tuning, also at clients that took no part in
it. Costs per round: the body each way for each sampled client; `steps` gradients;
`personal_steps` before use. Keeps nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..solvers import sgd
from ..task.context import Here
from ..task.layout import Split
from ..task.task import Task
from .options import WEIGHTINGS, epochs_knob, steps_knob
from .partial import SplitMethod, part_knob, train_part


@dataclass(frozen=True)
class FedBabu(SplitMethod):
    """Body trained under a head that stays as it was; fine-tuned before use. For newcomers."""

    traits = replace(
        SplitMethod.traits,
        data_through_gradients=True,
        rates=("lr", "personal_lr"),
        optimizers=("theta", "w"),  # of the body in training, of the whole model before use
        reductions={
            "personal_steps": "every client uses the shared body under the initial head",
            "steps": "the body stays as it starts",
        },
    )

    lr: float = knob(0.3, "step size of the body", above=0)
    steps: int = steps_knob(5, "steps on the body per round")
    epochs: int = epochs_knob()
    personal_lr: float = knob(0.1, "step size of the fine-tuning", above=0)
    personal_steps: int = knob(20, "SGD steps before use, whatever epochs says", low=0)
    part: str = part_knob("head", "the part that is not trained in the federation")
    weighting: str = knob("samples", "the server's mean", choices=WEIGHTINGS)

    def split(self, task: Task) -> Split:
        return task.split(self.part)

    def step_coordinates(self, task: Task) -> dict[str, Tensor | None]:
        return {"theta": self.split(task).theta, "w": None}

    def alone(self) -> str:
        return "every client fine-tunes the initial model"

    def together(self) -> str:
        return "this is FedAvg, fine-tuned before use"

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        theta = down["theta"].expand(here.rows, -1)
        head = self._head(task, here)
        split = self.split(task)
        # θ_ext <- θ_ext - η ∇_ext f(θ_ext, θ_cls), θ_cls as it was initialised
        theta = train_part(
            task, split, theta, head, here, self.lr, "theta", self.steps, self.epochs
        )
        return {"theta": theta}, private

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        theta = down["theta"].expand(here.rows, -1)
        x = self.split(task).join(theta, self._head(task, here))
        return sgd(task, x, here, self.personal_lr, self.personal_steps)  # body and head

    def shared(self, task: Task, down: State) -> Tensor | None:
        return self.handover(task, down)

    def _head(self, task: Task, here: Here) -> Tensor:  # -> [K, d_w]
        return self.split(task).parts(task.x0)[1].expand(here.rows, -1)
