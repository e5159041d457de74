"""Messages that are summed as they arrive, where a cohort does not fit in memory.

With the mean as the rule, a server needs no more of a round's messages than their weighted sum. So
a cohort of any size takes a few vectors of memory. Other rules (median, Krum, ...) must see all
messages at once; `StreamingMean.plan` says so before a run starts.

`Method.aggregate` is the same in both cases. It is called with every batch of messages, while the
rule it is given adds them up, and once more at the end, when the rule gives the mean of all.
Sums are kept in float64. They depend on the order of arrival in their last bits, which no other
result of this software does: the same engine with the same hosts gives the same bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.types import State
from .protocol import Contract
from .rules import Rule


@dataclass(frozen=True)
class StreamingPlan:
    """Whether a server sums messages as they arrive, and why not where it should."""

    cohort: int  # bytes of the messages of one round, as numbers
    streams: bool = False
    reason: str = ""  # why they must all be held, although they exceed the memory

    @classmethod
    def of(
        cls, contract: Contract, rule: Rule, sample: int, memory: int, private: bool = False
    ) -> StreamingPlan:
        """For `sample` messages per round and `memory` bytes."""
        numbers = sum(form.n for form in contract.link.parts.values())
        cohort = sample * numbers * contract.task.dtype.itemsize
        if contract.sums is not None:
            cohort = sample * numbers * 8  # whole numbers of 64 bits
        if cohort <= memory:
            return cls(cohort)
        reason = ""
        if private:
            reason = "the server clips each message before it adds noise to their sum"
        elif contract.sums is not None:
            reason = "secure sums are opened at the end of a round"
        elif not rule.streams:
            reason = f"the rule {rule.name!r} compares all messages of a round"
        elif not contract.method.traits.can_stream:
            reason = "this method's server step needs all messages of a round"
        elif contract.keeps_rows:
            reason = "this method's server keeps something for every client"
        elif contract.link.kept("memory"):
            reason = "this channel remembers the last message of every client at the server"
        elif contract.link.aggregate_stage is not None and contract.link.exact:
            reason = "a part of the messages goes around the channel"
        return cls(cohort, not reason, reason)


@dataclass
class WeightedSums:
    """The weighted sums of one call of the rule, over all batches so far."""

    rows: State = field(default_factory=dict)  # float64[m] each
    weight: float = 0.0

    def add(self, up: State, weights: Tensor) -> None:
        """The rows of a batch."""
        self.weight += float(weights.sum())
        for name, rows in up.items():
            part = weights.to(rows.dtype) @ rows
            if name in self.rows:
                self.rows[name] += part
            else:
                self.rows[name] = part.double()

    def mean(self, like: State) -> State:
        """What the rule gives in the end."""
        return {n: (self.rows[n] / self.weight).to(t.dtype) for n, t in like.items()}


@dataclass
class StreamingMean:
    """The rule as `Method.aggregate` is given it: first it collects, then it tells."""

    contract: Contract
    rule: Rule
    clients: int
    own_weights: bool = False  # `samples` are weights of the clients' own
    samples: Tensor = field(default_factory=lambda: torch.zeros(0))  # of the batch
    heard: int = 0  # clients so far
    weight: float = 0.0  # theirs
    state: State = field(default_factory=dict)  # a mean keeps nothing
    # nobody's: a sum does not show whose messages it is made of
    wire_ids: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    collecting: bool = True
    _sums: list[WeightedSums] = field(
        default_factory=list
    )  # one per call of the rule within a step
    _call: int = 0

    def batch(self, samples: Tensor) -> StreamingMean:
        """The rule for the next batch of messages."""
        self.samples = samples
        self.heard += len(samples)
        self.weight += float(samples.sum()) if self.own_weights else len(samples)
        self._call = 0
        return self

    def end(self) -> StreamingMean:
        """The rule for one row that stands for all messages."""
        self.collecting = False
        self.samples = torch.ones(1, dtype=torch.float64, device=self.samples.device)
        self._call = 0
        return self

    def among(self, selection: Tensor) -> StreamingMean:
        raise RuntimeError("rule.among: messages that are summed as they arrive have no groups")

    def __call__(self, up: State, weights: Tensor | None = None) -> State:
        if weights is None:
            method = self.contract.method
            weights = self.samples if self.own_weights else method.weigh(self.samples)
        weights = self.rule.sum_weights(weights)
        if self._call == len(self._sums):
            self._sums.append(WeightedSums())
        sums = self._sums[self._call]
        self._call += 1
        if not self.collecting:
            return sums.mean(up)
        sums.add(up, weights)
        return {n: rows[0] for n, rows in up.items()}  # of the right shape; nobody looks at it


def largest_number(dtype: torch.dtype) -> float:
    """The largest number that a summed message may hold.

    Its square must be finite, for optimisers square. A sum does not show who sent what.
    """
    return math.sqrt(torch.finfo(dtype).max) / 4
