"""A round under way: what was asked for, what has arrived, and the rule that combines it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import Factors, SettingError
from ..core.types import State, prefixed, under
from ..wire.admission import FATES, AdmittedMessages, Inbox
from ..wire.ledger import RoundEntry
from ..wire.messages import HEADER, DownMessage, magnitudes, pack_down, unpack
from .private_mean import PrivateMean
from .protocol import Contract, RoundRequest
from .rules import Rule, TooFew
from .rules.rule import combine_message
from .step import ServerStep
from .streaming_mean import StreamingMean
from .sum_link import SumLink

# wire ids of some clients -> what coded changes of theirs are changes of, as vectors or rows
References = Callable[[Tensor], State]

# why no message came, as far as the engine knows; the last three of hosts of other owners
MISSING = ("silent", "timed out", "crashed", "refused", "failed", "malformed")


@dataclass(frozen=True)
class Outcome:
    """What a round makes of the server's vectors: the method's, the channel's and the rule's."""

    state: State
    channel: State
    rule: State
    taken: dict[str, bytes] = field(default_factory=dict)  # coordinates, after a second exchange
    # rows that the method keeps for clients: before a round those of all; after it those that it
    # has changed, of all or of the clients heard
    rows: State = field(default_factory=dict)
    clip: float | None = None  # the clipping norm of the next round, where the mean is private

    def finite(self) -> bool:
        """Whether the server could live with it."""
        states = (self.state, self.channel, self.rule, self.rows)
        vectors = [t for state in states for t in state.values()]
        return all(bool(torch.isfinite(t).all()) for t in vectors if t.is_floating_point())


@dataclass
class SecondExchange:
    """A channel's second exchange: what is asked of whom, and what has been answered.

    All or nothing: a client that does not answer has no part in what is asked either. Then the
    others are asked again, unless without it the question is the same.
    """

    got: AdmittedMessages  # those whose sketches made the queries
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

    order: RoundRequest
    inbox: Inbox
    # as the roster was when the round was opened: joining and leaving count from the next one on
    clients: int  # how many may take part
    mean_samples: float  # the training samples (or weight) of the mean one of them
    stream: StreamingMean | None = None  # where messages are summed as they arrive
    second: SecondExchange | None = None
    asked: bool = False  # whether `Server.ask` has been called
    dropped: dict[str, Tensor] = field(default_factory=dict)  # reason -> wire ids admitted before
    excuses: dict[str, Tensor] = field(default_factory=dict)  # why a message is missing -> wire ids
    # of a secure sum between sites: the sum of the masks on these clients' messages, uint64[m]
    masks: np.ndarray | None = None
    summed: Tensor | None = None  # int64; None: messages have no masks
    unopened: bool = False  # a secure sum that could not be opened
    closed: bool = False

    @property
    def version(self) -> int:
        """The version of the model that the round started from."""
        return self.order.version

    def samples(self, got: AdmittedMessages) -> Tensor:  # -> float64[S]
        """Training samples of the clients heard, over the mean client's: m n_i / N.

        Or their weights as enrolled: m p_i.
        """
        return got.weights / self.mean_samples

    def drop(self, wire_ids: Tensor, reason: str) -> None:
        """Clients whose messages were sound and do not count all the same."""
        if len(wire_ids):
            earlier = self.dropped.get(reason, wire_ids[:0])
            self.dropped[reason] = torch.cat([earlier, wire_ids])

    def entry(self, counted: Tensor, surplus: dict[str, int], up_bytes: int) -> RoundEntry:
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
            self.version, len(expected), admitted, dict(rejected), dict(+missing), surplus, up_bytes
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
    weight: float  # of all that were heard
    wire_ids: Tensor  # int64[S]: whose messages they are
    own_weights: bool = False  # `samples` are weights of the clients' own

    def __call__(self, up: State, weights: Tensor | None = None) -> State:
        if weights is None:
            method = self.contract.method
            weights = self.samples if self.own_weights else method.weigh(self.samples)
        rows, self.state = combine_message(self.rule, up, weights, key=self.key, state=self.state)
        return rows

    def among(self, selection: Tensor) -> RoundRule:
        """The rule for some of the clients heard (bool[S])."""
        if self.state:
            raise SettingError(
                f"rule must keep no history for a method that combines clients in groups, "
                f"got {self.rule.name!r}"
            )
        samples = self.samples[selection.to(self.samples.device)]
        count = len(samples)
        weight = float(samples.sum()) if self.own_weights else float(count)
        wire_ids = self.wire_ids[selection.cpu()]
        return replace(self, samples=samples, heard=count, weight=weight, wire_ids=wire_ids)


class Overflow(ArithmeticError):
    """The messages would leave the server with numbers that are not finite."""


@dataclass(frozen=True)
class Aggregation:
    """How messages are combined, from the server's vectors before the round."""

    contract: Contract
    rule: Rule
    step: ServerStep
    before: Outcome
    streams: bool = False  # see server/streaming_mean.py
    own_weights: bool = False  # clients have weights of their own (Roster.weights)
    private: PrivateMean | None = None  # in place of the rule: the server adds noise

    def __call__(self, current_round: Round, got: AdmittedMessages) -> Outcome:
        """The server after these messages.

        Raises `TooFew` where they are too few for the rule, and `Overflow`.
        """
        contract = self.contract
        link = contract.link
        method = contract.method.scaled(current_round.order.factors)
        state = self._method_state()
        channel = self.before.channel
        coordinates: dict[str, bytes] = {}
        clip: float | None = None
        combine: RoundRule | StreamingMean
        if self.private is not None:
            known = self.reference(current_round.order.factors)
            asked = len(current_round.order.heard)
            up, clip = self.private(self._on_device(got.up), known, current_round.version, asked)
            combine = self._of_private_mean(current_round)
        elif current_round.stream is not None:
            up = self._on_device({n: t.new_zeros(1, t.shape[1]) for n, t in got.up.items()})
            combine = current_round.stream.end()
        elif isinstance(link, SumLink):
            known = self.reference(current_round.order.factors)
            up = self._on_device(link.mean(got.up, current_round.masks, known))
            combine = self._combine(current_round, got, self.before.rule, one_row=True)
        elif link.aggregate_stage is None:
            up = self._on_device(got.up)
            combine = self._combine(current_round, got, self.before.rule)
        else:
            up, channel, rule_state, coordinates = self._changes(current_round, got)
            up = link.restore(up, self.reference(current_round.order.factors))
            combine = self._combine(current_round, got, {}, one_row=self.streams)
        after = method.aggregate(contract.task, state, up, combine)
        if link.aggregate_stage is None:
            rule_state = combine.state
        rows = {n: t for n, t in after.items() if n in self.before.rows}
        after = {n: t for n, t in after.items() if n not in rows}
        # the server's optimiser steps once per round, at its end
        step = (
            self.step.scaled(current_round.order.factors) if contract.ends_round else ServerStep()
        )
        stepped = step(self.before.state, after, method.traits.shared_name)
        rows = {n: t for n, t in rows.items() if t is not self.before.rows[n]}
        outcome = Outcome(stepped, channel, rule_state, coordinates, rows, clip)
        if not outcome.finite():
            raise Overflow
        return outcome

    def collect(self, current_round: Round, rows: State, samples: Tensor) -> None:
        """Add messages to the round's sums: float64[S], training samples of their clients."""
        assert current_round.stream is not None
        contract = self.contract
        method = contract.method.scaled(current_round.order.factors)
        up = self._on_device(rows)
        combine = current_round.stream.batch(samples.to(contract.task.device))
        method.aggregate(contract.task, self._method_state(), up, combine)

    def _method_state(self) -> State:
        """The server's state before the round as the method knows it."""
        return self.step.method_state(self.before.state) | self.before.rows

    def reference(self, factors: Factors) -> State:
        """What the coded parts of a message are changes of, where all clients are sent the same."""
        contract = self.contract
        method = contract.method.scaled(factors)
        down = method.broadcast(contract.task, self._method_state())
        return method.reference(contract.task, down)

    def references(self, factors: Factors, down: DownMessage) -> References:
        """The same by client, with what each of them was sent by itself, to the last bit."""
        contract = self.contract
        method = contract.method.scaled(factors)
        common = method.broadcast(contract.task, self._method_state())
        if not contract.addresses:
            vectors = method.reference(contract.task, common)
            return lambda wire_ids: vectors

        def known_to(wire_ids: Tensor) -> State:
            rows = unpack(contract.addressed, down.only(wire_ids).own[:, HEADER.itemsize :])
            return contract.reference(method, common | self._on_device(rows))

        return known_to

    def _changes(
        self, current_round: Round, got: AdmittedMessages
    ) -> tuple[State, State, State, dict[str, bytes]]:
        """Sketches: aggregated first, then decoded.

        (messages as if every client had sent the change, the channel's vectors, the rule's, and the
        coordinates taken in a second exchange).
        """
        link = self.contract.link
        stage = link.aggregate_stage
        assert stage is not None
        channel = dict(self.before.channel)
        coordinates: dict[str, bytes] = {}
        second = current_round.second
        if second is None:
            tables, rule_state = self.sketches(current_round, got)
        else:
            rule_state = second.rule_state
        rows = self._on_device(got.up)
        for part, prefix, form in link.aggregate_parts(current_round.version):
            state = under(channel, prefix)
            if second is None:
                change, state = stage.finish(tables[part], state, form)
            else:
                exact = self._exact(current_round, part, got)
                query = second.queries[part].to(exact.device)
                change, places, state = stage.conclude(query, exact, state, form)
                coordinates[part] = self.pack({"chosen": places.int().cpu()}, current_round.version)
            channel |= prefixed(state, prefix)
            rows = rows | {part: change.expand(1 if self.streams else len(got.wire_ids), -1)}
        return rows, channel, rule_state, coordinates

    def sketches(self, current_round: Round, got: AdmittedMessages) -> tuple[State, State]:
        """The aggregate of the sketches, by part of the message, and the rule's vectors."""
        combine = self._combine(current_round, got, self.before.rule)
        parts = self.contract.link.aggregate_parts(current_round.version)
        tables = combine(self._on_device({part: got.up[part] for part, _, _ in parts}))
        return tables, combine.state

    def query(self, current_round: Round, tables: State) -> dict[str, Tensor]:  # -> int64 each
        """The coordinates whose exact values are asked for, by part of the message."""
        stage = self.contract.link.aggregate_stage
        assert stage is not None
        parts = self.contract.link.aggregate_parts(current_round.version)
        channel = self.before.channel
        return {n: stage.query(tables[n], under(channel, prefix), f) for n, prefix, f in parts}

    def _exact(self, current_round: Round, part: str, got: AdmittedMessages) -> Tensor:
        """The aggregate of the answers to a query."""
        assert current_round.second is not None
        answers = current_round.second.answers[part].admitted()
        mask = torch.isin(answers.wire_ids, got.wire_ids)
        values = self._on_device({"values": answers.up["values"][mask]})
        return self._combine(current_round, got, {})(values)["values"]

    def _combine(
        self, current_round: Round, got: AdmittedMessages, state: State, one_row: bool = False
    ) -> RoundRule:
        """The rule for these messages; with `one_row` for one that stands for them all."""
        task = self.contract.task
        key = int(streams.keys(task.seed, "rule", current_round.version)[0])
        samples = current_round.samples(got).to(task.device)
        clients_heard = len(samples)
        weight = float(samples.sum()) if self.own_weights else float(clients_heard)
        if one_row:
            samples = samples.mean(dim=0, keepdim=True)
        return RoundRule(
            self.contract,
            self.rule,
            samples,
            clients_heard,
            current_round.clients,
            key,
            state,
            weight,
            got.wire_ids,
            self.own_weights,
        )

    def _of_private_mean(self, current_round: Round) -> RoundRule:
        """The rule for one row that stands for all messages; it tells nothing of who was heard."""
        assert self.private is not None
        plan = self.private.account.plan
        heard = self.private.divisor(len(current_round.order.heard))
        clients = plan.clients if plan.exposure.amplified else current_round.clients
        one = torch.ones(1, dtype=torch.float64, device=self.contract.task.device)
        nobody = torch.zeros(0, dtype=torch.int64)
        return RoundRule(
            self.contract,
            self.rule,
            samples=one,
            heard=heard,
            clients=clients,
            key=0,
            state={},
            weight=float(heard),
            wire_ids=nobody,
        )

    def _on_device(self, rows: State) -> State:
        return {n: t.to(self.contract.task.device) for n, t in rows.items()}

    def pack(self, state: State, version: int) -> bytes:
        """A message down."""
        return pack_down(state, self.contract.run, version, self.contract.checksum)


SAME_KIND = 1e-3  # a message this much smaller than one that overflows is of another kind


def candidates(current_round: Round) -> AdmittedMessages:
    """The messages that may count: those of the clients that took part in every exchange."""
    got = current_round.inbox.admitted()
    if current_round.summed is not None:
        others = ~torch.isin(got.wire_ids, current_round.summed)
        current_round.drop(got.wire_ids[others], "masked")
        got = got.only(~others)
    if not current_round.asked:
        return got
    dropped_ids = torch.cat([got.wire_ids[:0], *current_round.dropped.values()])
    got = got.only(~torch.isin(got.wire_ids, dropped_ids))
    second = current_round.second
    if second is None:  # too few were left to ask
        return got
    late = ~torch.isin(got.wire_ids, second.got.wire_ids)
    current_round.drop(got.wire_ids[late], "late")
    silent = second.unanswered()
    current_round.drop(second.got.wire_ids[silent], "answer")
    if bool(silent.any()):  # closed before the others were asked again
        current_round.drop(second.got.wire_ids[~silent], "unsettled")
        return got.only(torch.zeros_like(late))
    return got.only(~late)


def settle(
    aggregation: Aggregation, current_round: Round, got: AdmittedMessages, quorum: int
) -> tuple[Outcome | None, AdmittedMessages]:
    """The server after the round and those who count; None where it stays as it is."""
    nobody = got.only(torch.zeros(len(got.wire_ids), dtype=torch.bool))
    if aggregation.private is not None:
        # whoever was heard, even nobody: a round left out would tell
        try:
            return aggregation(current_round, got), got
        except Overflow:  # of the server's own numbers: messages are clipped
            return None, got
    unasked = current_round.asked and current_round.second is None
    sums = aggregation.contract.sums
    if sums is not None:
        quorum = max(quorum, sums.least(len(current_round.order.heard)))
    impossible = unasked or current_round.unopened
    while len(got.wire_ids) >= max(quorum, 1) and not impossible:
        try:
            outcome = current_round.second.outcome if current_round.second else None
            return outcome or aggregation(current_round, got), got
        except TooFew:
            break
        except Overflow:
            failed = torch.ones(len(got.wire_ids), dtype=torch.bool)
            if current_round.stream is None and sums is None:  # a sum does not show who it was
                failed = overflowing(aggregation, current_round, got)
            current_round.drop(got.wire_ids[failed], "overflow")
            if current_round.second is not None:  # what was asked for was shaped by them too
                current_round.drop(got.wire_ids[~failed], "unsettled")
                return None, nobody
            got = got.only(~failed)
    current_round.drop(got.wire_ids, "too few")
    return None, nobody


def overflowing(
    aggregation: Aggregation, current_round: Round, got: AdmittedMessages
) -> Tensor:  # -> bool[S]
    """Whose messages make the server overflow.

    As few as possible, the largest first; and those of the same kind, within a factor of 1,000 of
    the smallest of them.
    """
    sizes = magnitudes(got.up)
    if current_round.second is not None:
        sizes = sizes.maximum(current_round.second.magnitudes(got.wire_ids))
    order = sizes.argsort(descending=True, stable=True)

    def fits(dropped: int) -> bool:
        mask = torch.ones(len(order), dtype=torch.bool)
        mask[order[:dropped]] = False
        try:
            aggregation(current_round, got.only(mask))
        except Overflow:
            return False
        except TooFew:
            pass
        return True

    # the first number that fits; without anybody nothing overflows
    dropped = bisect_left(range(1, len(order)), True, key=fits) + 1
    return sizes >= SAME_KIND * sizes[order[dropped - 1]]
