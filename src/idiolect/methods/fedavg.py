"""FedAvg: one shared model, averaged (McMahan et al. 2017).

Also Algorithm 1 of the paper of Chen, Zheng, Long and Su (2021), with p_i for n_i / N by
the run's setting `client_weights` and η_t by `server_lr`. Choose it when the clients' data
are alike. Costs per round: d numbers down to and up from each sampled client; `steps` gradients
each. Keeps no state at the clients.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Traits
from ..solvers import Pull
from ..task.context import Here
from ..task.task import Task
from .options import WEIGHTINGS, LocalSgd, ball_knob, epochs_knob, step_rule_knob, steps_knob


@dataclass(frozen=True)
class FedAvg(LocalSgd):
    """One shared model that sampled clients train and the server averages. For data alike."""

    traits = Traits(
        data_through_gradients=True,
        optimizers=("w",),
        row_messages=True,
        reductions={"steps": "no model is trained"},
    )

    lr: float = knob(0.3, "step size of local SGD", above=0)
    steps: int = steps_knob(5, "SGD steps per round")
    epochs: int = epochs_knob()
    weighting: str = knob(
        "samples",
        "mean weighted by sample numbers (McMahan et al.), equal, or unbiased: m n_i / (N |C|) "
        "(Chen et al.)",
        choices=WEIGHTINGS,
    )
    step_rule: str = step_rule_knob()
    ball: float = ball_knob()

    def pull(self, w: Tensor) -> Pull | None:
        """The gradient of a regulariser towards the received model; none here."""
        return None

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        w = down["w"]
        start = w.expand(here.rows, -1)
        x = self.sgd(task, start, here, self.lr, self.steps, self.epochs, self.pull(w))
        return {"w": x}, private
