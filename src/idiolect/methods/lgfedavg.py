"""LG-FedAvg: local representations, shared top layers (Liang et al. 2020).

Choose it when clients see the world differently but mean the same by it. Costs per round: the shared layers down to and up from each
sampled client; `steps` gradients. Keeps: the local layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Rule
from ..solvers import sgd
from ..task.batches import Batches
from ..task.task import Split, Task
from .fedavg import average
from .partial import SplitMethod


@dataclass(frozen=True)
class LgFedAvg(SplitMethod):
    """Local representation layers, shared top layers. When inputs differ in kind from client to client."""

    lr: float = knob(0.1, "step size", above=0)
    steps: int = knob(5, "SGD steps a round", low=0)
    epochs: int = knob(
        0, "passes over the client's data a round, in place of steps; 0 = use steps", low=0
    )
    shared_part: str = knob(
        "output",
        "the shared layers: output (the original: the top), input, all, or parameter names (fc*)",
    )
    weighting: str = knob("samples", "the server's mean", choices=("samples", "equal", "unbiased"))

    def split(self, task: Task) -> Split:
        chosen = task.split(self.shared_part)
        return Split(theta=chosen.w, w=chosen.theta)

    def update(
        self, task: Task, down: State, private: State, batches: Batches
    ) -> tuple[State, State]:
        x = self.split(task).join(down["theta"], private["w"])
        theta, w = self.split(task).parts(sgd(task, x, batches, self.lr, self.steps, self.epochs))
        return {"theta": theta}, {"w": w}

    def aggregate(self, task: Task, server: State, up: State, weights: Tensor, rule: Rule) -> State:
        return {"theta": average(server["theta"], up["theta"], weights, rule, self.weighting)}
