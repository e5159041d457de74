"""FedSplit: operator splitting, whose fixed point is the optimum of the whole federation.

Pathak and Wainwright 2020, Algorithm 1. Choose it for one shared model when every client is heard
in every round and can solve its local problem well: FedAvg and FedProx with many local steps end
elsewhere. Costs per round: d numbers each way for everyone; `steps` gradients. Keeps: its point z.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Method, Traits
from ..solvers import sgd
from ..task.context import Here
from ..task.task import Task
from .options import epochs_knob, steps_knob


@dataclass(frozen=True)
class FedSplit(Method):
    """One shared model by proximal steps, right where FedProx is biased; all heard each round."""

    traits = Traits(
        data_through_gradients=True,
        trains="everyone",
        hears_all=True,  # x is the mean of all z_j
        optimizers=("w",),
        row_messages=True,
        reductions={"steps": "no model is trained"},
    )

    lr: float = knob(0.1, "step size of the solver of the proximal problem", above=0)
    steps: int = steps_knob(5, "its gradient steps per round")
    epochs: int = epochs_knob()
    s: float = knob(0.3, "s, step size of the proximal operator", above=0)

    def weigh(self, samples: Tensor) -> Tensor:
        return torch.ones_like(samples)

    def private(self, task: Task, clients: np.ndarray) -> State:
        return {"z": task.x0.repeat(len(clients), 1)}

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        x = down["w"]
        z = private["z"]
        centre = 2 * x - z

        def pull(y: Tensor) -> Tensor:
            return (y - centre) / self.s

        # z_{t+1/2} ≈ prox_{s f_j}(2 x - z) = argmin f_j(y) + 1/(2s) ||y - (2 x - z)||²
        half = sgd(task, centre, here, self.lr, self.steps, self.epochs, pull)
        z = z + 2 * (half - x)  # z_{t+1} = z + 2 (z_{t+1/2} - x)
        return {"w": z}, {"z": z}  # the server's mean of z_j is x_{t+1}
