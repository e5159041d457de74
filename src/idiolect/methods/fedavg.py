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
from ..method import Combine, Method, Traits
from ..solvers import Pull, sgd
from ..task.context import Here
from ..task.task import Task
from .options import (
    WEIGHTINGS,
    average,
    ball_knob,
    plain_steps_only,
    sample_weights,
    step_rule_knob,
)


@dataclass(frozen=True)
class FedAvg(Method):
    """One shared model that sampled clients train and the server averages. For data alike."""

    traits = Traits(
        optimizers=("w",), row_messages=True, reductions={"steps": "no model is trained"}
    )

    lr: float = knob(0.3, "step size of local SGD", above=0)
    steps: int = knob(5, "SGD steps per round", low=0)
    epochs: int = knob(
        0, "passes over the client's data per round, in place of steps; 0 = use steps", low=0
    )
    weighting: str = knob(
        "samples",
        "mean weighted by sample numbers (McMahan et al.), equal, or unbiased: m n_i / (N |C|) "
        "(Chen et al.)",
        choices=WEIGHTINGS,
    )
    step_rule: str = step_rule_knob()
    ball: float = ball_knob()

    def step_coordinates(self, task: Task) -> dict[str, Tensor | None]:
        plain_steps_only(self.step_rule, self.ball)
        return super().step_coordinates(task)

    def weigh(self, samples: Tensor) -> Tensor:
        return sample_weights(samples, self.weighting)

    def pull(self, w: Tensor) -> Pull | None:
        """The gradient of a regulariser towards the received model; none here."""
        return None

    def sgd(
        self,
        task: Task,
        x: Tensor,
        here: Here,
        lr: float,
        steps: int,
        epochs: int = 0,
        pull: Pull | None = None,
        model: str = "w",
    ) -> Tensor:
        """`solvers.sgd` by this method's rule for steps, on its ball."""
        rule = self.step_rule
        return sgd(task, x, here, lr, steps, epochs, pull, model, step_rule=rule, ball=self.ball)

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        w = down["w"]
        start = w.expand(here.rows, -1)
        x = self.sgd(task, start, here, self.lr, self.steps, self.epochs, self.pull(w))
        return {"w": x}, private

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        return server | average(server, up, "w", rule, self.weighting)
