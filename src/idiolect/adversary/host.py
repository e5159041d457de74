"""Malicious clients in simulations: hosts whose messages are tampered with as they leave.

Malicious clients sit at a host of their own, which differs from an honest one only in what leaves it.
An attack that needs to know the honest messages of the round gets them from an `Observer`, which the
honest hosts of the simulation are watched by; it must then be asked after them. Any other attack
tampers with each message by itself, as it is made.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..core import streams
from ..core.streams import Keys
from ..core.types import State
from ..host.host import Exchange, Host
from .base import Attack
from .observer import Observer, tamper


class WatchedHost(Host):
    """An honest host whose messages colluding clients can read."""

    def __init__(self, *arguments: Any, observer: Observer):
        super().__init__(*arguments)
        self.observer = observer

    def leaving(self, exchange: Exchange, rows: Tensor, up: State, reference: State) -> State:
        self.observer.see(exchange.version, exchange.part, self.wire_ids[rows], up)
        return up


class MaliciousHost(Host):
    """A host of malicious clients only."""

    def __init__(
        self, *arguments: Any, attack: Attack, keys: Keys, observer: Observer | None = None
    ):
        super().__init__(*arguments)
        self.attack = attack
        self.client_keys = keys  # stream keys of all clients, by wire id
        self.observer = observer  # None where the attack needs no honest message
        self.gathers = attack.colludes  # type: ignore[misc]

    def leaving(self, exchange: Exchange, rows: Tensor, up: State, reference: State) -> State:
        purpose = "attack on the answer" if exchange.part else "attack"

        def keys_of(wire_ids: Tensor) -> Keys:
            clients = self.client_keys[wire_ids.numpy()]
            return streams.keys(self.contract.task.seed, purpose, exchange.version, clients)

        wire_ids = self.wire_ids[rows]
        honest = (wire_ids[:0], {n: t[:0] for n, t in up.items()})
        if self.observer is not None:
            seen_ids, seen = self.observer.seen(exchange.version, exchange.part)
            if len(seen_ids):
                honest = (seen_ids, seen)
        return tamper(self.attack, wire_ids, up, *honest, reference, keys_of)
