"""What an attack is: a pure function of the messages of a round, of who lies and of keyed random numbers.

A method, a channel and a rule know nothing of attacks. An attack acts after all training and projection and before any channel, on
one part of the message at a time. The same keys for every part mean one draw for a client and a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import Knobs, SettingError
from ..core.streams import Keys
from ..data.federation import Federation
from .data import poison


@dataclass(frozen=True)
class Attack(Knobs):
    """attack(rows[S, m], bad[S], reference[m] | None, keys[S]) -> rows[S, m], the rows of honest clients bit for bit.

    `reference` is what the server sent down where the message is a model, so that a change is row - reference; None where the message
    is a change already. `keys` are streams.keys(seed, "attack", round, client names): what a client draws depends on no other client.
    """

    poisons: ClassVar[str] = (
        ""  # what the attack does to the liars' training labels before the run: "", "random" or "flip"
    )
    colludes: ClassVar[bool] = (
        False  # whether the liars see the whole round's messages, which must then be in one place
    )

    def __call__(self, rows: Tensor, bad: Tensor, reference: Tensor | None, keys: Keys) -> Tensor:
        who = bad.nonzero()[:, 0]
        if not len(who) or not rows.numel():
            return rows
        out = rows.clone()
        out[who.to(rows.device)] = self.lies(rows, bad, reference, keys).to(rows.dtype)
        return out

    def lies(
        self, rows: Tensor, bad: Tensor, reference: Tensor | None, keys: Keys
    ) -> Tensor:  # -> [F, m], or [m] for all
        """What the F liars send instead; here each by itself."""
        return self.lie(rows[bad.to(rows.device)], reference, keys[bad.cpu().numpy()])

    def lie(
        self, own: Tensor, reference: Tensor | None, keys: Keys
    ) -> Tensor:  # own[F, m], keys[F] -> [F, m]
        """The messages of liars who know only their own."""
        raise NotImplementedError

    def poison(self, federation: Federation, liars: Tensor, seed: int) -> Federation:
        """The data that the clients train on; the federation itself where the attack leaves labels alone."""
        return (
            poison(federation, liars, federation.classes, self.poisons, seed)
            if self.poisons
            else federation
        )


@dataclass(frozen=True)
class Collusion(Attack):
    """Liars who see the honest messages of the round and send one vector, all the same.

    A message with NaN or infinity, which no server admits, teaches them nothing. Where no honest client is in the round they estimate
    from what they themselves would have sent; where that is not finite either, they send it.
    """

    colludes: ClassVar[bool] = True

    def lies(self, rows: Tensor, bad: Tensor, reference: Tensor | None, keys: Keys) -> Tensor:
        finite, liars = rows.isfinite().all(1).cpu(), bad.cpu()
        seen = finite & ~liars if bool((finite & ~liars).any()) else finite & liars
        if not bool(seen.any()):
            return rows[bad.to(rows.device)]
        return self.agree(
            rows[seen.to(rows.device)], reference, keys[seen.numpy()], int(liars.sum()), len(rows)
        )

    def agree(
        self, seen: Tensor, reference: Tensor | None, keys: Keys, liars: int, clients: int
    ) -> Tensor:  # seen[H, m] -> [m]
        """The one message, from the H messages seen (their senders' keys beside them) in a round of `clients`."""
        raise NotImplementedError


@dataclass(frozen=True)
class AttackSequence(Attack):
    """Attacks in order: the next one acts on what the last one made of the liars' rows, with random numbers of its own."""

    parts: tuple[Attack, ...] = ()

    def __post_init__(self) -> None:
        poisons = [p.poisons for p in self.parts if p.poisons]
        if len(poisons) > 1:
            raise SettingError(
                f"attack: {len(poisons)} of its parts change the labels; at most one may"
            )
        object.__setattr__(self, "poisons", "".join(poisons))
        object.__setattr__(self, "colludes", any(p.colludes for p in self.parts))

    def __call__(self, rows: Tensor, bad: Tensor, reference: Tensor | None, keys: Keys) -> Tensor:
        for j, part in enumerate(self.parts):
            rows = part(rows, bad, reference, keys if j == 0 else streams.mix(keys ^ np.uint64(j)))
        return rows

    def poison(self, federation: Federation, liars: Tensor, seed: int) -> Federation:
        for part in self.parts:
            federation = part.poison(federation, liars, seed)
        return federation


def change(rows: Tensor, reference: Tensor | None) -> Tensor:
    """row - reference, or the row where the message is a change already."""
    return rows if reference is None else rows - reference


def unit(v: Tensor) -> Tensor:
    """v / ||v||, without overflow of the squares; zero stays zero."""
    v = v / v.abs().max().clamp_min(torch.finfo(v.dtype).tiny)
    return v / v.norm().clamp_min(torch.finfo(v.dtype).tiny)
