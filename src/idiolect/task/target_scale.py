"""Real targets on a common scale: training sees mean 0 and variance 1, users see their own units.

A model of a regression is trained on (target - centre) / spread, so that step sizes need not follow
the unit of the targets. Everything that leaves a task is in the user's units again: outputs,
figures, and the modules that are handed out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.types import Tree, first, map_tree

# a target column about on this scale is left as it is
MOST_CENTRE = 1.0
SPREADS = (0.3, 3.0)


@dataclass(frozen=True)
class TargetScale:
    """Mean and standard deviation of real targets, one entry for each of their columns.

    >>> scale = TargetScale((150.0,), (75.0,))
    >>> scale.standardised(torch.tensor([75.0, 300.0])), scale.in_units(torch.tensor([[2.0]]), 1)
    (tensor([-1.,  2.]), tensor([[300.]]))
    """

    centre: tuple[float, ...]
    spread: tuple[float, ...]

    def __post_init__(self) -> None:
        numbers = (*self.centre, *self.spread)
        if not self.centre or len(self.centre) != len(self.spread):
            raise ValueError("target_scale: a centre and a spread for each column")
        if not all(map(math.isfinite, numbers)) or min(self.spread) <= 0:
            raise ValueError("target_scale: centres must be finite, spreads > 0")

    @classmethod
    def where_needed(cls, centre: tuple[float, ...], spread: tuple[float, ...]) -> TargetScale:
        """Columns with a mean within ±1 and a deviation from 0.3 to 3 stay as they are.

        >>> TargetScale.where_needed((0.2, 150.0), (1.1, 75.0))
        TargetScale(centre=(0.0, 150.0), spread=(1.0, 75.0))
        """
        low, high = SPREADS
        columns = [
            (0.0, 1.0) if abs(c) <= MOST_CENTRE and low <= s <= high else (c, s)
            for c, s in zip(centre, spread, strict=True)
        ]
        return cls(tuple(c for c, _ in columns), tuple(s for _, s in columns))

    @property
    def changes_nothing(self) -> bool:
        return set(self.centre) == {0.0} and set(self.spread) == {1.0}

    def tensors(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Centre and spread, [] for one column and [m] for m of them."""
        options: dict[str, Any] = {"dtype": like.dtype, "device": like.device}
        centre, spread = torch.tensor([self.centre, self.spread], **options)
        return (centre[0], spread[0]) if len(self.centre) == 1 else (centre, spread)

    def standardised(self, targets: Tensor) -> Tensor:
        """targets[n] or [n, m] on the common scale."""
        centre, spread = self.tensors(targets)
        return (targets - centre) / spread

    def in_units(self, outputs: Tree, lead: int) -> Tree:
        """What a model returns, in the user's units; `lead`: how many axes count samples."""
        return rescaled(outputs, *self.tensors(first(outputs)), lead)


def rescaled(outputs: Tree, centre: Tensor, spread: Tensor, lead: int) -> Tree:
    """outputs * spread + centre; of a dict with logits these alone."""
    if isinstance(outputs, dict) and isinstance(outputs.get("logits"), Tensor):
        return {**outputs, "logits": rescaled(outputs["logits"], centre, spread, lead)}

    def rescale(t: Tensor) -> Tensor:
        if centre.dim() and t.dim() == lead + 2:  # outputs[n, m, 1] for targets[n, m]
            return t * spread.unsqueeze(-1) + centre.unsqueeze(-1)
        return t * spread + centre

    return map_tree(rescale, outputs)
