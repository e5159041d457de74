"""Attacks of malicious clients that see the honest messages of the round and agree on one.

Min-max and min-sum send mean + gamma p with the largest gamma that keeps a distance bound. With p a
unit vector, c_i = x_i - mean and ||mean + gamma p - x_i||^2 = ||c_i||^2 - 2 gamma p.c_i + gamma^2,
the bounds are quadratics in gamma: no search is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import knob
from ..core.streams import Keys
from .attack import Collusion, change, unit


@dataclass(frozen=True)
class Alie(Collusion):
    """mean - z std of the honest messages, per coordinate (population standard deviation).

    z is the largest for which, if they were normal, enough honest clients would be farther out to
    give the f malicious clients among n a majority: z = Phi^-1((n - f - s) / (n - f)) with
    s = floor(n / 2 + 1) - f supporters. Where that is below zero (f = 1 and n even) z is 0 and the
    mean is sent; where the malicious clients are a majority by themselves (s < 1) s is 1. Baruch,
    Baruch and Goldberg 2019.

    >>> import numpy as np
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


@dataclass(frozen=True)
class Ipm(Collusion):
    """reference - eps (mean of the honest changes).

    So that the aggregate and the true change have a negative inner product. A small eps passes for
    a short honest step where rules measure distances; the plain mean of n messages is reversed only
    when eps f > n - f. Xie, Koyejo and Gupta 2020 ("Fall of empires").

    >>> import numpy as np
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


@dataclass(frozen=True)
class _DistanceBounded(Collusion):
    direction: str = knob(
        "std",
        "where to push: against the mean change, down each coordinate's spread, "
        "or against its sign",
        choices=("unit", "std", "sign"),
    )

    def agree(
        self, seen: Tensor, reference: Tensor | None, keys: Keys, malicious: int, clients: int
    ) -> Tensor:
        mean = seen.mean(0)
        c = seen - mean
        scale = c.abs().max()  # squares of c / scale neither overflow nor vanish
        if not scale > 0:
            return mean  # all honest messages are equal: any other would stand out
        p = -unit(self._towards(seen, change(mean, reference)))
        return mean + scale * self.gamma(c / scale, p) * p

    def _towards(self, rows: Tensor, mean_change: Tensor) -> Tensor:
        """The opposite of the direction to push in, of any length."""
        if self.direction == "std":
            return rows.std(0, correction=0)
        return mean_change.sign() if self.direction == "sign" else mean_change

    def gamma(self, c: Tensor, p: Tensor) -> Tensor:
        raise NotImplementedError


@dataclass(frozen=True)
class MinMax(_DistanceBounded):
    """mean + gamma p, the largest gamma with max_i ||message - x_i|| <= max_ij ||x_i - x_j||.

    i and j are honest. p: "unit" -(mean change), "std" -(standard deviation), "sign" -sign(mean
    change), each divided by its length, which changes gamma and not the message. Shejwalkar and
    Houmansadr 2021 search for gamma by halving steps; this is the exact root.

    >>> import numpy as np
    >>> rows = torch.tensor([[0.0], [2.0], [9.0]])
    >>> malicious = torch.tensor([False, False, True])
    >>> MinMax()(rows, malicious, None, np.zeros(3, dtype=np.uint64)).tolist()
    [[0.0], [2.0], [0.0]]
    """

    def gamma(self, c: Tensor, p: Tensor) -> Tensor:
        gram = c @ c.T
        square = gram.diag()
        along = c @ p
        widest = (square[:, None] + square - 2 * gram).max()
        return (along + (along.square() + (widest - square).clamp_min(0)).sqrt()).min()


@dataclass(frozen=True)
class MinSum(_DistanceBounded):
    """mean + gamma p, the largest gamma within the bound on sums of squared distances.

    The bound is sum_i ||message - x_i||^2 <= max_i sum_j ||x_i - x_j||^2 over honest i, j. Since
    sum_j ||y - x_j||^2 = H ||y - mean||^2 + const, gamma is the largest distance of an honest
    message from the mean. Shejwalkar and Houmansadr 2021; p as in min-max.

    >>> import numpy as np
    >>> rows = torch.tensor([[0.0], [2.0], [9.0]])
    >>> malicious = torch.tensor([False, False, True])
    >>> MinSum()(rows, malicious, None, np.zeros(3, dtype=np.uint64)).tolist()
    [[0.0], [2.0], [0.0]]
    """

    def gamma(self, c: Tensor, p: Tensor) -> Tensor:
        return torch.linalg.vector_norm(c, dim=1).max()


@dataclass(frozen=True)
class Mimic(Collusion):
    """All malicious clients send the message of one honest client i*.

    Every message is an honest one, yet where clients differ the others lose their weight.
    which = "variance": z is the direction of greatest variance of the honest changes x_i and
    i* = argmax_i |z . x_i|. The paper sums both over the first rounds and then keeps i*; this
    attack has no memory and decides in each round by itself. which = "keyed": the honest client
    with the smallest random number of the round. Karimireddy, He and Jaggi 2022.

    >>> import numpy as np
    >>> rows = torch.tensor([[0.0], [1.0], [5.0], [9.0]])
    >>> malicious = torch.tensor([False, False, False, True])
    >>> Mimic()(rows, malicious, None, np.zeros(4, dtype=np.uint64)).tolist()
    [[0.0], [1.0], [5.0], [5.0]]
    """

    which: str = knob(
        "variance",
        "whom to repeat: farthest along the greatest variance, or a random one",
        choices=("variance", "keyed"),
    )

    def agree(
        self, seen: Tensor, reference: Tensor | None, keys: Keys, malicious: int, clients: int
    ) -> Tensor:
        if self.which == "keyed":
            return seen[int(streams.bits(keys, 0, 1)[:, 0].argmin())]
        x = change(seen, reference).nan_to_num()  # a difference may overflow; what is sent does not
        tiny = torch.finfo(x.dtype).tiny
        x = x / x.abs().max().clamp_min(tiny)  # so that squares neither overflow nor vanish
        c = x - x.mean(0)
        u = torch.linalg.eigh((c @ c.T).cpu().double())[1][:, -1]  # z is c' u up to its length
        z = c.T @ u.to(c)
        return seen[int((x @ z).abs().argmax())]
