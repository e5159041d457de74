"""Dual LoRA: every adapter is a sum of two, a shared one and one of the client's own.

y = W x + B_s A_s x + B_p A_p x, as the global and the local adapter of FedDPA (Yang, Long, Shen,
Jiang and Blumenstein, NeurIPS 2024). An adapter of rank r is this sum: its first ranks are the
shared adapter, the others the client's own, so that any model with LoRA will do. Both take part
in training and in every prediction; FedDPA weighs the local one for each input by its likeness to
training inputs, which is not done here. Choose it where clients share a language and differ in how
they use it. Costs per round: the shared ranks down to and up from each sampled client; steps +
private_steps gradients. Keeps: the client's ranks. Trained in turns, as FedAlt.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..core.knobs import SettingError, knob
from ..task.layout import Split
from ..task.task import Task
from .fedalt import FedAlt


@dataclass(frozen=True)
class DualLora(FedAlt):
    """Half of each LoRA's ranks shared, half the client's own. For speakers of one language."""

    traits = replace(FedAlt.traits, presets={})

    part: str = knob(
        "adapter", "the LoRA whose ranks are divided: a word or patterns of parameter names"
    )
    private_ranks: float = knob(
        0.5, "share of an adapter's ranks that are the client's own", above=0, below=1
    )

    def split(self, task: Task) -> Split:
        layout = task.layout
        parts = layout.parts
        if not parts.adapter:
            return task.split("none")
        selection = torch.zeros(task.d, dtype=torch.bool)
        selection[task.split(self.part).w.cpu()] = True
        private = torch.zeros(task.d, dtype=torch.bool)
        for name, ranks in layout.unflatten(private).items():
            if name in parts.words["lora_A"]:  # [r, ...]: a row is a rank
                ranks[self._shared(len(ranks)) :] = True
            elif name in parts.words["lora_B"]:  # [outputs, r, ...]: a column is a rank
                ranks[:, self._shared(ranks.shape[1]) :] = True
        private &= selection
        theta, w = (mask.nonzero().flatten().to(task.device) for mask in (~private, private))
        return Split(theta, w)

    def _shared(self, rank: int) -> int:
        """How many of the ranks are shared: at least one, and not all."""
        if rank < 2:
            raise SettingError(f"rank must be 2 or more to be divided in two adapters, got {rank}")
        return min(max(1, rank - round(self.private_ranks * rank)), rank - 1)
