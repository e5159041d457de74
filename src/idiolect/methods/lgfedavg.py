"""LG-FedAvg: local representations, shared top layers (Liang et al. 2020).

Choose it when the inputs differ between clients but their labels mean the same. Costs per round:
the shared layers down to and up from each sampled client; `steps` gradients. Keeps: the local
layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.knobs import knob
from ..task.layout import Split
from ..task.task import Task
from .partial import JointSgd


@dataclass(frozen=True)
class LgFedAvg(JointSgd):
    """Local representation layers, shared top layers. When inputs differ between clients."""

    traits = JointSgd.traits

    shared_part: str = knob(
        "head",
        "the shared layers: head (the original: the top), layer:2, all, or parameter names (fc*)",
    )

    def split(self, task: Task) -> Split:
        split = task.split(self.shared_part)
        return Split(theta=split.w, w=split.theta)
