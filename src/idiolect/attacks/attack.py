"""What an attack is: a pure function of a round's messages, who is malicious, and keyed draws.

Methods, channels and rules know nothing of attacks. An attack acts after all training and
projection and before any channel, on one part of the message at a time. The keys are the same for
every part, so a client draws once per round.
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
from ..task.losses import Loss


@dataclass(frozen=True)
class Attack(Knobs):
    """attack(rows[S, m], malicious[S], reference[m] | None, keys[S]) -> rows[S, m].

    `malicious` is a mask; the rows of honest clients come back bit for bit. `reference` is what the
    server sent down where the message is a model, so that a change is row - reference; None where
    the message is a change already. `keys` are streams.keys(seed, "attack", round, name keys of the
    clients): what a client draws depends on no other client.

    Your own attack overrides `forge`, or `forge_round` if it needs the whole round.
    """

    # what the attack does to the malicious clients' training labels before the run:
    # "", "random" or "flip"
    poisons: ClassVar[str] = ""
    # whether the malicious clients see all messages of the round, which must then be in one place
    colludes: ClassVar[bool] = False

    def __call__(
        self, rows: Tensor, malicious: Tensor, reference: Tensor | None, keys: Keys
    ) -> Tensor:
        who = malicious.nonzero()[:, 0]
        if not len(who) or not rows.numel():
            return rows
        out = rows.clone()
        forged = self.forge_round(rows, malicious, reference, keys)
        out[who.to(rows.device)] = forged.to(rows.dtype)
        return out

    def forge_round(
        self, rows: Tensor, malicious: Tensor, reference: Tensor | None, keys: Keys
    ) -> Tensor:  # -> [F, m], or [m] for all
        """What the F malicious clients send instead; here each by itself."""
        own = rows[malicious.to(rows.device)]
        return self.forge(own, reference, keys[malicious.cpu().numpy()])

    def forge(
        self, own: Tensor, reference: Tensor | None, keys: Keys
    ) -> Tensor:  # own[F, m], keys[F] -> [F, m]
        """The messages of malicious clients that know only their own."""
        raise NotImplementedError

    def poison(
        self, federation: Federation, malicious: Tensor, seed: int, loss: Loss | None = None
    ) -> Federation:
        """The data to train on, by this loss; `federation` where the attack leaves labels alone."""
        if not self.poisons:
            return federation
        from .poisoning import poison  # which has attacks of its own

        return poison(federation, malicious, federation.classes, self.poisons, seed, loss=loss)


@dataclass(frozen=True)
class Collusion(Attack):
    """Malicious clients that see the honest messages of the round and all send the same vector.

    A message with NaN or infinity, which no server admits, is not taken into account. Where no
    honest client is in the round they estimate from what they themselves would have sent; where
    that is not finite either, they send it.
    """

    colludes: ClassVar[bool] = True

    def forge_round(
        self, rows: Tensor, malicious: Tensor, reference: Tensor | None, keys: Keys
    ) -> Tensor:
        finite = rows.isfinite().all(1).cpu()
        malicious = malicious.cpu()
        honest = finite & ~malicious
        visible = honest if bool(honest.any()) else finite & malicious
        if not bool(visible.any()):
            return rows[malicious.to(rows.device)]
        return self.agree(
            rows[visible.to(rows.device)],
            reference,
            keys[visible.numpy()],
            malicious=int(malicious.sum()),
            clients=len(rows),
        )

    def agree(
        self, seen: Tensor, reference: Tensor | None, keys: Keys, malicious: int, clients: int
    ) -> Tensor:  # seen[H, m], keys[H] -> [m]
        """The one message, from the H messages seen and their senders' keys.

        `clients` are heard in the round, `malicious` of them malicious.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class AttackSequence(Attack):
    """Attacks in order, each on what the one before it made of the malicious clients' rows.

    Each has random numbers of its own.
    """

    parts: tuple[Attack, ...] = ()

    def __post_init__(self) -> None:
        poisons = [p.poisons for p in self.parts if p.poisons]
        if len(poisons) > 1:
            raise SettingError(
                f"attack: {len(poisons)} of its parts change the labels; at most one may"
            )
        object.__setattr__(self, "poisons", "".join(poisons))
        object.__setattr__(self, "colludes", any(p.colludes for p in self.parts))

    def __call__(
        self, rows: Tensor, malicious: Tensor, reference: Tensor | None, keys: Keys
    ) -> Tensor:
        for j, part in enumerate(self.parts):
            own_keys = keys if j == 0 else streams.mix(keys ^ np.uint64(j))
            rows = part(rows, malicious, reference, own_keys)
        return rows

    def poison(
        self, federation: Federation, malicious: Tensor, seed: int, loss: Loss | None = None
    ) -> Federation:
        for part in self.parts:
            federation = part.poison(federation, malicious, seed, loss)
        return federation


def change(rows: Tensor, reference: Tensor | None) -> Tensor:
    """row - reference, or the row where the message is a change already."""
    return rows if reference is None else rows - reference


def unit(v: Tensor) -> Tensor:
    """v / ||v||, without overflow of the squares; zero stays zero."""
    v = v / v.abs().max().clamp_min(torch.finfo(v.dtype).tiny)
    return v / v.norm().clamp_min(torch.finfo(v.dtype).tiny)
