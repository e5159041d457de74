"""A round under way: what was asked for, what has arrived, and the rule that combines it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ..core.types import State
from ..wire.admission import Admitted, Inbox
from .contract import Contract
from .exchange import Order
from .rules import Rule
from .rules.message import combine_message


@dataclass
class Round:
    """A round under way."""

    order: Order
    inbox: Inbox
    # as the roster was when the round was opened: joining and leaving count from the next one on
    clients: int  # how many may take part
    mean_samples: float  # training samples of the mean one of them
    # the second exchange of a channel that has one: part of the message -> ...
    asked: bool = False  # whether `Server.ask` has been called
    queries: dict[str, Tensor] = field(default_factory=dict)  # coordinates asked for
    answers: dict[str, Inbox] = field(default_factory=dict)
    rule_state: State = field(default_factory=dict)  # what the rule keeps after combining sketches
    closed: bool = False

    @property
    def version(self) -> int:
        """The version of the model that the round started from."""
        return self.order.version

    def samples(self, got: Admitted, counts: Tensor | None = None) -> Tensor:  # -> float64[S]
        """Training samples of the clients heard, over the mean client's: m n_i / N."""
        every = counts is None or bool(counts.all())
        return (got.weights if every else got.weights[counts]) / self.mean_samples


@dataclass
class RoundRule:
    """The aggregation rule for the messages of one round, as `Method.aggregate` is given it."""

    contract: Contract
    rule: Rule
    samples: Tensor  # float64[S], over the mean client's
    clients: int
    key: int
    state: State  # what the rule keeps; {} = no history

    def __call__(self, up: State, weights: Tensor | None = None) -> State:
        if weights is None:
            weights = self.contract.method.weigh(self.samples)
        rows, self.state = combine_message(self.rule, up, weights, key=self.key, state=self.state)
        return rows
