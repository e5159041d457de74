"""When training has diverged: no message is usable, or the loss of a regression only grows.

A round is lost if messages came and every one of them was rejected for its numbers (not finite, or
beyond what the server can add up). Then the server stays as it is, and so does the cause. A run
stops after `ROUNDS` lost rounds in a row, with `MESSAGES` rejected messages in them or, of a
smaller federation, `ROUNDS` of every client. Rounds in which no message came change nothing: sites
that are away may come back. Simulations with malicious clients run to the end, for it may be their
messages alone. A run that ends without any message that counted, its last round lost, has diverged
however short it was.

A regression is told by its losses too. An evaluated round is beyond hope if more than half of the
clients have a loss that is not finite or more than `TIMES` that of the constant answer, and it did
not fall since the evaluation before. A run stops after `ROUNDS` of them in a row.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace

from torch import Tensor

from ..wire.ledger import RoundEntry

ROUNDS = 5
MESSAGES = 50
TIMES = 1e3
NUMBERS = ("not finite", "overflow")  # the reasons that are about the numbers of a message


@dataclass(frozen=True)
class LostRounds:
    """The lost rounds in a row, up to now. It depends on the ledger alone, and is in checkpoints.

    >>> lost = LostRounds().after(RoundEntry(6, 3, 0, {"not finite": 2}, {"silent": 1}), 7)
    >>> lost
    LostRounds(rounds=1, messages=2, first=7)
    >>> lost.after(RoundEntry(7, 3, 1, {"not finite": 2}), 8).rounds
    0
    """

    rounds: int = 0
    messages: int = 0
    first: int = 0  # the first of these rounds, counted from 1

    def after(self, entry: RoundEntry | None, number: int) -> LostRounds:
        """With round `number` and its account; None where the method sends nothing."""
        if entry is None or not (entry.admitted or entry.rejected):
            return self
        if entry.admitted or not entry.rejected.keys() <= set(NUMBERS):
            return LostRounds()
        return replace(
            self,
            rounds=self.rounds + 1,
            messages=self.messages + sum(entry.rejected.values()),
            first=self.first or number,
        )

    def enough(self, clients: int) -> bool:
        """Whether a run with this many clients stops."""
        return self.rounds >= ROUNDS and self.messages >= min(MESSAGES, ROUNDS * clients)


@dataclass(frozen=True)
class GrownLosses:
    """The evaluated rounds in a row that are beyond hope, up to now. It is in checkpoints.

    >>> import torch
    >>> grown = GrownLosses().after(torch.tensor([9e4, 2e5, 3.0]), constant=2.0, number=3)
    >>> grown.rounds, grown.first, grown.after(torch.tensor([2.0, 2e5, 3.0]), 2.0, 4).rounds
    (1, 3, 0)
    """

    rounds: int = 0
    first: int = 0  # the first of these rounds, counted from 1
    loss: float = 0.0  # the median client's in the last of them

    def after(self, losses: Tensor, constant: float, number: int) -> GrownLosses:
        """With round `number`: the clients' losses, and that of the constant answer."""
        losses = losses[~losses.isnan()] if bool(losses.isfinite().any()) else losses
        if not len(losses) or not 0 < constant < math.inf:
            return GrownLosses()
        middle = losses.nan_to_num(math.inf, posinf=math.inf).median()
        loss = min(float(middle), sys.float_info.max)  # JSON has no infinity
        if loss <= TIMES * constant or loss < self.loss:
            return GrownLosses()
        return GrownLosses(self.rounds + 1, self.first or number, loss)

    @property
    def enough(self) -> bool:
        """Whether a run stops."""
        return self.rounds >= ROUNDS
