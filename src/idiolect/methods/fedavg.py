"""FedAvg: one shared model, averaged (McMahan et al. 2017; the alternative paper's Algorithm 1).

Choose it when the clients' data are alike. Costs per round: d numbers down to and up from each sampled client; `steps` gradients
each. Keeps no state at the clients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..method import Method, Rule
from ..solvers import Pull, sgd
from ..task.batches import Batches
from ..task.task import Task


@dataclass(frozen=True)
class FedAvg(Method):
    """One shared model: sampled clients train it on their data, the server averages. For clients whose data are alike."""

    lr: float = knob(0.1, "step size of local SGD", above=0)
    steps: int = knob(5, "SGD steps a round", low=0)
    epochs: int = knob(
        0, "passes over the client's data a round, in place of steps; 0 = use steps", low=0
    )
    weighting: str = knob(
        "samples",
        "mean weighted by sample numbers (McMahan), equal, or unbiased: m n_i / (N |C|) (the alternative paper)",
        choices=("samples", "equal", "unbiased"),
    )

    def pull(self, w: Tensor) -> Pull | None:
        """The gradient of a regulariser towards the received model; none here."""
        return None

    def update(
        self, task: Task, down: State, private: State, batches: Batches
    ) -> tuple[State, State]:
        w = down["w"]
        return {
            "w": sgd(
                task,
                w.expand(batches.rows, -1),
                batches,
                self.lr,
                self.steps,
                self.epochs,
                self.pull(w),
            )
        }, private

    def aggregate(self, task: Task, server: State, up: State, weights: Tensor, rule: Rule) -> State:
        return server | {"w": average(server["w"], up["w"], weights, rule, self.weighting)}


def average(w: Tensor, rows: Tensor, weights: Tensor, rule: Rule, weighting: str) -> Tensor:
    """The server's mean of models in the papers' three forms; `weights` are m n_i / N."""
    if weighting == "unbiased":  # w - m / (N |C|) sum_i n_i (w - w_i)
        return w + rule(weights.to(w.dtype).unsqueeze(1) * (rows - w), torch.ones_like(weights))
    return rule(rows, torch.ones_like(weights) if weighting == "equal" else weights)
