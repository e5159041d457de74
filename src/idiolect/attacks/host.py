"""Malicious clients in simulations: hosts whose messages are tampered with as they leave.

Malicious clients sit at a host of their own, which differs from an honest one only in what leaves
it. An attack that needs the honest messages of the round reads them from an `Observer`, to which
the honest hosts of the simulation show theirs; the malicious host is then asked after the honest
ones. Any other attack tampers with each message by itself, as it is made.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..core import streams
from ..core.streams import Keys
from ..core.types import State
from ..host.host import Host
from ..host.terms import Exchange
from .base import Attack
from .observer import Observer, tamper


class WatchedHost(Host):
    """An honest host whose messages colluding clients can read."""

    def __init__(self, *arguments: Any, observer: Observer):
        super().__init__(*arguments)
        self.observer = observer
        observer.introduce(self.wire_ids, self.keys)

    def leaving(self, exchange: Exchange, rows: Tensor, up: State, reference: State) -> State:
        self.observer.see(exchange.version, exchange.part, self.wire_ids[rows], up)
        return up


class MaliciousHost(Host):
    """A host of malicious clients only."""

    stacks = False  # an attack is told the one message that its clients were sent

    def __init__(self, *arguments: Any, attack: Attack, observer: Observer | None = None):
        super().__init__(*arguments)
        self.attack = attack
        self.observer = observer  # None where the attack needs no honest message
        if observer is not None:
            observer.introduce(self.wire_ids, self.keys)
        self.gathers = attack.colludes

    def recipe(self) -> tuple[type[Host], tuple[Any, ...], dict[str, Any]]:
        made, arguments, options = super().recipe()
        return made, arguments, options | {"attack": self.attack}

    def leaving(self, exchange: Exchange, rows: Tensor, up: State, reference: State) -> State:
        purpose = "attack on the answer" if exchange.part else "attack"

        def keys_of(wire_ids: Tensor) -> Keys:
            if self.observer is None:
                clients = self.keys[self.rows(wire_ids).numpy()]
            else:
                clients = self.observer.keys(wire_ids)
            return streams.keys(self.contract.task.seed, purpose, exchange.version, clients)

        wire_ids = self.wire_ids[rows]
        honest = (wire_ids[:0], {n: t[:0] for n, t in up.items()})
        if self.observer is not None:
            seen_ids, seen = self.observer.seen(exchange.version, exchange.part)
            if len(seen_ids):
                honest = (seen_ids, seen)
        return tamper(self.attack, wire_ids, up, *honest, reference, keys_of)
