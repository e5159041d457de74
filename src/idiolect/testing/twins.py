"""Hosts beside twins: the same clients with other private data.

Where those data must not matter, twins must send the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.store import Store
from ..data.federation import SPLITS, Federation
from ..host.host import Host
from ..run.session import Session
from ..server.protocol import HostUpdate, Query, RoundRequest
from ..wire import messages as wire
from ..wire.ragged import Ragged


@dataclass
class Twin:
    """A host of the same clients with other data: only the messages of `changed` may differ."""

    what: str  # that differs, for the error
    host: Host
    changed: Tensor  # int64: wire ids of the clients whose private rows differ too

    @classmethod
    def of(cls, host: Host, data: Federation, what: str, changed: Tensor) -> Twin:
        """The twin of a host in another federation of the same clients."""
        own = data.of(host.wire_ids)
        return cls(what, Host(host.contract, own, host.wire_ids, host.settings), changed)

    def follow(self, host: Host) -> None:
        """Private rows as they are at `host` now, but for those of the changed clients."""
        rows = self.host.rows(self.changed)
        for mine, theirs in ((self.host.store, host.store), (self.host.coder, host.coder)):
            theirs.read(torch.arange(theirs.clients))  # rows of clients never met are made now
            mine.load({name: t.clone() for name, t in theirs.save().items()})
            other_rows(mine, rows)


class TwinnedHost:
    """Hands out what a host does, where its twins hand out the same; AssertionError otherwise."""

    def __init__(self, host: Host, twins: Sequence[Twin] = ()):
        self.host = host
        self.twins = twins
        self.sent: list[bytes] = []  # every message and answer that has left

    def update(self, order: RoundRequest) -> HostUpdate:
        for twin in self.twins:
            twin.follow(self.host)
        update = self.host.update(order)
        self.sent += _strings(update.messages)
        for twin in self.twins:
            other = twin.host.update(order)
            of_senders = _unchanged(update.messages, twin)
            of_trained = torch.isin(update.trained, twin.changed, invert=True)
            mine, theirs = (
                {
                    "messages": _strings(one.messages[of_senders]),
                    "values": one.values[of_senders].tobytes(),
                    "gradients": one.gradients[of_trained].tolist(),
                }
                for one in (update, other)
            )
            for name, column in mine.items():
                assert column == theirs[name], f"{name} depend on {twin.what}"
        return update

    def updates(self, order: RoundRequest) -> Iterator[HostUpdate]:
        yield self.update(order)

    def answer(self, query: Query) -> np.ndarray:
        answer = self.host.answer(query)
        self.sent += [row.tobytes() for row in answer]
        for twin in self.twins:
            unchanged = _unchanged(Ragged.even(answer), twin)
            other = twin.host.answer(query)
            same = np.array_equal(answer[unchanged], other[unchanged])
            assert same, f"answers depend on {twin.what}"
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.host, name)


def twins_of(session: Session, host: Host, data: Federation) -> list[Twin]:
    """The twins of a host: one with other test data, one whose first client is another.

    The latter's data, private row and what the channel keeps at it differ; then all others must
    send the same. Malicious clients send what they like: their host has no twin.
    """
    if bool(torch.isin(host.wire_ids, session.people.malicious).any()):
        return []
    first = host.wire_ids[:1]
    others = other_data(data, SPLITS, int(first))
    return [
        Twin.of(host, other_data(data, ("test",)), "test data", first[:0]),
        Twin.of(host, others, "what is another client's", first),
    ]


def other_data(data: Federation, splits: tuple[str, ...], client: int | None = None) -> Federation:
    """The same federation with other samples on these splits, of one client or of all."""
    inputs = data.inputs.clone()
    targets = data.targets.clone()
    for split in splits:
        ends = data.offsets[split] if client is None else data.offsets[split][client : client + 2]
        part = slice(int(ends[0]), int(ends[-1]))
        inputs[part] = 1 - inputs[part]
        targets[part] = (targets[part] + 1) % data.classes
    return replace(data, inputs=inputs, targets=targets)


def other_rows(store: Store, rows: Tensor, names: Sequence[str] | None = None) -> None:
    """Replace the numbers of some rows (of the parts `names`, or of all) by others near them."""
    if not len(rows):
        return
    saved = {name: t.clone() for name, t in store.save().items()}
    for name, t in saved.items():
        part = name.removeprefix("rows.")
        if part != name and t.is_floating_point() and (names is None or part in names):
            t[rows] += 0.01 * torch.linspace(-1, 1, t[rows].numel(), dtype=t.dtype).view_as(t[rows])
    store.load(saved)


def _strings(messages: Ragged) -> list[bytes]:
    return [messages.row(k) for k in range(len(messages))]


def _unchanged(messages: Ragged, twin: Twin) -> np.ndarray:  # -> bool[S]
    """Which of these messages must be the same at the twin."""
    if not len(messages):
        return np.zeros(0, dtype=bool)
    senders = wire.header(messages.matrix)["client"].astype(np.int64)
    return ~np.isin(senders, twin.changed.numpy())
