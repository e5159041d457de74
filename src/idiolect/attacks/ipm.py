"""Inner-product manipulation: pull the average against the honest change."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core.knobs import knob
from ..core.streams import Keys
from .attack import Collusion, change


@dataclass(frozen=True)
class Ipm(Collusion):
    """reference - eps (mean of the honest changes).

    So that the aggregate and the true change have a negative inner product. A small eps passes for
    a short honest step where rules measure distances; the plain mean of n messages is reversed only
    when eps f > n - f. Xie, Koyejo and Gupta 2020 ("Fall of empires").

    >>> import numpy as np, torch
    >>> rows = torch.tensor([[1.0], [3.0], [9.0]])
    >>> malicious = torch.tensor([False, False, True])
    >>> Ipm(eps=0.5)(rows, malicious, None, np.zeros(3, dtype=np.uint64)).tolist()
    [[1.0], [3.0], [-1.0]]
    """

    eps: float = knob(0.5, "length of the step back, in mean honest changes", above=0)

    def agree(
        self, seen: Tensor, reference: Tensor | None, keys: Keys, malicious: int, clients: int
    ) -> Tensor:
        back = -self.eps * change(seen.mean(0), reference)
        return back if reference is None else reference + back
