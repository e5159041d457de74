"""The account of a run: bytes, numbers and gradients per client, and the fate of every message."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

COUNTS = ("bytes_up", "bytes_down", "values_up", "values_down", "gradients")


@dataclass
class Ledger:
    """Totals per client, and for the whole run what became of the messages that were asked for.

    Every count is a tensor [clients] whose index is the wire id. Bytes and gradients are int64;
    values are float64, for coded numbers count as fractions of 32-bit words. In every round
    selected = admitted + rejected, where a selected client that no message accounts for is rejected
    as "missing", and messages beyond those asked for are rejected on top. The sum of admitted bytes
    is the byte counter.

    >>> ledger = Ledger(clients=3)
    >>> ledger.sent_down(torch.tensor([0, 2]), bytes=108, values=21)
    >>> ledger.counts["bytes_down"].tolist(), ledger.bytes
    ([108, 0, 108], 216)
    """

    clients: int
    counts: dict[str, Tensor] = field(default_factory=dict)
    selected: int = 0
    admitted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for name in COUNTS:
            dtype = torch.float64 if name.startswith("values") else torch.int64
            self.counts[name] = self.counts.get(name, torch.zeros(self.clients)).to(dtype)

    def grow(self, clients: int) -> None:
        """More clients have enrolled, `clients` in all: the new ones have spent nothing yet."""
        if clients < self.clients:
            raise ValueError(f"clients: {clients} is not accepted; the ledger has {self.clients}")
        for name, counts in self.counts.items():
            self.counts[name] = torch.cat([counts, counts.new_zeros(clients - self.clients)])
        self.clients = clients

    def sent_down(self, wire_ids: Tensor, bytes: int, values: float) -> None:
        """Each of these clients was sent a message of this size."""
        self.counts["bytes_down"][wire_ids] += bytes
        self.counts["values_down"][wire_ids] += values

    def sent_up(self, wire_ids: Tensor, bytes: Tensor, values: Tensor) -> None:
        """These clients sent messages of these sizes."""
        self.counts["bytes_up"][wire_ids] += bytes
        self.counts["values_up"][wire_ids] += values

    def add_gradients(self, wire_ids: Tensor, counts: Tensor) -> None:
        """These clients evaluated so many gradients."""
        self.counts["gradients"][wire_ids] += counts

    def total(self, *names: str) -> int:
        """The sum of some counts over all clients."""
        return sum(int(self.counts[n].sum()) for n in names)

    @property
    def bytes(self) -> int:
        """Bytes of all clients in both directions."""
        return self.total("bytes_up", "bytes_down")

    def save(self) -> tuple[dict[str, Tensor], dict]:
        """(tensors, facts) for a checkpoint."""
        return dict(self.counts), {
            "selected": self.selected,
            "admitted": self.admitted,
            "rejected": dict(self.rejected),
        }

    @classmethod
    def load(cls, tensors: dict[str, Tensor], facts: dict) -> Ledger:
        """The inverse of `save`."""
        counts = {name: tensors[name] for name in COUNTS}
        return cls(
            len(counts["gradients"]),
            counts,
            facts["selected"],
            facts["admitted"],
            Counter(facts["rejected"]),
        )
