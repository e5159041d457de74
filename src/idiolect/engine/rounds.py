"""Synchronous rounds with hosts in other processes, on this machine or elsewhere.

All hosts are at work at the same time. What is said is `idiolect.host.calls`; how it gets there,
and what happens when a host is lost or silent, is `engine.lines`. A host that does not come back in
time, or does not answer by the deadline, is all its clients absent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..core.knobs import Factors
from ..core.text import note
from ..host import calls
from ..host.calls import Call
from ..host.host import Host
from ..host.remote_host import SiteProxy
from ..host.scores import Scores
from ..server.protocol import HostUpdate, Query, RoundConclusion, RoundRequest
from ..server.round import Round
from .delays import Delays
from .engine import Engine
from .retry import AGAIN, PATIENCE, UNHEARD, Carrier, HostCalls, NoReply


@dataclass
class Remote(Engine):
    """Carries messages between one server and hosts elsewhere.

    `hosts` are stand-ins in this process: they say who is where, and hold no private row.
    """

    carrier: Carrier = field(default_factory=Carrier)
    deadline: float = 0.0  # seconds after which a round goes on without those that are late; 0 = no
    patience: float = PATIENCE
    again: float = AGAIN
    silence: float = 0.0  # seconds after which one that says nothing is asked where it stands
    strict: bool = True  # hosts are of this run's own code: what fails there ends the run
    tell: Callable[[int, NoReply], None] = lambda host, gone: None  # of a host that gave no answer

    def __post_init__(self) -> None:
        self.unanswered: dict[int, NoReply] = {}  # hosts that gave no answer in the last exchange
        self._late: set[int] = set()  # hosts that did not answer in time, and may still be at work
        self.lines = HostCalls(
            self.carrier,
            self.deadline,
            self.patience,
            self.again,
            self.silence,
            self.strict,
            self._lost,
            self.unexpected,
        )

    # -- a round ---------------------------------------------------------------------------------
    def advance(self, factors: Factors | None = None) -> None:
        server = self.server
        round = server.open(factors=factors)
        self.lines.open()
        self._late = set()
        self.unanswered = {}
        self.lines.look_for_lost()
        asked = {n: o for n, h in enumerate(self.hosts) if len((o := _own(round.order, h)).train)}
        lost: set[int] = set()
        said = {n: calls.order_call(order) for n, order in asked.items()}
        for n, reply in self.lines.ask(said, True):
            sent = self._read_sent(reply, asked[n])
            if isinstance(sent, NoReply):
                self._note(n, sent)
                server.missing(round, asked[n].heard, sent.reason)
                (self._late if sent.reason == "timed out" else lost).add(n)
                continue
            server.account(sent.trained, sent.gradients, sent.counted)
            server.receive(round, sent.messages, sent.values, self.hosts[n].wire_ids)
        answering = [n for n in asked if n not in self.unanswered]
        while queries := server.ask(round):
            for query in queries:
                self._question(round, query, answering)
        verdict = server.close(round)
        self._conclude(verdict, asked, lost)

    def _read_sent(self, reply: Call | NoReply, order: RoundRequest) -> HostUpdate | NoReply:
        if isinstance(reply, NoReply):
            return reply
        try:
            return calls.read_sent(reply, order.train, self.server.contract.method.traits.counters)
        except ValueError as error:
            if self.strict:
                raise
            return NoReply("malformed", str(error))

    def _note(self, n: int, gone: NoReply) -> None:
        self.unanswered[n] = gone
        self.tell(n, gone)

    def _question(self, round: Round, query: Query, answering: Sequence[int]) -> None:
        """A question of the channel's second exchange."""
        mine = {n: _among(query.asked, self.hosts[n]) for n in answering}
        said = {
            n: calls.query_call(replace(query, asked=who)) for n, who in mine.items() if len(who)
        }
        for n, reply in self.lines.ask(said, True):
            if isinstance(reply, NoReply):
                self._note(n, reply)
                continue
            try:
                answers = calls.read_answer(reply)
            except ValueError as error:
                if self.strict:
                    raise
                self._note(n, NoReply("malformed", str(error)))
                continue
            self.server.receive_answer(round, query.part, answers, self.hosts[n].wire_ids)

    def _conclude(
        self, verdict: RoundConclusion, asked: Mapping[int, RoundRequest], lost: set[int]
    ) -> None:
        """Everyone that was asked learns the end of the round; the late are not waited for."""
        said = {n: calls.verdict_call(_verdict(verdict, self.hosts[n])) for n in asked}
        for n in self._late:
            self.lines.tell(n, said[n])
        waited = {n: call for n, call in said.items() if n not in lost | self._late}
        for n, reply in self.lines.ask(waited, not self.strict):
            if isinstance(reply, NoReply):
                self._note(n, reply)
                if reply.reason in UNHEARD:
                    self.lines.owe(n)
            elif self.strict:
                self.lines.written[n] = reply.facts["written"]

    def unexpected(self, ticket: int, frame: bytes | None) -> None:
        """A reply that nobody waits for any more: it is too late for its round."""

    def _lost(self, n: int) -> None:
        clients = len(self.hosts[n].wire_ids)
        note(
            f"host {n + 1} of {len(self.hosts)} is lost: rounds and evaluations go on without its "
            f"{clients:,} clients until it answers"
        )

    # -- models ----------------------------------------------------------------------------------
    def evaluate(self, wire_ids: Tensor, splits: tuple[str, ...]) -> dict[str, Scores]:
        return self._scores("evaluate", wire_ids, splits)

    def evaluate_shared(
        self, splits: tuple[str, ...], wire_ids: Tensor | None = None
    ) -> dict[str, Scores]:
        server = self.server
        method, task = server.contract.method, server.contract.task
        down = method.broadcast(task, server.step.method_state(server.state))
        if method.shared(task, down) is None:
            return {}
        everyone = torch.cat([host.wire_ids for host in self.hosts]).sort().values
        return self._scores("evaluate_shared", everyone if wire_ids is None else wire_ids, splits)

    def _scores(self, kind: str, wire_ids: Tensor, splits: tuple[str, ...]) -> dict[str, Scores]:
        version = self.rounds
        down = self.server.message(version)
        who = {n: _among(wire_ids, host) for n, host in enumerate(self.hosts)}
        said = {
            n: calls.evaluate_call(kind, version, down, ids, splits)
            for n, ids in who.items()
            if len(ids) and self.present(n)
        }
        found = [
            self.hosts[n].evaluate(version, down, ids, splits)  # of hosts that are not there
            for n, ids in who.items()
            if len(ids) and n not in said
        ]
        self.lines.open()
        for n, reply in self.lines.ask(said, not self.strict):
            if isinstance(reply, NoReply) and self.strict:
                continue
            scores = self._read_scores(reply, n, who[n], splits)
            if isinstance(scores, NoReply):
                self._note(n, scores)
                scores = self.hosts[n].evaluate(version, down, who[n], splits)
            found.append(scores)
        if not found:  # nobody to evaluate: scores of no client
            return self.hosts[0].evaluate(version, down, wire_ids, splits)
        return {split: Scores.merge([f[split] for f in found]) for split in splits}

    def present(self, host: int) -> bool:
        """Whether a host is asked at all."""
        return True

    def _read_scores(
        self, reply: Call | NoReply, n: int, wire_ids: Tensor, splits: tuple[str, ...]
    ) -> dict[str, Scores] | NoReply:
        if isinstance(reply, NoReply):
            return reply
        host = self.hosts[n]
        try:
            scores = calls.read_scores(reply, wire_ids, host.settings.metrics)
            if isinstance(host, SiteProxy):
                host.check_scores(scores, wire_ids, splits)
            return scores
        except ValueError as error:
            if self.strict:
                raise
            return NoReply("malformed", str(error))

    def check_complete(self) -> None:
        end = time.monotonic() + self.patience
        while self.lines.away and time.monotonic() < end:
            self.lines.look_for_lost(AGAIN)
        if self.lines.away:
            n = min(self.lines.away)
            raise RuntimeError(
                f"host {n + 1} of {len(self.hosts)} cannot be reached, so that its clients cannot "
                "be evaluated; the run can be resumed"
            )

    def personalise(self, wire_ids: Tensor, rounds: int) -> None:
        first = self.server.version
        for version in range(first, first + rounds):
            self.lines.open()
            order = RoundRequest(version, self.server.message(version), wire_ids, wire_ids[:0])
            mine = {n: _own(order, host) for n, host in enumerate(self.hosts)}
            orders = {n: calls.order_call(o) for n, o in mine.items() if len(o.train)}
            nobody = RoundConclusion(version, wire_ids[:0], wire_ids[:0], {})
            for said in (orders, dict.fromkeys(orders, calls.verdict_call(nobody))):
                for n, reply in self.lines.ask(said, not self.strict):
                    if isinstance(reply, NoReply):
                        if self.strict:
                            raise RuntimeError(
                                f"host {n + 1} cannot be reached; the run can be resumed"
                            )
                        self._note(n, reply)

    def each(self, said: Mapping[int, Call]) -> dict[int, Call]:
        """One call to each of these hosts, outside a round; all must answer."""
        replies = {}
        self.lines.open()
        for n, reply in self.lines.ask(said):
            if isinstance(reply, NoReply):
                raise RuntimeError(f"host {n + 1} of {len(self.hosts)} cannot be reached")
            replies[n] = reply
        return replies

    def close(self) -> None:
        self.carrier.close()


def _among(wire_ids: Tensor, host: Host) -> Tensor:
    return wire_ids[torch.isin(wire_ids, host.wire_ids)]


def _own(order: RoundRequest, host: Host) -> RoundRequest:
    """An order for the clients of one host."""
    train = torch.isin(order.train, host.wire_ids)
    turns = None if order.turns is None else order.turns[train]
    return replace(order, train=order.train[train], heard=_among(order.heard, host), turns=turns)


def _verdict(verdict: RoundConclusion, host: Host) -> RoundConclusion:
    return replace(
        verdict, counted=_among(verdict.counted, host), unheard=_among(verdict.unheard, host)
    )


@dataclass
class InProcess(Engine):
    """Carries messages between one server and hosts that are asked one after the other."""

    delays: Delays | None = None  # how long clients would take, for simulated time

    @property
    def timed(self) -> bool:
        return self.delays is not None

    def advance(self, factors: Factors | None = None) -> None:
        """One synchronous round, with the factors of a schedule."""
        server = self.server
        round = server.open(factors=factors)
        for host in self.hosts:
            for sent in host.updates(round.order):
                server.account(sent.trained, sent.gradients, sent.counted)
                server.receive(round, sent.messages, sent.values)
        while queries := server.ask(round):
            for query in queries:
                for host in self.hosts:
                    server.receive_answer(round, query.part, host.answer(query))
        verdict = server.close(round)
        for host in self.hosts:
            host.conclude(verdict)
        if self.delays is not None:
            self._wait(self.delays, round.order.heard, verdict.counted)

    def _wait(self, delays: Delays, heard: Tensor, counted: Tensor) -> None:
        """A synchronous round takes as long as the slowest of those that it hears."""
        roster = self.server.roster
        round = self.server.version
        turns = torch.full((len(heard),), round - 1).numpy()
        took = delays.draw(self.server.contract.task.seed, roster.keys[heard.numpy()], turns)
        began = self.time
        self.time += float(took.max(initial=0.0))
        done = torch.isin(heard, counted).tolist()
        self.delays_of_round = [
            {
                "round": round,
                "client": roster.ids[wire_id],
                "started": round - 1,
                "staleness": 0,
                "start": began,
                "time": began + delay,
                "delay": delay,
                "counted": int(fate),
            }
            for wire_id, delay, fate in zip(heard.tolist(), took.tolist(), done, strict=True)
        ]
