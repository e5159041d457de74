"""The account of a run: bytes, numbers and gradients per client, and the fate of every message."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

COUNTS = ("bytes_up", "bytes_down", "values_up", "values_down", "gradients")


class LedgerError(RuntimeError):
    """The account of a round does not balance: a defect of the software, never of a message."""


@dataclass(frozen=True)
class RoundEntry:
    """One round: selected = admitted + rejected + missing.

    Every selected client is in exactly one of the three. Messages that decide no client's fate
    (from strangers, of another round or run, copies) are `surplus`.

    >>> RoundEntry(4, 10, 8, {"not finite": 1}, {"silent": 1}, {"stranger": 5}, 800).check()
    """

    round: int
    selected: int  # clients whose messages were asked for
    admitted: int  # clients whose messages counted
    rejected: dict[str, int] = field(default_factory=dict)  # reason -> clients
    missing: dict[str, int] = field(default_factory=dict)  # reason -> clients without a message
    surplus: dict[str, int] = field(default_factory=dict)  # reason -> messages
    bytes: int = 0  # of the messages that counted

    def and_then(self, later: RoundEntry) -> RoundEntry:
        """The account of two exchanges of one round: a client counts in each that it was asked in.

        >>> RoundEntry(0, 3, 2, {}, {"silent": 1}).and_then(RoundEntry(1, 2, 2)).selected
        5
        """
        fates = {
            name: dict(Counter(getattr(self, name)) + Counter(getattr(later, name)))
            for name in ("rejected", "missing", "surplus")
        }
        return RoundEntry(
            self.round,
            self.selected + later.selected,
            self.admitted + later.admitted,
            **fates,
            bytes=self.bytes + later.bytes,
        )

    def check(self) -> None:
        """Raise where clients are lost or counted twice."""
        accounted = self.admitted + sum(self.rejected.values()) + sum(self.missing.values())
        counts = (*self.rejected.values(), *self.missing.values(), *self.surplus.values())
        if accounted != self.selected or min(counts, default=0) < 0:
            raise LedgerError(f"the clients of this round do not add up: {self}")


@dataclass
class Ledger:
    """Totals per client, and what became of the messages that were asked for.

    Every count is a tensor [clients] whose index is the wire id. Bytes, gradients and what the
    method counts beside them (`more`) are int64; values are float64, for coded numbers count as
    fractions of 32-bit words. `enter` closes the
    account of a round and checks it: every selected client is admitted, rejected or missing, and
    the sum of admitted bytes is the byte counter.

    >>> ledger = Ledger(clients=3)
    >>> ledger.sent_down(torch.tensor([0, 2]), length=108, values=21)
    >>> ledger.sent_up(torch.tensor([2]), lengths=torch.tensor([50]), values=torch.tensor([10.5]))
    >>> ledger.enter(RoundEntry(0, selected=2, admitted=1, missing={"silent": 1}, bytes=50))
    >>> ledger.counts["bytes_down"].tolist(), ledger.bytes, ledger.missing["silent"]
    ([108, 0, 108], 266, 1)
    """

    clients: int
    counts: dict[str, Tensor] = field(default_factory=dict)
    selected: int = 0
    admitted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)  # reason -> clients
    missing: Counter[str] = field(default_factory=Counter)  # reason -> clients
    surplus: Counter[str] = field(default_factory=Counter)  # reason -> messages
    bytes_admitted: int = 0
    last: RoundEntry | None = None  # the newest round
    more: tuple[str, ...] = ()  # names of what the method counts

    def __post_init__(self) -> None:
        for name in (*COUNTS, *sorted(self.more)):
            dtype = torch.float64 if name.startswith("values") else torch.int64
            self.counts[name] = self.counts.get(name, torch.zeros(self.clients)).to(dtype)

    def grow(self, clients: int) -> None:
        """More clients have enrolled, `clients` in all: the new ones have spent nothing yet."""
        if clients < self.clients:
            raise ValueError(
                f"clients must be at least {self.clients}, as in the ledger, got {clients}"
            )
        for name, counts in self.counts.items():
            self.counts[name] = torch.cat([counts, counts.new_zeros(clients - self.clients)])
        self.clients = clients

    def sent_down(self, wire_ids: Tensor, length: int, values: float) -> None:
        """Each of these clients was sent a message of this size."""
        self.counts["bytes_down"][wire_ids] += length
        self.counts["values_down"][wire_ids] += values

    def sent_up(self, wire_ids: Tensor, lengths: Tensor, values: Tensor) -> None:
        """These clients sent messages of these sizes."""
        self.counts["bytes_up"][wire_ids] += lengths
        self.counts["values_up"][wire_ids] += values

    def prepared(self, wire_ids: Tensor, up: Tensor, down: int) -> None:
        """Before round 0 these clients agreed on how their data are read; bytes both ways.

        As numbers they count as 32-bit words. No message of a round is among them.
        """
        self.sent_up(wire_ids, up, up / 4)
        self.sent_down(wire_ids, down, down / 4)
        self.bytes_admitted += int(up.sum())

    def answered(self, wire_ids: Tensor, length: int, values: int) -> None:
        """Before a round these clients answered a question with a message of this size each."""
        lengths = torch.full((len(wire_ids),), length)
        self.sent_up(wire_ids, lengths, torch.full((len(wire_ids),), float(values)))
        self.bytes_admitted += int(lengths.sum())

    def summed(self, wire_ids: Tensor, up: Tensor, down: Tensor) -> None:
        """Bytes of these clients for a secure sum, beside their messages; they are no numbers."""
        self.counts["bytes_up"][wire_ids] += up
        self.counts["bytes_down"][wire_ids] += down
        self.bytes_admitted += int(up.sum())

    def add_gradients(self, wire_ids: Tensor, counts: Tensor) -> None:
        """Count the gradients that these clients evaluated."""
        self.counts["gradients"][wire_ids] += counts

    def add_counted(self, wire_ids: Tensor, counts: Tensor, name: str) -> None:
        """These clients counted so much of one of `more`."""
        self.counts[name][wire_ids] += counts

    def enter(self, entry: RoundEntry, continues: bool = False) -> None:
        """The end of a round; raises where the account does not balance.

        One with several exchanges has an entry for each: `continues` after the first.
        """
        entry.check()
        self.selected += entry.selected
        self.admitted += entry.admitted
        self.rejected.update(entry.rejected)
        self.missing.update(entry.missing)
        self.surplus.update(entry.surplus)
        self.bytes_admitted += entry.bytes
        self.last = self.last.and_then(entry) if continues and self.last else entry
        if self.bytes_admitted != self.total("bytes_up"):
            raise LedgerError(
                f"{self.total('bytes_up')} bytes are booked to clients, "
                f"{self.bytes_admitted} were admitted, after {entry}"
            )

    @property
    def refused(self) -> dict[str, int]:
        """Messages that did not count, by reason: those of selected clients and all others."""
        return dict(self.rejected + self.surplus)

    def total(self, *names: str) -> int:
        """The sum of some counts over all clients."""
        return sum(int(self.counts[n].sum()) for n in names)

    @property
    def bytes(self) -> int:
        """Bytes of all clients in both directions."""
        return self.total("bytes_up", "bytes_down")

    def save(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """(tensors, facts) for a checkpoint."""
        return dict(self.counts), {
            "selected": self.selected,
            "admitted": self.admitted,
            "rejected": dict(self.rejected),
            "missing": dict(self.missing),
            "surplus": dict(self.surplus),
        }

    @classmethod
    def load(
        cls, tensors: dict[str, Tensor], facts: dict[str, Any], more: tuple[str, ...] = ()
    ) -> Ledger:
        """The inverse of `save`."""
        counts = {name: tensors[name] for name in (*COUNTS, *more)}
        return cls(
            len(counts["gradients"]),
            counts,
            selected=facts["selected"],
            admitted=facts["admitted"],
            rejected=Counter(facts["rejected"]),
            missing=Counter(facts["missing"]),
            surplus=Counter(facts["surplus"]),
            bytes_admitted=int(counts["bytes_up"].sum()),
            more=more,
        )
