"""What travels between server and hosts in a round, beside the messages themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import Factors
from ..wire.ragged import Ragged, stacked


@dataclass(frozen=True)
class RoundRequest:
    """From the server to every host: who trains in this round, who is heard, the message down."""

    version: int  # of the server's model; in synchronous rounds the number of the round
    down: bytes
    train: Tensor  # int64: wire ids of the clients that update
    heard: Tensor  # int64: wire ids of those whose messages are expected, among `train`
    factors: Factors = field(default_factory=dict)  # of settings in this round: a schedule
    # int64: how often each of `train` has started before, by which its random numbers are keyed;
    # None in synchronous rounds: by the round
    turns: Tensor | None = None


@dataclass(frozen=True)
class HostUpdate:
    """What a host sends in a round."""

    messages: Ragged
    values: np.ndarray  # float64[S]: 32-bit words of each as the lp-proj paper counts
    trained: Tensor  # int64: wire ids of the clients that trained
    gradients: Tensor  # int64: gradient evaluations of each of them
    counted: dict[str, Tensor] = field(default_factory=dict)  # int64 each: see Traits.counters

    @classmethod
    def merge(cls, updates: Sequence[HostUpdate]) -> HostUpdate:
        """All of it as one."""
        if len(updates) == 1:
            return updates[0]
        none = torch.zeros(0, dtype=torch.int64)
        return cls(
            stacked([s.messages for s in updates]),
            np.concatenate([np.zeros(0), *(s.values for s in updates)]),
            torch.cat([none, *(s.trained for s in updates)]),
            torch.cat([none, *(s.gradients for s in updates)]),
            {
                n: torch.cat([s.counted[n] for s in updates])
                for n in (updates[0].counted if updates else ())
            },
        )


@dataclass(frozen=True)
class ExchangeId:
    """Which messages of a round: those up, or answers about a part in a second exchange."""

    version: int
    part: str = ""  # the part of the message that is asked about; "" = the message itself


@dataclass(frozen=True)
class Query:
    """A channel's second exchange: the exact values of some coordinates are asked for."""

    version: int
    part: str  # of the message
    message: bytes  # the coordinates
    asked: Tensor  # int64: wire ids


@dataclass(frozen=True)
class RoundConclusion:
    """The end of a round: whose messages counted, and which coordinates the server has taken."""

    version: int
    counted: Tensor  # int64: wire ids
    unheard: Tensor  # int64: wire ids of those expected that did not count
    taken: dict[str, bytes]  # part of the message -> coordinates taken (second exchange)
