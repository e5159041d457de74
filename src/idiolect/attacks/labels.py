"""Malicious clients with wrong training labels, and what they send after training on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core.knobs import knob
from ..core.streams import Keys
from ..data.federation import Federation
from .base import Attack
from .data import LABELS, poison
from .noise import scalars


@dataclass(frozen=True)
class DataPoison(Attack):
    """Random labels, and the message times c ~ N(0, std^2), to outweigh the others.

    One c, of either sign, per client and round. Sections 5.4 and C.7.2 of the lp-proj paper, with
    standard deviation 20. labels = "wrong": uniform over the other classes, so flipped if there are
    two, as C.7.2 says; "uniform": over all classes, as the paper's public code draws them.

    >>> import numpy as np, torch
    >>> malicious = torch.tensor([False, True])
    >>> keys = np.array([1, 2], dtype=np.uint64)
    >>> sent = DataPoison()(torch.tensor([[1.0, 2.0], [1.0, 2.0]]), malicious, None, keys)
    >>> bool(sent[1, 1] == 2 * sent[1, 0])
    True
    """

    poisons: ClassVar[str] = "random"
    std: float = knob(20.0, "standard deviation of the factor", above=0)
    labels: str = knob(
        "wrong", "what random labels are drawn from: the other classes, or all", choices=LABELS
    )

    def forge(self, own: Tensor, reference: Tensor | None, keys: Keys) -> Tensor:
        return scalars(keys, self.std, own) * own

    def poison(self, federation: Federation, malicious: Tensor, seed: int) -> Federation:
        return poison(federation, malicious, federation.classes, self.poisons, seed, self.labels)


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Labels y -> C - 1 - y, honest training on them and an honest message.

    Tolpegin et al. 2020; Fang et al. 2020.

    >>> LabelFlip.poisons
    'flip'
    """

    poisons: ClassVar[str] = "flip"

    def forge(self, own: Tensor, reference: Tensor | None, keys: Keys) -> Tensor:
        return own
