"""FedProx, in its two published meanings.

`FedProx` (Li et al. 2020): FedAvg with a proximal term mu/2 ||x - w||^2 in the local problem; one
shared model comes out. `FedProxSoft` (Chen, Zheng, Long and Su 2021, eq. 3.7, Algorithms 2 and 3):
the soft constraint lambda/2 ||w - w_i||^2 between the global model and models that the clients
keep; personal models come out, after a last stage of local training.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Combine, Traits
from ..solvers import Pull
from ..task.context import Here
from ..task.task import Task
from .fedavg import FedAvg
from .options import WEIGHTINGS, LocalSgd, ball_knob, step_rule_knob


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg whose local steps are held near the received model. For many steps, unlike data."""

    traits = replace(
        FedAvg.traits, reductions={"mu": "this is FedAvg", "steps": "no model is trained"}
    )

    mu: float = knob(0.1, "proximal weight: mu/2 ||x - w||^2; 0 is FedAvg", low=0)

    def pull(self, w: Tensor) -> Pull | None:
        return (lambda x: self.mu * (x - w)) if self.mu else None


@dataclass(frozen=True)
class FedProxSoft(LocalSgd):
    """Personal models softly tied to their mean: lam 0 is Local, a large one FedAvg."""

    traits = Traits(
        data_through_gradients=True,
        row_messages=True,
        fixed_step="SoftLocalSGD of its paper is plain SGD, and its server step λ η belongs to it",
        presets={"paper": {"server_rate": 0.03}},  # Algorithm 3: λ η, of the default λ and η
        reductions={
            "lam": "the personal models are Local's",
            "steps": "the shared model stays as it starts",
        },
    )

    lr: float = knob(0.1, "step size of local SGD", above=0)
    steps: int = knob(20, "SGD steps per round", low=0)
    lam: float = knob(0.3, "λ, weight of the soft constraint", low=0)
    server_rate: float = knob(
        1.0, "aggregation step size: η_t of Algorithm 2, λ η_t of Algorithm 3", above=0
    )
    final_steps: int = knob(
        20, "K_T, local steps before deployment (Stage II of Algorithm 3)", low=0
    )
    weighting: str = knob(
        "unbiased", "as for FedAvg; the paper's form is unbiased", choices=WEIGHTINGS
    )
    step_rule: str = step_rule_knob()
    ball: float = ball_knob()

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"x": task.x0.repeat(len(clients), 1)}

    def _soft(self, task: Task, w: Tensor, x: Tensor, here: Here, steps: int) -> Tensor:
        # SoftLocalSGD: w_i <- P_W(w_i - η_k (grad l(w_i, z) + λ (w_i - w)))
        def pull(x: Tensor) -> Tensor:
            return self.lam * (x - w)

        return self.sgd(task, x, here, self.lr, steps, pull=pull)

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        x = self._soft(task, down["w"], private["x"], here, self.steps)
        return {"w": x}, {"x": x}

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        # w <- w - λ η_t m / |C| sum_i p_i (w - w_i); Algorithm 2: p_i = n_i / N, and η_t for λ η_t
        w = server["w"]
        mean = self.average(server, up, rule)["w"]
        return {"w": w + self.server_rate * (mean - w)}

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        return self._soft(task, down["w"], private["x"], here, self.final_steps)
