"""Fine-tuning: FedAvg, then some personal steps before use.

Choose it as the simplest personalisation there is. Costs per round as FedAvg; `personal_steps`
gradients before use. Keeps nothing. The run's settings `finetune_steps` and `finetune_lr` do the
same to any method, as the lp-proj paper does to the compressed ones (section 5.3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from ..core.knobs import knob
from ..core.types import State
from ..task.context import Here
from ..task.task import Task
from .fedavg import FedAvg


@dataclass(frozen=True)
class Finetune(FedAvg):
    """FedAvg, then personal SGD steps before use. Simple, and often hard to beat."""

    traits = replace(
        FedAvg.traits,
        rates=("lr", "personal_lr"),
        reductions={
            "personal_steps": "this is FedAvg",
            "steps": "the shared model stays as it starts",
        },
    )

    personal_lr: float = knob(0.1, "step size of the fine-tuning", above=0)
    personal_steps: int = knob(20, "SGD steps before use, whatever epochs says", low=0)

    def personal(self, task: Task, down: State, private: State, here: Here) -> Tensor:
        w = down["w"].expand(here.rows, -1)
        return self.sgd(task, w, here, self.personal_lr, self.personal_steps)
