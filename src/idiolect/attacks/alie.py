"""A little is enough: a shift that hides in the spread of the honest messages."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor

from ..core.knobs import knob
from ..core.streams import Keys
from .attack import Collusion


@dataclass(frozen=True)
class Alie(Collusion):
    """mean - z std of the honest messages, per coordinate (population standard deviation).

    z is the largest for which, if they were normal, enough honest clients would be farther out to
    give the f malicious clients among n a majority: z = Phi^-1((n - f - s) / (n - f)) with
    s = floor(n / 2 + 1) - f supporters. Where that is below zero (f = 1 and n even) z is 0 and the
    mean is sent; where the malicious clients are a majority by themselves (s < 1) s is 1. Baruch,
    Baruch and Goldberg 2019.

    >>> import numpy as np, torch
    >>> rows = torch.tensor([[0.0], [2.0], [9.0]])
    >>> malicious = torch.tensor([False, False, True])
    >>> Alie(z=3)(rows, malicious, None, np.zeros(3, dtype=np.uint64)).tolist()
    [[0.0], [2.0], [-2.0]]
    """

    z: float = knob(
        0.0,
        "standard deviations from the mean; 0: from the numbers of malicious clients and of all",
        low=0,
    )

    def agree(
        self, seen: Tensor, reference: Tensor | None, keys: Keys, malicious: int, clients: int
    ) -> Tensor:
        z = self.z or quantile(clients, malicious)
        return seen.mean(0) - z * seen.std(0, correction=0)


def quantile(n: int, f: int) -> float:
    """The paper's z for f malicious clients among n.

    Where all are malicious, the f rows that they estimate from count as honest.

    >>> round(quantile(50, 24), 3)
    1.426
    """
    honest = n - f or f
    supporters = max(1, n // 2 + 1 - f)
    share = (honest - supporters) / honest
    return max(0.0, NormalDist().inv_cdf(share)) if share > 0 else 0.0
