"""Malicious clients that send their change too large, or none."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.knobs import knob
from ..core.streams import Keys
from .attack import Attack, change


@dataclass(frozen=True)
class Scaling(Attack):
    """Model replacement: the change times a factor, reference + factor (row - reference).

    With the mean of S messages, factor = S puts the model of a single malicious client in place of
    the shared one. Bagdasaryan et al. 2020.

    >>> import numpy as np
    >>> rows = torch.tensor([[2.0], [3.0]])
    >>> malicious = torch.tensor([False, True])
    >>> w = torch.tensor([1.0])
    >>> Scaling(factor=4)(rows, malicious, w, np.zeros(2, dtype=np.uint64)).tolist()
    [[2.0], [9.0]]
    """

    factor: float = knob(10.0, "factor of the change; negative reverses it")

    def forge(self, own: Tensor, reference: Tensor | None, keys: Keys) -> Tensor:
        scaled = self.factor * change(own, reference)
        return scaled if reference is None else reference + scaled


@dataclass(frozen=True)
class Zero(Attack):
    """A free rider: sends back what came down, a change of zero, and profits from the others.

    Lin et al. 2019.

    >>> import numpy as np
    >>> rows = torch.tensor([[2.0], [3.0]])
    >>> malicious = torch.tensor([False, True])
    >>> w = torch.tensor([1.0])
    >>> Zero()(rows, malicious, w, np.zeros(2, dtype=np.uint64)).tolist()
    [[2.0], [1.0]]
    """

    def forge(self, own: Tensor, reference: Tensor | None, keys: Keys) -> Tensor:
        return torch.zeros_like(own) if reference is None else reference.expand_as(own)
