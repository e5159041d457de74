"""The server: what it holds, whom it asks, what it accepts, and its step.

It knows the contract and the roster; it never sees a host, a data set or a private row. A round is
opened (who trains, who is heard, the message down), messages are received in any order and number,
and it is closed. Which version of the model a message started from stands in its header, so that
rounds are one way to use a server and single arrivals another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import Factors
from ..core.store import Store
from ..core.streams import Keys
from ..core.tensors import Shapes
from ..core.types import State, prefixed, under
from ..privacy.plan import PrivacyPlan
from ..wire.admission import AdmittedMessages, Inbox, Messages
from ..wire.ledger import Ledger
from ..wire.messages import HEADER, DownMessage, pack, pack_down
from ..wire.ragged import Ragged
from . import state as saved
from .private_mean import PrivacyAccount, PrivateMean
from .protocol import Contract, Query, RoundConclusion, RoundRequest
from .roster import Roster
from .round import (
    MISSING,
    Aggregation,
    Outcome,
    Overflow,
    References,
    Round,
    SecondExchange,
    candidates,
    overflowing,
    settle,
)
from .rules import Rule, TooFew
from .selection import ANSWER, CandidateLosses, ClientSelection, Pool, Uniform
from .step import ServerStep
from .streaming_mean import StreamingMean, StreamingPlan, largest_number

EXCHANGES = 5  # how often clients are asked in a second exchange before a round is given up


class Server:
    """State, selection, admission, aggregation, step and ledger of one run."""

    def __init__(
        self,
        contract: Contract,
        roster: Roster,
        *,
        rule: Rule,
        step: ServerStep | None = None,
        sample: int = 1,
        quorum: int = 1,
        selection: ClientSelection | None = None,
        memory: int = 2 << 30,
        scratch: Any = None,
        privacy: PrivacyPlan | None = None,
    ):
        self.contract = contract
        self.roster = roster
        self.rule = rule
        self.step = step or ServerStep()
        self.sample = sample  # clients heard per round
        self.quorum = quorum  # fewer messages than this leave the server as it is
        self.selection = selection or Uniform()
        self.version = 0  # exchanges closed: one per round, but for methods with several
        # between two exchanges of a round: whose messages have counted in all before
        self.taking_part: Tensor | None = None
        task = contract.task
        link = contract.link
        self.state = contract.method.server(task)  # the method's and the server optimiser's
        self.channel_state = link.blank("server", None, task.x0)
        self.rule_state: State = {}
        for one in contract.exchanges:
            sizes = one.link.rule_sizes().values()
            self.rule_state |= prefixed(rule.blank(sum(sizes), task.x0), _of_rule(one))
        # what the channel keeps here for each client, by wire id
        self.memory = Store(
            len(roster), lambda ids: link.blank("memory", len(ids), task.x0), memory, scratch
        )
        # what the method keeps here for each client, by wire id
        self.rows = Store(len(roster), self._fresh_rows, memory, scratch, keep=False)
        self.ledger = Ledger(len(roster), more=contract.method.traits.counters)
        self.privacy = PrivacyAccount.new(privacy, len(roster)) if privacy else None
        self.private_mean: PrivateMean | None = None  # where the server adds the noise
        if self.privacy is not None and self.privacy.plan.at_server:
            self.private_mean = PrivateMean(self.privacy)
        self.plan = StreamingPlan.of(contract, rule, sample, memory, self.private_mean is not None)
        self._clients = int(roster.eligible.sum())  # N when the run started
        if privacy is not None and privacy.exposure.amplified:
            self._clients = privacy.clients

    # -- clients come and go ---------------------------------------------------------------------
    def enrol(self, ids: list, samples: list[int], weights: list[float] | None = None) -> Tensor:
        """New clients, from the next round on; their wire ids. `weights`: see `Roster.enrol`."""
        if self.privacy is not None:  # every client counts alike
            weights = [1.0] * len(ids)
        own_weights = self.roster.own_weights or self.roster.weights is None
        wire_ids = self.roster.enrol(ids, samples, weights=weights, own_weights=own_weights)
        self.ledger.grow(len(self.roster))
        self.memory.grow(len(self.roster))
        self.rows.grow(len(self.roster))
        if self.privacy is not None:
            self.privacy.grow(samples)
        return wire_ids

    def _fresh_rows(self, wire_ids: Tensor) -> State:
        """What the method keeps for clients that have just joined."""
        contract = self.contract
        return contract.method.server_rows(contract.task, self.roster.keys[wire_ids.numpy()])

    def prepared(self, wire_ids: Tensor, up: Tensor, down: int) -> None:
        """What these clients sent and were sent before the first round; see `Ledger.prepared`."""
        if self.version:
            raise RuntimeError("preparation: it is booked before the first round")
        self.ledger.prepared(wire_ids, up, down)

    # -- a round ---------------------------------------------------------------------------------
    def candidates(self) -> Tensor | None:  # -> int64, increasing
        """Whom to ask for the loss of the shared model before the next round; None for nobody."""
        asks = self.selection.asks and self.taking_part is None and self.contract.up.length
        if not asks or not self.selection.most_asked(self.sample, int(self.roster.eligible.sum())):
            return None
        return self._sampled(self.rounds)

    def open(
        self,
        version: int | None = None,
        factors: Factors | None = None,
        answers: CandidateLosses | None = None,
    ) -> Round:
        """Start a round: who trains, who is heard, the message down.

        `answers` are those of the `candidates`, where some were to be asked.
        """
        version = self.version if version is None else version
        contract = self.contract.of(version)
        heard_ids = self.taking_part
        if heard_ids is None:
            heard_ids = self._selected(contract.round_of(version), answers)
        if self.privacy is not None and contract.up.length:
            self.privacy.begin(self.rounds, self.roster.eligible_ids(), heard_ids)
        everyone = contract.method.traits.trains == "everyone"
        train = self.roster.eligible_ids() if everyone else heard_ids
        down = self.message(version, train, contract)
        order = RoundRequest(version, down, train, heard_ids, factors or {})
        self.ledger.sent_down(train, len(order.down), contract.down_values(version))
        references = self.aggregation(version).references(order.factors, order.down)
        inbox = self.inbox(version, heard_ids, references)
        clients = int(self.roster.eligible.sum())
        current_round = Round(order, inbox, clients, self.roster.mean_samples())
        if self.plan.streams and contract.link.aggregate_stage is None:
            self._sum_on_arrival(current_round)
        return current_round

    def inbox(self, version: int, expected: Tensor, references: References) -> Inbox:
        """Where messages of a version arrive; `references`: what coded changes are changes of."""
        contract = self.contract.of(version)

        def decode(bodies: Ragged, wire_ids: np.ndarray) -> tuple[State, np.ndarray, State]:
            clients = torch.from_numpy(wire_ids)  # at most one body per client, in order
            met = len(clients) > 0
            rows = self.memory.read(clients, version) if met else self.memory.fresh(clients)
            return contract.link.decode(bodies, references(clients), rows, version)

        return Inbox(
            contract.up,
            contract.run,
            version,
            expected,
            self.roster.most_samples(),
            decode,
            contract.up_lengths(version),
            enrolled=self.roster.weights,
        )

    def _sum_on_arrival(self, current_round: Round) -> None:
        """Messages of this round are added up instead of being held."""
        version = current_round.version
        current_round.stream = StreamingMean(
            self.contract.of(version), self.rule, current_round.clients, self.roster.own_weights
        )
        aggregation = self.aggregation(version)

        def add(rows: State, weights: np.ndarray) -> None:
            aggregation.collect(
                current_round, rows, torch.from_numpy(weights) / current_round.mean_samples
            )

        current_round.inbox.sink = add
        current_round.inbox.largest = largest_number(self.contract.task.dtype)

    def receive(
        self,
        current_round: Round,
        messages: Messages,
        values: np.ndarray | None = None,
        sender: Tensor | None = None,
    ) -> None:
        """Messages of a round: any number of them, at any time before it is closed, in any order.

        `values`: what each counts as in the lp-proj paper's 32-bit words. `sender`: the wire ids
        of the host that they come from, which speaks for no others.
        """
        if self.contract.up.length:
            current_round.inbox.receive(messages, values, sender)

    def missing(self, current_round: Round, wire_ids: Tensor, reason: str) -> None:
        """What the engine knows of messages that will not come; otherwise they are "silent"."""
        if reason not in MISSING:
            raise ValueError(f"reason must be one of {', '.join(MISSING)}, got {reason!r}")
        earlier = current_round.excuses.get(reason, wire_ids[:0])
        excused_ids = torch.cat([wire_ids[:0], *current_round.excuses.values()])
        current_round.excuses[reason] = torch.cat(
            [earlier, wire_ids[~torch.isin(wire_ids, excused_ids)]]
        )

    def account(
        self, wire_ids: Tensor, gradients: Tensor, counted: Mapping[str, Tensor] | None = None
    ) -> None:
        """Gradient evaluations that clients report, and what else the method counts."""
        self.ledger.add_gradients(wire_ids, gradients)
        if self.privacy is not None:
            self.privacy.gradients(wire_ids, gradients)
        for name, counts in (counted or {}).items():
            self.ledger.add_counted(wire_ids, counts, name)

    def ask(self, current_round: Round) -> list[Query]:
        """The questions of a channel's second exchange; none for most channels.

        An engine asks until nothing is left to ask: `while queries := server.ask(round)`, passing
        the answers to `receive_answer`. A client that fails to answer, or whose numbers overflow,
        is dropped from the whole round; the others are asked again if the question is another one
        without it, five times at most.
        """
        if not self.contract.link.second_exchange:
            return []
        if not current_round.asked:
            current_round.asked = True
            return self._question(current_round, current_round.inbox.admitted())
        while current_round.second is not None:
            got = current_round.second.got
            failed, reason = self._failed(current_round, current_round.second)
            if not bool(failed.any()):
                break
            current_round.drop(got.wire_ids[failed], reason)
            if queries := self._question(current_round, got.only(~failed)):
                return queries
        return []

    def _failed(self, current_round: Round, second: SecondExchange) -> tuple[Tensor, str]:
        """Who must be dropped of those asked, bool[S], and why."""
        silent = second.unanswered()
        if bool(silent.any()):
            return silent, "answer"
        aggregation = self.aggregation(current_round.version)
        try:
            second.outcome = aggregation(current_round, second.got)
        except TooFew:
            pass
        except Overflow:
            return overflowing(aggregation, current_round, second.got), "overflow"
        return silent, ""

    def _question(self, current_round: Round, got: AdmittedMessages) -> list[Query]:
        """Ask these clients, if there are enough of them and the question is a new one."""
        earlier = current_round.second
        current_round.second = None
        if len(got.wire_ids) < max(self.quorum, 1):
            return []
        if earlier is not None and earlier.asked == EXCHANGES:
            current_round.drop(got.wire_ids, "unsettled")
            return []
        aggregation = self.aggregation(current_round.version)
        try:
            tables, rule_state = aggregation.sketches(current_round, got)
        except TooFew:
            return []
        wanted = aggregation.query(current_round, tables)
        answer_bytes = torch.zeros(len(got.wire_ids), dtype=torch.int64)
        times_asked = 1
        if earlier is not None:
            if all(torch.equal(wanted[part], q) for part, q in earlier.queries.items()):
                mask = torch.isin(earlier.got.wire_ids, got.wire_ids)
                answer_bytes = earlier.spent[mask]
                current_round.second = replace(
                    earlier, got=got, rule_state=rule_state, spent=answer_bytes
                )
                return []
            answer_bytes = earlier.bytes_of(got.wire_ids)
            times_asked = earlier.asked + 1
        current_round.second = SecondExchange(
            got, wanted, {}, rule_state, answer_bytes, times_asked
        )
        queries = []
        for part, coordinates in wanted.items():
            message = self._pack({"query": coordinates.int().cpu()}, current_round.version)
            self.ledger.sent_down(got.wire_ids, len(message), 0)
            query = Query(current_round.version, part, message, got.wire_ids)
            queries.append(query)
            current_round.second.answers[part] = Inbox(
                self.contract.answer(query.part, query.message, len(coordinates)),
                self.contract.run,
                current_round.version,
                got.wire_ids,
                self.roster.most_samples(),
                enrolled=self.roster.weights,
            )
        return queries

    def receive_answer(
        self, current_round: Round, part: str, messages: Messages, sender: Tensor | None = None
    ) -> None:
        """Answers to a query, as `receive`."""
        if current_round.second is not None:
            current_round.second.answers[part].receive(messages, sender=sender)

    def close(self, current_round: Round) -> RoundConclusion:
        """End a round: combine what arrived and step, or leave everything as it was.

        Whoever does not count is absent: for the server, and for what a channel remembers. In a
        round of several exchanges each is closed; who does not count in one is absent from there
        on, and a round ends with an exchange that leaves everything as it was.
        """
        self._check_open(current_round)
        current_round.closed = True
        if self.privacy is not None:
            self.privacy.end(current_round.order.train)
        heard_ids = current_round.order.heard
        self.version = max(self.version, current_round.version + 1)
        if not self.contract.up.length:
            return RoundConclusion(current_round.version, heard_ids[:0], heard_ids[:0], {})
        outcome, got = settle(
            self.aggregation(current_round.version),
            current_round,
            candidates(current_round),
            self.quorum,
        )
        coordinates: dict[str, bytes] = {}
        if outcome is not None:
            self.state = outcome.state
            self.channel_state = outcome.channel
            if self.privacy is not None and outcome.clip is not None:
                self.privacy.clip = outcome.clip
            contract = self.contract.of(current_round.version)
            self.rule_state = self.rule_state | prefixed(outcome.rule, _of_rule(contract))
            coordinates = outcome.taken
            self._remember(current_round, got)
            self._keep_rows(current_round.version, got.wire_ids, outcome.rows)
        self._end_exchange(current_round, None if outcome is None else got.wire_ids)
        counted = got.wire_ids
        for message in coordinates.values():
            self.ledger.sent_down(counted, len(message), 0)
        self._book(current_round, got)
        return RoundConclusion(
            current_round.version, counted, heard_ids[~torch.isin(heard_ids, counted)], coordinates
        )

    def _end_exchange(self, current_round: Round, counted: Tensor | None) -> None:
        """Who takes part in the next exchange of the round; None: it was the last one."""
        contract = self.contract
        self.taking_part = None
        if contract.of(current_round.version).ends_round:
            return
        if counted is None:
            self.version = len(contract.exchanges) * (contract.round_of(current_round.version) + 1)
        else:
            self.taking_part = counted

    def _check_open(self, current_round: Round) -> None:
        """An engine must close a round once, and ask before it does where the channel asks."""
        if current_round.closed:
            raise RuntimeError(
                f"the round of version {current_round.version} has been closed before"
            )
        if self.contract.link.second_exchange and not current_round.asked:
            raise RuntimeError("this channel has a second exchange: call ask() before close()")

    def _remember(self, current_round: Round, got: AdmittedMessages) -> None:
        """What a round that counted leaves behind, beside the server's vectors."""
        if got.memory:
            self.memory.write(got.wire_ids, current_round.version, got.memory)
            self.memory.settle(current_round.version)
        lengths = torch.from_numpy(got.bytes).clone()
        if current_round.second is not None:
            lengths += current_round.second.bytes_of(got.wire_ids)
        self.ledger.sent_up(got.wire_ids, lengths, torch.from_numpy(got.values))

    def _keep_rows(self, version: int, heard_ids: Tensor, rows: State) -> None:
        """New rows of the clients heard, or of all, for each part that a round has changed."""
        if not rows:
            return
        everyone = torch.arange(len(self.roster))
        wire_ids = everyone if any(len(t) != len(heard_ids) for t in rows.values()) else heard_ids
        after = dict(self.rows.read(wire_ids))
        for name, t in rows.items():
            if len(t) < len(wire_ids):
                after[name] = after[name].index_copy(0, heard_ids.to(t.device), t)
            else:
                after[name] = t
        self.rows.write(wire_ids, version, after)

    def _book(self, current_round: Round, got: AdmittedMessages) -> None:
        """The round in the ledger: every client that was asked has one fate."""
        surplus: Counter[str] = Counter()
        up_bytes = int(got.bytes.sum())
        if current_round.second is not None:
            for inbox in current_round.second.answers.values():
                surplus.update(inbox.admitted().surplus)
            up_bytes += int(current_round.second.bytes_of(got.wire_ids).sum())
        entry = current_round.entry(got.wire_ids, dict(surplus), up_bytes)
        continues = current_round.version % len(self.contract.exchanges) > 0
        self.ledger.enter(entry, continues)

    def aggregation(self, version: int | None = None) -> Aggregation:
        """How messages of a version would be combined, from the server as it is now."""
        contract = self.contract.of(self.version if version is None else version)
        rule_state = under(self.rule_state, _of_rule(contract))
        before = Outcome(self.state, self.channel_state, rule_state, rows=self._rows_of_all())
        own_weights = self.roster.own_weights
        return Aggregation(
            contract,
            self.rule,
            self.step,
            before,
            self.plan.streams,
            own_weights,
            self.private_mean,
        )

    def has_shared_model(self) -> bool:
        """Whether the method has one global model that can be evaluated by itself.

        Groups of clients with unlike models have none.
        """
        if self.contract.layouts:
            return False
        method, task = self.contract.method, self.contract.task
        return method.shared(task, method.broadcast(task, self.method_state())) is not None

    def method_state(self) -> State:
        """The server's state as the method knows it, with the rows of all clients."""
        return self.step.method_state(self.state) | self._rows_of_all()

    def _rows_of_all(self) -> State:
        """What the method keeps for each client."""
        return self.rows.all() if self.contract.keeps_rows else {}

    # -- messages --------------------------------------------------------------------------------
    @property
    def rounds(self) -> int:
        """Rounds closed."""
        return self.contract.round_of(self.version)

    def message(
        self, version: int, wire_ids: Tensor | None = None, exchange: Contract | None = None
    ) -> DownMessage:
        """The message down from the server as it is now, with those to each of these clients.

        The whole one, or that of an `exchange` (one of `Contract.exchanges`).
        """
        method = (exchange or self.contract).method
        state = self.method_state()
        common = self._pack(method.broadcast(self.contract.task, state), version)
        if wire_ids is None or not self.contract.addresses:
            return DownMessage(common)
        wire_ids = wire_ids.sort().values
        return self._with_own(common, version, state, wire_ids, wire_ids)

    def message_to_new(
        self, version: int, keys: Keys, exchange: Contract | None = None
    ) -> DownMessage:
        """The message down for clients that join after training, by their stream keys.

        Nothing is kept of them here; they are numbered from 0. `exchange` as in `message`.
        """
        contract = exchange or self.contract
        state = self.method_state()
        rows = contract.method.server_rows(contract.task, keys)
        state |= {n: torch.cat([state[n], t]) if n in state else t for n, t in rows.items()}
        common = self._pack(contract.method.broadcast(contract.task, state), version)
        if not contract.addresses:
            return DownMessage(common)
        new_ids = torch.arange(len(keys))
        return self._with_own(common, version, state, len(self.roster) + new_ids, new_ids)

    def _with_own(
        self, common: bytes, version: int, state: State, places: Tensor, wire_ids: Tensor
    ) -> DownMessage:
        """A message down with those to the clients at these places among the server's rows."""
        contract = self.contract
        rows = contract.method.address(contract.task, state, places)
        weights = np.zeros(len(wire_ids))
        own = pack(contract.addressed, contract.run, version, wire_ids.numpy(), weights, rows)
        return DownMessage(common, wire_ids, own)

    def portions(self, wire_ids: Tensor) -> tuple[Tensor, ...]:
        """Clients in portions whose own messages down fit in memory."""
        length = self.contract.addressed.length
        return wire_ids.split(max(1, self.rows.limit // length)) if length else (wire_ids,)

    def _pack(self, state: State, version: int) -> bytes:
        return pack_down(state, self.contract.run, version, self.contract.checksum)

    def round_bytes(self, version: int | None = None) -> int:
        """What the next round sends both ways, through a channel at most: known before it runs."""
        version = self.version if version is None else version
        contract = self.contract
        exchanges = [contract.of(version + k) for k in range(len(contract.exchanges))]
        up = sum(one.up_lengths(version)[1] for one in exchanges)
        everyone = contract.method.traits.trains == "everyone"
        trained = int(self.roster.eligible.sum()) if everyone else self.sample
        down = sum(one.down.length + one.addressed.length for one in exchanges)
        candidate_count = self.selection.most_asked(self.sample, int(self.roster.eligible.sum()))
        questions = (contract.down.length + ANSWER.length) * candidate_count if up else 0
        up += self._second_exchange_bytes + sum(self.contract.sum_bytes(self.sample))
        return questions + down * trained + up * self.sample

    @cached_property
    def _second_exchange_bytes(self) -> int:
        """The most bytes per client of a second exchange: the query, the answer, what was taken."""
        link = self.contract.link
        stage = link.aggregate_stage
        if stage is None or not link.second_exchange:
            return 0
        total = 0
        task = self.contract.task
        for _, prefix, form in link.aggregate_parts(0):
            table = task.x0.new_zeros(stage.numbers(form))
            query_length = len(stage.query(table, under(self.channel_state, prefix), form))
            total += 3 * HEADER.itemsize + query_length * (4 + 4 + task.dtype.itemsize)
        return total

    def _pool(self, number: int) -> Pool:
        """Whom the round of this number may hear."""
        roster = self.roster
        data = roster.samples if roster.weights is None else roster.weights
        seed = self.contract.task.seed
        if self.privacy is not None:
            seed = self.privacy.sampling_seed(number, seed)
        eligible = roster.eligible_ids()
        return Pool(seed, number, roster.keys, eligible, data.double(), self.sample, self._clients)

    def _selected(self, number: int, answers: CandidateLosses | None) -> Tensor:
        """The wire ids of those heard; what candidates were sent and answered is booked."""
        candidates = self._sampled(number)
        if answers is None:
            return candidates
        down = self.contract.down.length
        self.ledger.sent_down(candidates, down, self.contract.down_values(self.version))
        self.ledger.answered(answers.wire_ids, ANSWER.length, ANSWER.values)
        return self.selection.choose(self._pool(number), answers)

    def affords_round(self) -> bool:
        """Whether the next round stays within the privacy budget of every client it exposes."""
        if self.privacy is None or not self.contract.up.length:
            return True
        exposed = self.roster.eligible_ids()
        if not self._exposes_everyone(self.privacy.plan):
            exposed = self._sampled(self.rounds)
        return self.privacy.affords(exposed)

    def _exposes_everyone(self, plan: PrivacyPlan) -> bool:
        """Whether a round exposes all clients that could be heard."""
        everyone = self.contract.method.traits.trains == "everyone"
        return plan.exposure.amplified or (plan.samples is not None and everyone)

    def may_ask_again(self, version: int, wire_ids: Tensor) -> bool:
        """Whether clients of a host may be asked for their messages of a round once more."""
        if self.privacy is None or not self.contract.up.length:
            return True
        return self.privacy.again(self.contract.round_of(version), wire_ids)

    def count_killed(self, rounds: Iterable[int | None], known: bool = True) -> None:
        """These rounds were begun after the checkpoint by a process that ended: they count.

        None: which round is not known. `known`: whether the same clients could take part as now.
        """
        if self.privacy is None:
            return
        everyone = self.roster.eligible_ids() if known else torch.arange(len(self.roster))
        sampled = known and not self._exposes_everyone(self.privacy.plan)
        for number in rounds:
            exact = self._sampled(number) if sampled and number is not None else everyone
            self.privacy.count_killed(exact)

    def _sampled(self, number: int) -> Tensor:
        return self.selection.draw(self._pool(number))

    def handover(self) -> Tensor | None:  # -> [d]
        """The model that a next stage starts from; None where there is none."""
        method = self.contract.method
        task = self.contract.task
        return method.handover(task, method.broadcast(task, self.method_state()))

    # -- checkpoints -----------------------------------------------------------------------------
    def save(self) -> tuple[State, dict[str, Any]]:
        """Everything, for a checkpoint: tensors and plain facts."""
        return saved.save(self)

    def check(self, shapes: Shapes, facts: dict[str, Any]) -> None:
        """Refuse, by ValueError, what this server cannot have saved, before anything is read."""
        saved.check(self, shapes, facts)

    def load(self, tensors: State, facts: dict[str, Any]) -> None:
        """As it was saved."""
        saved.load(self, tensors, facts)

    def most_bytes(self) -> int:
        """The most that the tensors of `save` take, for the clients enrolled here."""
        return saved.most_bytes(self)


def _of_rule(contract: Contract) -> str:
    """What the names of a rule's vectors begin with, in the exchange of this contract."""
    return f"{contract.exchange}." if contract.exchange else ""
