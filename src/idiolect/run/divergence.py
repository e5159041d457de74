"""When training has diverged: the server has to reject every message, and nothing moves any more.

A round is lost if messages came and every one of them was rejected for its numbers (not finite, or
beyond what the server can add up). Then the server stays as it is, and so does the cause. A run
stops after `ROUNDS` lost rounds in a row, with `MESSAGES` rejected messages in them or, of a
smaller federation, `ROUNDS` of every client. Rounds in which no message came change nothing: sites
that are away may come back. Simulations with malicious clients run to the end, for it may be their
messages alone. A run that ends without any message that counted, its last round lost, has diverged
however short it was.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..wire.ledger import RoundEntry

ROUNDS = 5
MESSAGES = 50
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
