"""What travels between server and hosts in a round, beside the messages themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ..core.knobs import Factors


@dataclass(frozen=True)
class Order:
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
class Query:
    """A channel's second exchange: the exact values of some coordinates are asked for."""

    version: int
    part: str  # of the message
    message: bytes  # the coordinates
    asked: Tensor  # int64: wire ids


@dataclass(frozen=True)
class Verdict:
    """The end of a round: whose messages counted, and which coordinates the server has taken."""

    version: int
    counted: Tensor  # int64: wire ids
    unheard: Tensor  # int64: wire ids of those expected that did not count
    taken: dict[str, bytes]  # part of the message -> coordinates taken (second exchange)
