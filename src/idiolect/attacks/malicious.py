"""The malicious clients of a simulation: how many and which, and the hosts that they are at."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import SettingError
from ..core.streams import Keys
from ..core.types import State
from ..host.host import Host
from ..server.protocol import ExchangeId
from .attack import Attack


def how_many(malicious: float, clients: int) -> int:
    """The number of malicious clients: below 1 a share, rounded; from 1 on the number itself.

    At least one client stays honest.

    >>> how_many(0.1, 100), how_many(3, 100), how_many(0, 100)
    (10, 3, 0)
    """
    number = math.nan if isinstance(malicious, (bool, str)) else float(malicious)
    if not (0 <= number < 1 or (math.isfinite(number) and number >= 1 and number.is_integer())):
        raise SettingError(
            "malicious must be a share of the clients below 1, or a whole number of them, "
            f"got {malicious!r}"
        )
    count = round(number * clients) if number < 1 else int(number)
    if number and not count:
        raise SettingError(
            f"malicious must be at least one of {clients} clients, got a share of {malicious!r}"
        )
    if count and count >= clients:
        raise SettingError(
            f"malicious must leave an honest client, at most {clients - 1} of {clients}, "
            f"got {malicious!r}"
        )
    return count


def chosen(seed: int, keys: Keys, eligible: Tensor, count: int) -> Tensor:  # -> int64[count]
    """The malicious clients, sorted: `count` of the `eligible`, fixed by the seed.

    A larger set holds every smaller one, and a client that may not take part changes nothing for
    the others. `keys[N]` are streams.name_keys of all clients.

    >>> chosen(0, streams.name_keys(["a", "b", "c"]), torch.arange(3), 2).tolist()
    [0, 2]
    """
    if not 0 <= count <= len(eligible):
        raise SettingError(
            f"malicious must be at most {len(eligible)}, the clients that can take part, "
            f"got {count}"
        )
    own_keys = streams.keys(seed, "malicious", 0, keys[eligible.numpy()])
    return eligible[torch.from_numpy(streams.choose(own_keys, count))].sort().values


class Observer:
    """Collects the honest messages of a round from any number of hosts, for attacks that collude.

    It keeps the newest round only: messages of an earlier one are dropped. Of two messages of one
    client, as after a repeated round, the later one counts. Rows are kept, not copied.

    >>> observer = Observer()
    >>> observer.see(0, "attack", torch.tensor([7, 2]), {"w": torch.tensor([[7.0], [2.0]])})
    >>> observer.see(0, "attack", torch.tensor([5]), {"w": torch.tensor([[5.0]])})
    >>> wire_ids, up = observer.seen(0, "attack")
    >>> wire_ids.tolist(), up["w"].tolist()
    ([2, 5, 7], [[2.0], [5.0], [7.0]])
    """

    def __init__(self) -> None:
        self._round = -1
        self._messages: dict[str, list[tuple[Tensor, State]]] = {}  # by purpose
        self._keys: dict[int, np.uint64] = {}  # stream keys by wire id

    def introduce(self, wire_ids: Tensor, keys: Keys) -> None:
        """Clients of a host, honest or malicious, and their stream keys."""
        self._keys.update(zip(wire_ids.tolist(), keys, strict=True))

    def keys(self, wire_ids: Tensor) -> Keys:
        """The stream keys of these clients."""
        return np.array([self._keys[k] for k in wire_ids.tolist()], dtype=np.uint64)

    def see(self, version: int, purpose: str, wire_ids: Tensor, up: State) -> None:
        """Some honest messages; `purpose` tells the exchanges of a round apart."""
        if version > self._round:
            self._round = version
            self._messages = {}
        if version == self._round and len(wire_ids):
            self._messages.setdefault(purpose, []).append((wire_ids, up))

    def seen(self, version: int, purpose: str) -> tuple[Tensor, State]:
        """Wire ids and rows of all messages seen, sorted by wire id; no id and {} if none was."""
        if version < self._round:
            raise ValueError(f"round: {version} is past; only messages of {self._round} are kept")
        messages = self._messages.get(purpose, []) if version == self._round else []
        if not messages:
            return torch.empty(0, dtype=torch.int64), {}
        wire_ids, order = torch.cat([ids for ids, _ in messages]).sort(stable=True)
        last = torch.ones(len(wire_ids), dtype=torch.bool)  # of the messages of its sender
        last[:-1] = wire_ids[1:] != wire_ids[:-1]
        parts = messages[0][1]
        up = {n: _rows([rows[n] for _, rows in messages], order[last]) for n in parts}
        return wire_ids[last], up


def tamper(
    attack: Attack,
    malicious_ids: Tensor,
    malicious_up: State,
    honest_ids: Tensor,
    honest_up: State,
    reference: State,
    keys_of: Callable[[Tensor], Keys],
) -> State:
    """What the malicious clients send: their rows, in the order of `malicious_ids`, under attack.

    The attack sees the rows of all clients sorted by wire id, part by part, as if they were on one
    host. `keys_of` gives the clients' keys of the round by wire id. For an attack that does not
    collude the honest side may be left empty: the result is the same.

    >>> from idiolect.attacks import parse_attack
    >>> here, there = torch.tensor([4, 1]), torch.tensor([3])
    >>> up, theirs = {"w": torch.tensor([[8.0], [9.0]])}, {"w": torch.tensor([[2.0]])}
    >>> no_keys = lambda wire_ids: np.zeros(len(wire_ids), dtype=np.uint64)
    >>> tamper(parse_attack("ipm(eps=3)"), here, up, there, theirs, {}, no_keys)["w"].tolist()
    [[-6.0], [-6.0]]
    """
    wire_ids, order = torch.cat([malicious_ids, honest_ids]).sort()
    malicious = order < len(malicious_ids)
    keys = keys_of(wire_ids)
    back = order.argsort()[: len(malicious_ids)]  # where each malicious client's row went
    out = {}
    for n, own in malicious_up.items():
        rows = _rows([own, honest_up[n]] if len(honest_ids) else [own], order)
        forged = attack(rows, malicious.to(own.device), reference.get(n), keys)
        out[n] = forged[back.to(own.device)]
    return out


def _rows(blocks: list[Tensor], order: Tensor) -> Tensor:
    """The rows of all blocks, in the given order."""
    return torch.cat(blocks)[order.to(blocks[0].device)]


class WatchedHost(Host):
    """An honest host whose messages colluding clients can read."""

    def __init__(self, *arguments: Any, observer: Observer):
        super().__init__(*arguments)
        self.observer = observer
        observer.introduce(self.wire_ids, self.keys)

    def leaving(self, exchange: ExchangeId, rows: Tensor, up: State, reference: State) -> State:
        changes = as_changes(up, reference)
        self.observer.see(exchange.version, exchange.part, self.wire_ids[rows], changes)
        return up


class MaliciousHost(Host):
    """A host of malicious clients only."""

    stacks = False  # an attack sees the one message sent to its clients

    def __init__(self, *arguments: Any, attack: Attack, observer: Observer | None = None):
        super().__init__(*arguments)
        self.attack = attack
        self.observer = observer  # None where the attack needs no honest message
        if observer is not None:
            observer.introduce(self.wire_ids, self.keys)
        self.gathers = attack.colludes

    def leaving(self, exchange: ExchangeId, rows: Tensor, up: State, reference: State) -> State:
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
            seen_ids, seen_rows = self.observer.seen(exchange.version, exchange.part)
            if len(seen_ids):
                honest = (seen_ids, seen_rows)
        common = {n: t for n, t in reference.items() if t.dim() == 1}
        changes = as_changes(up, reference)
        forged = tamper(self.attack, wire_ids, changes, *honest, common, keys_of)
        return {n: t + reference[n] if _is_own(n, reference) else t for n, t in forged.items()}


def as_changes(up: State, reference: State) -> State:
    """Models that started from rows of each client's own, as changes: attacks know no such rows."""
    return {n: t - reference[n] if _is_own(n, reference) else t for n, t in up.items()}


def _is_own(part: str, reference: State) -> bool:
    return part in reference and reference[part].dim() == 2
