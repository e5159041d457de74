"""The account of a run: bytes, numbers and gradients, by client and direction, and the fate of every message."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch
from torch import Tensor

COUNTS = ("bytes_up", "bytes_down", "values_up", "values_down", "gradients")


@dataclass
class Ledger:
    """Totals for each client (int64[N]) and, for the whole run, what became of the messages asked for.

    In every round: selected = admitted + rejected; the sum of admitted bytes is the byte counter.
    """

    clients: int
    counts: dict[str, Tensor] = field(default_factory=dict)
    selected: int = 0
    admitted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for name in COUNTS:
            kind = (
                torch.float64 if name.startswith("values") else torch.int64
            )  # coded numbers count as fractions of 32-bit words
            self.counts[name] = self.counts.get(name, torch.zeros(self.clients)).to(kind)

    def sent_down(self, clients: Tensor, bytes: int, values: float) -> None:
        self.counts["bytes_down"][clients] += bytes
        self.counts["values_down"][clients] += values

    def sent_up(self, clients: Tensor, bytes: Tensor, values: Tensor) -> None:
        self.counts["bytes_up"][clients] += bytes
        self.counts["values_up"][clients] += values

    def total(self, *names: str) -> int:
        return sum(int(self.counts[n].sum()) for n in names)

    @property
    def bytes(self) -> int:
        return self.total("bytes_up", "bytes_down")

    def save(self) -> tuple[dict[str, Tensor], dict]:
        return dict(self.counts), {
            "selected": self.selected,
            "admitted": self.admitted,
            "rejected": dict(self.rejected),
        }

    @classmethod
    def load(cls, tensors: dict[str, Tensor], facts: dict) -> Ledger:
        counts = {name: tensors[name] for name in COUNTS}
        return cls(
            len(counts["gradients"]),
            counts,
            facts["selected"],
            facts["admitted"],
            Counter(facts["rejected"]),
        )
