"""A round under way: what was asked for, what has arrived, and the rule that combines it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ..core.types import State
from ..wire.admission import FATES, Admitted, Inbox
from ..wire.ledger import RoundEntry
from ..wire.messages import magnitudes
from .contract import Contract
from .exchange import Order
from .rules import Rule
from .rules.message import combine_message
from .stream import Stream

# why no message came, as far as the engine knows; the last three of hosts of other owners
MISSING = ("silent", "timed out", "crashed", "refused", "failed", "malformed")


@dataclass(frozen=True)
class Outcome:
    """What a round makes of the server's vectors: the method's, the channel's and the rule's."""

    state: State
    channel: State
    rule: State
    taken: dict[str, bytes] = field(default_factory=dict)  # coordinates, after a second exchange

    def finite(self) -> bool:
        """Whether the server could live with it."""
        vectors = (*self.state.values(), *self.channel.values(), *self.rule.values())
        return all(bool(torch.isfinite(t).all()) for t in vectors if t.is_floating_point())


@dataclass
class SecondExchange:
    """A channel's second exchange: what is asked of whom, and what has been answered.

    All or nothing: a client that does not answer has no part in what is asked either. Then the
    others are asked again, unless without it the question is the same.
    """

    got: Admitted  # those whose sketches made the queries
    queries: dict[str, Tensor]  # part of the message -> coordinates asked for
    answers: dict[str, Inbox]  # part of the message -> what has arrived
    rule_state: State  # what the rule keeps after combining the sketches
    spent: Tensor  # int64[S of got]: bytes of answers to earlier queries of this round
    asked: int = 1  # how often the clients were asked
    outcome: Outcome | None = None  # what the server becomes, once all have answered

    def unanswered(self) -> Tensor:  # -> bool[S of got]
        """Who has not answered every query."""
        silent = torch.zeros(len(self.got.wire_ids), dtype=torch.bool)
        for inbox in self.answers.values():
            silent |= ~torch.isin(self.got.wire_ids, inbox.admitted().wire_ids)
        return silent

    def magnitudes(self, wire_ids: Tensor) -> Tensor:  # -> float64, in their order
        """The largest number in the answers of these clients, who have all answered."""
        total = torch.zeros(len(wire_ids), dtype=torch.float64)
        for inbox in self.answers.values():
            answers = inbox.admitted()
            mine = torch.isin(answers.wire_ids, wire_ids)
            total = total.maximum(magnitudes(answers.up)[mine])
        return total

    def bytes_of(self, wire_ids: Tensor) -> Tensor:  # -> int64, in their order
        """What the answers of these clients took."""
        total = self.spent[torch.isin(self.got.wire_ids, wire_ids)].clone()
        for inbox in self.answers.values():
            answers = inbox.admitted()
            total += torch.from_numpy(answers.bytes)[torch.isin(answers.wire_ids, wire_ids)]
        return total


@dataclass
class Round:
    """A round under way."""

    order: Order
    inbox: Inbox
    # as the roster was when the round was opened: joining and leaving count from the next one on
    clients: int  # how many may take part
    mean_samples: float  # the training samples (or weight) of the mean one of them
    stream: Stream | None = None  # where messages are summed as they arrive
    second: SecondExchange | None = None
    asked: bool = False  # whether `Server.ask` has been called
    dropped: dict[str, Tensor] = field(default_factory=dict)  # reason -> wire ids admitted before
    excuses: dict[str, Tensor] = field(default_factory=dict)  # why a message is missing -> wire ids
    closed: bool = False

    @property
    def version(self) -> int:
        """The version of the model that the round started from."""
        return self.order.version

    def samples(self, got: Admitted) -> Tensor:  # -> float64[S]
        """Training samples of the clients heard, over the mean client's: m n_i / N.

        Or their weights as enrolled: m p_i.
        """
        return got.weights / self.mean_samples

    def drop(self, wire_ids: Tensor, reason: str) -> None:
        """Clients whose messages were sound and do not count all the same."""
        if len(wire_ids):
            earlier = self.dropped.get(reason, wire_ids[:0])
            self.dropped[reason] = torch.cat([earlier, wire_ids])

    def entry(self, counted: Tensor, surplus: dict[str, int], bytes: int) -> RoundEntry:
        """The account of the round, from the fate of every client that was asked."""
        got = self.inbox.admitted()
        expected = self.order.heard.sort().values
        fate = np.array(FATES, dtype=object)[got.fates]
        for reason, wire_ids in self.dropped.items():
            fate[torch.isin(expected, wire_ids).numpy()] = reason
        fate[torch.isin(expected, counted).numpy()] = "counted"
        rejected = Counter(fate.tolist())
        admitted = rejected.pop("counted", 0)
        missing = Counter({"silent": rejected.pop("missing", 0)})
        absent = expected[torch.from_numpy(fate == "missing")]
        for reason, wire_ids in self.excuses.items():
            excused = int(torch.isin(absent, wire_ids).sum())
            missing[reason] += excused
            missing["silent"] -= excused
        surplus = dict(Counter(got.surplus) + Counter(surplus))
        return RoundEntry(
            self.version, len(expected), admitted, dict(rejected), dict(+missing), surplus, bytes
        )


@dataclass
class RoundRule:
    """The aggregation rule for the messages of one round, as `Method.aggregate` is given it."""

    contract: Contract
    rule: Rule
    samples: Tensor  # float64[S], over the mean client's
    heard: int
    clients: int
    key: int
    state: State  # what the rule keeps; {} = no history

    def __call__(self, up: State, weights: Tensor | None = None) -> State:
        if weights is None:
            weights = self.contract.method.weigh(self.samples)
        rows, self.state = combine_message(self.rule, up, weights, key=self.key, state=self.state)
        return rows
