"""FedNova: clients that take unlike numbers of steps pull the shared model equally hard per step.

Wang, Liu, Liang, Joshi and Poor 2020, for plain local SGD (a_i is then a vector of τ_i ones).
Choose it for one shared model when clients pass over data sets of unlike sizes (`epochs`), where
FedAvg's mean minimises another objective than intended. Costs per round: d numbers down to and
d + 1 up from each sampled client; its own number of gradients. Keeps nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.knobs import knob
from ..core.types import State
from ..method import Combine, Traits
from ..solvers import sgd
from ..task.context import Here
from ..task.task import Task
from .options import Averaging, steps_knob


@dataclass(frozen=True)
class FedNova(Averaging):
    """FedAvg of changes per local step. For clients that pass over data sets of unlike sizes."""

    traits = Traits(
        data_through_gradients=True,
        sends="d + 1",
        changes=("w",),
        uncompressed=("steps",),
        row_messages=True,
        needs_round="its step is as long as the mean client's of the round",
        fixed_step="a change over its number of steps is a mean gradient of plain steps only",
        reductions={"epochs": "all clients take the same number of steps: this is FedAvg"},
    )

    lr: float = knob(0.3, "η, step size of local SGD", above=0)
    steps: int = steps_knob(5, "SGD steps per round")
    epochs: int = knob(
        1, "passes over the client's data per round, in place of steps; 0 = use steps", low=0
    )
    weighting: str = knob("samples", "p_i, of the server's mean", choices=("samples", "equal"))

    def message(self, task: Task) -> dict[str, int]:
        return {"w": task.d, "steps": 1}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        w = down["w"]
        x = sgd(task, w.expand(here.rows, -1), here, self.lr, self.steps, self.epochs)
        tau = here.steps(self.steps, self.epochs).to(w).unsqueeze(-1)  # ||a_i||_1 = τ_i
        return {"w": (x - w) / tau.clamp(min=1), "steps": tau}, private  # -η d_i, τ_i

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        mean = rule(up)  # p_i over those heard
        return {"w": server["w"] + mean["steps"] * mean["w"]}  # x <- x - τ_eff Σ p_i η d_i
