"""Synchronous rounds with hosts in other processes, on this machine or elsewhere.

All hosts are at work at the same time. Frames travel by a `Carrier` (Ray, Flower); what is in them
is `idiolect.host.calls`. A host that is lost within a round and comes back is told everything of
that round again: it has its rows from before it, so that it does the same work. One that does not
come back in time, or does not answer by the deadline, is all its clients absent.

Hosts of one owner are trusted to be of the same code: what fails there ends the run (`strict`).
Hosts of other owners are not: what is refused, fails or cannot be read is a missing message with
its reason, and the run goes on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..core.factors import Factors
from ..core.knobs import SettingError
from ..core.notes import note
from ..host import calls
from ..host.calls import FAILED, REFUSED, Call
from ..host.foreign import Foreign
from ..host.host import Host
from ..host.scores import Scores
from ..host.terms import Sent
from ..server.exchange import Order, Query, Verdict
from ..server.round import Round
from .engine import Engine

PATIENCE = 60.0  # seconds in which a lost host may come back
AGAIN = 0.5  # seconds after which a lost host is tried again
MOST_SAID = 500  # characters that are kept of what a host says of an error


class Carrier:
    """Carries frames to hosts and back. Frames to one host arrive in their order."""

    def send(self, host: int, frame: bytes) -> int:
        """Send a frame; a ticket by which its reply is known."""
        raise NotImplementedError

    def receive(self, seconds: float) -> list[tuple[int, bytes | None]]:
        """Replies by ticket that have come, waiting so long for the first; None: host is lost."""
        raise NotImplementedError

    def close(self) -> None:
        """No frame will be sent any more."""


@dataclass(frozen=True)
class Gone:
    """No reply, and why: one of the server's words for a missing message."""

    reason: str
    text: str = ""  # what the host has said, or what is wrong with what it said


@dataclass
class _Line:
    """What one host is still to be told; the reply to the last call is what is wanted."""

    todo: deque[Call]
    ticket: int = -1
    lost: float = 0.0  # since when; 0 = it is not
    retry: float = 0.0  # when it is tried again


@dataclass
class Remote(Engine):
    """Carries messages between one server and hosts elsewhere.

    `hosts` are stand-ins in this process: they say who is where, and hold no private row.
    """

    carrier: Carrier = field(default_factory=Carrier)
    deadline: float = 0.0  # seconds after which a round goes on without those that are late; 0 = no
    patience: float = PATIENCE
    again: float = AGAIN
    strict: bool = True  # hosts are of this run's own code: what fails there ends the run
    tell: Callable[[int, Gone], None] = lambda host, gone: None  # of a host that gave no answer

    def __post_init__(self) -> None:
        self.unanswered: dict[int, Gone] = {}  # hosts that gave no answer in the last exchange
        self._said: dict[int, list[Call]] = {}  # to each host in this round
        self._late: set[int] = set()  # hosts that did not answer in time, and may still be at work
        self._away: dict[int, int] = {}  # lost hosts, each with the ticket of its last status call
        self._written = dict.fromkeys(range(len(self.hosts)), -1)  # the last round on its disk

    # -- a round ---------------------------------------------------------------------------------
    def advance(self, factors: Factors | None = None) -> None:
        server = self.server
        round = server.open(factors=factors)
        self._said = {}
        self._late = set()
        self.unanswered = {}
        self._look_for_lost()
        asked = {n: o for n, h in enumerate(self.hosts) if len((o := _own(round.order, h)).train)}
        lost: set[int] = set()
        said = {n: calls.order_call(order) for n, order in asked.items()}
        for n, reply in self._ask(said, True):
            sent = self._read_sent(reply, asked[n])
            if isinstance(sent, Gone):
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

    def _read_sent(self, reply: Call | Gone, order: Order) -> Sent | Gone:
        if isinstance(reply, Gone):
            return reply
        try:
            return calls.read_sent(reply, order.train, self.server.contract.method.counted)
        except ValueError as error:
            if self.strict:
                raise
            return Gone("malformed", str(error))

    def _note(self, n: int, gone: Gone) -> None:
        self.unanswered[n] = gone
        self.tell(n, gone)

    def _question(self, round: Round, query: Query, answering: Sequence[int]) -> None:
        """A question of the channel's second exchange."""
        mine = {n: _among(query.asked, self.hosts[n]) for n in answering}
        said = {
            n: calls.query_call(replace(query, asked=who)) for n, who in mine.items() if len(who)
        }
        for n, reply in self._ask(said, True):
            if isinstance(reply, Gone):
                self._note(n, reply)
                continue
            try:
                answers = calls.read_answer(reply)
            except ValueError as error:
                if self.strict:
                    raise
                self._note(n, Gone("malformed", str(error)))
                continue
            self.server.receive_answer(round, query.part, answers, self.hosts[n].wire_ids)

    def _conclude(self, verdict: Verdict, asked: Mapping[int, Order], lost: set[int]) -> None:
        """Everyone that was asked learns the end of the round; the late are not waited for."""
        said = {n: calls.verdict_call(_verdict(verdict, self.hosts[n])) for n in asked}
        for n in self._late:
            self.carrier.send(n, said[n].pack())
        waited = {n: call for n, call in said.items() if n not in lost | self._late}
        for n, reply in self._ask(waited, not self.strict):
            if isinstance(reply, Gone):
                self._note(n, reply)
            elif self.strict:
                self._written[n] = reply.facts["written"]

    def _look_for_lost(self, seconds: float = 0.0) -> None:
        """A lost host that has answered since is one of us again, if it still has its rows."""
        if not self._away:
            return
        tickets = {ticket: n for n, ticket in self._away.items()}
        for ticket, frame in self.carrier.receive(seconds):
            if ticket not in tickets:
                continue
            n = tickets[ticket]
            if frame is not None and self._has_its_rows(n, Call.open(frame)):
                del self._away[n]
            else:
                self._away[n] = self.carrier.send(n, Call("status").pack())

    def _has_its_rows(self, n: int, status: Call) -> bool:
        """A host without its rows stays away: nobody starts anew unnoticed.

        Hosts of other owners answer for their rows themselves.
        """
        if not self.strict:
            return True
        return status.kind == "status" and status.facts["written"] >= self._written[n]

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
        self._said = {}
        for n, reply in self._ask(said, not self.strict):
            if isinstance(reply, Gone) and self.strict:
                continue
            scores = self._read_scores(reply, n, who[n], splits)
            if isinstance(scores, Gone):
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
        self, reply: Call | Gone, n: int, wire_ids: Tensor, splits: tuple[str, ...]
    ) -> dict[str, Scores] | Gone:
        if isinstance(reply, Gone):
            return reply
        host = self.hosts[n]
        try:
            scores = calls.read_scores(reply, wire_ids, host.settings.metrics)
            if isinstance(host, Foreign):
                host.check_scores(scores, wire_ids, splits)
            return scores
        except ValueError as error:
            if self.strict:
                raise
            return Gone("malformed", str(error))

    def check_complete(self) -> None:
        end = time.monotonic() + self.patience
        while self._away and time.monotonic() < end:
            self._look_for_lost(AGAIN)
        if self._away:
            n = min(self._away)
            raise RuntimeError(
                f"host {n + 1} of {len(self.hosts)} cannot be reached, so that its clients cannot "
                "be evaluated; the run can be resumed"
            )

    def personalise(self, wire_ids: Tensor, rounds: int) -> None:
        first = self.server.version
        for version in range(first, first + rounds):
            self._said = {}
            order = Order(version, self.server.message(version), wire_ids, wire_ids[:0])
            mine = {n: _own(order, host) for n, host in enumerate(self.hosts)}
            orders = {n: calls.order_call(o) for n, o in mine.items() if len(o.train)}
            nobody = Verdict(version, wire_ids[:0], wire_ids[:0], {})
            for said in (orders, dict.fromkeys(orders, calls.verdict_call(nobody))):
                for n, reply in self._ask(said, not self.strict):
                    if isinstance(reply, Gone):
                        if self.strict:
                            raise RuntimeError(
                                f"host {n + 1} cannot be reached; the run can be resumed"
                            )
                        self._note(n, reply)

    def each(self, said: Mapping[int, Call]) -> dict[int, Call]:
        """One call to each of these hosts, outside a round; all must answer."""
        replies = {}
        self._said = {}
        for n, reply in self._ask(said, False):
            if isinstance(reply, Gone):
                raise RuntimeError(f"host {n + 1} of {len(self.hosts)} cannot be reached")
            replies[n] = reply
        return replies

    def close(self) -> None:
        self.carrier.close()

    # -- calls -----------------------------------------------------------------------------------
    def _ask(self, said: Mapping[int, Call], limited: bool) -> Iterator[tuple[int, Call | Gone]]:
        """Replies in the order of hosts, each as soon as those before it are there.

        `limited`: the deadline holds.
        """
        lines = {n: _Line(deque([call])) for n, call in said.items()}
        tickets: dict[int, int] = {}
        done: dict[int, Call | Gone] = {}
        for n, line in lines.items():
            if n in self._away:
                done[n] = Gone("crashed")
                continue
            self._say(n, line, tickets)
            self._said.setdefault(n, []).append(said[n])
        end = time.monotonic() + self.deadline if limited and self.deadline else float("inf")
        waiting = deque(sorted(said))
        while waiting:
            while waiting and waiting[0] in done:
                n = waiting.popleft()
                yield n, done.pop(n)
            if not waiting:
                return
            now = time.monotonic()
            for n, line in lines.items():
                if n not in waiting or n in done:
                    continue
                if line.lost and (now - line.lost > self.patience or now > end):
                    done[n] = self._give_up(n)
                elif now > end:
                    done[n] = Gone("timed out")
                elif line.lost and line.ticket < 0 and now >= line.retry:
                    self._say(n, line, tickets)
            for ticket, frame in self.carrier.receive(min(self.again, max(end - now, 0.0))):
                if ticket in tickets:
                    n = tickets.pop(ticket)
                    self._heard(n, lines[n], frame, done, tickets)
                else:
                    self.unexpected(ticket, frame)

    def unexpected(self, ticket: int, frame: bytes | None) -> None:
        """A reply that nobody waits for any more: it is too late for its round."""

    def _give_up(self, n: int) -> Gone:
        """A lost host is gone until it answers; one of another owner until it is greeted again."""
        if not self.strict:
            return Gone("crashed")
        clients = len(self.hosts[n].wire_ids)
        note(
            f"host {n + 1} of {len(self.hosts)} is lost: rounds and evaluations go on without its "
            f"{clients:,} clients until it answers"
        )
        self._away[n] = self.carrier.send(n, Call("status").pack())
        return Gone("crashed")

    def _say(self, n: int, line: _Line, tickets: dict[int, int]) -> None:
        line.ticket = self.carrier.send(n, line.todo[0].pack())
        tickets[line.ticket] = n

    def _heard(
        self,
        n: int,
        line: _Line,
        frame: bytes | None,
        done: dict[int, Call | Gone],
        tickets: dict[int, int],
    ) -> None:
        """A reply, or the news that the host is lost."""
        line.ticket = -1
        if frame is None:
            line.lost = line.lost or time.monotonic()
            line.retry = time.monotonic() + self.again
            if line.todo[0].kind != "status":  # it is asked where it stands when it is back
                line.todo.appendleft(Call("status"))
            return
        reply = self._opened(n, frame)
        if isinstance(reply, Gone):
            done[n] = reply
            return
        call = line.todo.popleft()
        if call.kind == "status" and line.lost:
            if not self._has_its_rows(n, reply):
                done[n] = self._give_up(n)
                return
            line.lost = 0.0
            last = line.todo[-1]
            concluded = reply.facts.get("concluded")
            if not isinstance(concluded, int):
                done[n] = Gone("malformed", "status: 'concluded' is a whole number")
                return
            if last.kind == "conclude" and concluded >= last.facts["version"]:
                done[n] = reply
                return
            line.todo = deque(self._said[n])  # the whole round again
        if line.todo:
            self._say(n, line, tickets)
        else:
            done[n] = reply

    def _opened(self, n: int, frame: bytes) -> Call | Gone:
        """A reply; where hosts are of other owners, what cannot be one is none."""
        try:
            reply = Call.open(frame)
        except ValueError as error:
            if self.strict:
                raise
            return Gone("malformed", str(error))
        if reply.kind not in (FAILED, REFUSED):
            return reply
        if self.strict:
            raise failure(n, reply)
        said = reply.facts.get("reason" if reply.kind == REFUSED else "text")
        return Gone(reply.kind, str(said)[:MOST_SAID])


def failure(n: int, reply: Call) -> Exception:
    """What a host says of an error, as an error here."""
    if reply.kind == REFUSED:
        return SettingError(f"host {n + 1} refuses: {reply.facts.get('reason', '')}")
    text = str(reply.facts.get("text", ""))
    if reply.facts.get("setting"):
        return SettingError(text)
    return RuntimeError(f"at host {n + 1}:\n{text}")


def _among(wire_ids: Tensor, host: Host) -> Tensor:
    return wire_ids[torch.isin(wire_ids, host.wire_ids)]


def _own(order: Order, host: Host) -> Order:
    """An order for the clients of one host."""
    train = torch.isin(order.train, host.wire_ids)
    turns = None if order.turns is None else order.turns[train]
    return replace(order, train=order.train[train], heard=_among(order.heard, host), turns=turns)


def _verdict(verdict: Verdict, host: Host) -> Verdict:
    return replace(
        verdict, counted=_among(verdict.counted, host), unheard=_among(verdict.unheard, host)
    )
