"""Mimic: all malicious clients repeat one honest client, who then counts for many."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import knob
from ..core.streams import Keys
from .attack import Collusion, change


@dataclass(frozen=True)
class Mimic(Collusion):
    """All malicious clients send the message of one honest client i*.

    Every message is an honest one, yet where clients differ the others lose their weight.
    which = "variance": z is the direction of greatest variance of the honest changes x_i and
    i* = argmax_i |z . x_i|. The paper sums both over the first rounds and then keeps i*; this
    attack has no memory and decides anew in each round. which = "keyed": the honest client with the
    smallest random number of the round. Karimireddy, He and Jaggi 2022.

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
