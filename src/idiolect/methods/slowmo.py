"""SlowMo: FedAvg whose server moves with momentum, measured in the clients' learning rate.

Wang, Tantia, Ballas and Rabbat 2020, Algorithm 1 with an exact average. Choose it to save rounds
with one shared model. At a constant `lr` it is FedAvg with the run's server momentum (`fedavgm`);
under a schedule the slow momentum keeps its meaning as a gradient. Costs per round as FedAvg; the
server keeps d numbers more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..core.knobs import knob
from ..core.types import State
from ..method import Combine
from ..task.task import Task
from .fedavg import FedAvg


@dataclass(frozen=True)
class SlowMo(FedAvg):
    """FedAvg with momentum at the server. One shared model in fewer rounds."""

    traits = replace(
        FedAvg.traits,
        reductions={"beta,server_rate=1": "this is FedAvg", "steps": "no model is trained"},
    )

    beta: float = knob(0.7, "β, slow momentum", low=0, below=1)
    server_rate: float = knob(1.0, "α, slow learning rate", above=0)

    def server(self, task: Task) -> State:
        return {"w": task.x0.clone(), "u": torch.zeros_like(task.x0)}

    def broadcast(self, task: Task, server: State) -> State:
        return {"w": server["w"]}

    def aggregate(self, task: Task, server: State, up: State, rule: Combine) -> State:
        w = server["w"]
        mean = self.average(server, up, rule)["w"]  # x_{t,τ}
        u = self.beta * server["u"] + (w - mean) / self.lr  # line 7, with γ_t the local rate
        return {"w": w - self.server_rate * self.lr * u, "u": u}  # line 8
