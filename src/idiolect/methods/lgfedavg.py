"""LG-FedAvg: local representations, shared top layers (Liang et al. 2020).

Choose it when the inputs differ between clients but their labels mean the same. Costs per round:
the shared layers down to and up from each sampled client; `steps` gradients. Keeps: the local
layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..core.knobs import knob
from ..core.types import State
from ..solvers import sgd
from ..task.context import Here
from ..task.layout import Split
from ..task.task import Task
from .options import WEIGHTINGS, epochs_knob, steps_knob
from .partial import SplitMethod


@dataclass(frozen=True)
class LgFedAvg(SplitMethod):
    """Local representation layers, shared top layers. When inputs differ between clients."""

    traits = replace(
        SplitMethod.traits, optimizers=("w",), reductions={"steps": "no model is trained"}
    )

    lr: float = knob(0.1, "step size", above=0)
    steps: int = steps_knob(20, "SGD steps per round")
    epochs: int = epochs_knob()
    shared_part: str = knob(
        "head",
        "the shared layers: head (the original: the top), layer:2, all, or parameter names (fc*)",
    )
    weighting: str = knob("samples", "the server's mean", choices=WEIGHTINGS)

    def together(self) -> str:
        return "this is FedAvg"

    def split(self, task: Task) -> Split:
        split = task.split(self.shared_part)
        return Split(theta=split.w, w=split.theta)

    def update(self, task: Task, down: State, private: State, here: Here) -> tuple[State, State]:
        x = self.split(task).join(down["theta"], private["w"])
        x = sgd(task, x, here, self.lr, self.steps, self.epochs)
        theta, w = self.split(task).parts(x)
        return {"theta": theta}, {"w": w}
