"""Hosts in other processes, on this machine or elsewhere: all of them work at the same time.

Calls are written as `idiolect.host.calls` says, and sent by `engine.retry`. The clients of a host
that does not come back in time, or does not answer by the deadline, count as absent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..core.text import note, plural
from ..host import calls
from ..host.calls import Call
from ..host.remote_host import HostLike, RemoteHost, SiteProxy
from ..host.scores import Scores
from ..host.subgroups import SubgroupScores
from ..server.protocol import HostUpdate, Query, RoundConclusion, RoundRequest
from ..wire.messages import DownMessage
from ..wire.ragged import Ragged
from .retry import RETRY_SECONDS, UNREACHED, HostCalls, NoReply

T = TypeVar("T")


@dataclass
class RemoteHosts:
    """Calls hosts by a carrier. `hosts` are proxies: who is where, without private rows."""

    hosts: Sequence[HostLike]
    calls: HostCalls
    counted: tuple[str, ...] = ()  # what the method counts: see Traits.counters
    on_no_reply: Callable[[int, NoReply], None] = lambda host, reply: None
    is_present: Callable[[int], bool] = lambda host: True  # whether a host is evaluated at all

    no_replies: dict[int, NoReply] = field(default_factory=dict)  # in the last exchange
    # of each host asked in the last round: clients heard, messages that came, those that counted
    tallies: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    _received: dict[int, int] = field(default_factory=dict)  # messages of the round under way
    _requests: dict[int, RoundRequest] = field(default_factory=dict)  # of the round under way
    _late: set[int] = field(default_factory=set)  # hosts that may still be at work on it
    _lost: set[int] = field(default_factory=set)
    _begun: bool = False  # a round for which nobody was asked to train yet

    def __post_init__(self) -> None:
        self.strict = self.calls.strict
        self.calls.on_lost = self._note_lost

    def repeat_if(self, allowed: Callable[[int, Tensor], bool]) -> None:
        """Ask for messages once more only where that is allowed, by version and wire ids."""

        def may_repeat(n: int, call: Call) -> bool:
            heard = call.tensors["heard"]
            return allowed(call.facts["version"], heard[torch.isin(heard, self.hosts[n].wire_ids)])

        self.calls.may_repeat = may_repeat

    def sender(self, n: int) -> Tensor | None:
        return self.hosts[n].wire_ids

    # -- a round ---------------------------------------------------------------------------------
    def update(
        self, request: RoundRequest, required: bool = False
    ) -> Iterator[tuple[int, HostUpdate | NoReply]]:
        if not self._begun:
            self.begin()
        self._begun = False
        requests = {n: request_for(request, host) for n, host in enumerate(self.hosts)}
        self._requests = {n: one for n, one in requests.items() if len(one.train)}
        frames = {n: calls.order_call(one) for n, one in self._requests.items()}
        must_answer = required and self.strict
        for n, reply in self.calls.ask(frames, limited=not must_answer):
            train = self._requests[n].train
            update = self._read(n, reply, calls.read_sent, train, self.counted)
            if must_answer and isinstance(update, NoReply):
                raise RuntimeError(f"host {n + 1} cannot be reached; the run can be resumed")
            if isinstance(update, NoReply):
                (self._late if update.reason == "timed out" else self._lost).add(n)
            else:
                self._received[n] = len(update.messages)
            yield n, update

    def begin(self) -> None:
        """A new round; calls from now on are repeated together to a host that was lost."""
        self.calls.open()
        self.no_replies = {}
        self._late = set()
        self._lost = set()
        self._received = {}
        self._requests = {}
        self.tallies = {}
        self._begun = True
        self.calls.look_for_lost()

    def sum_stage(self, version: int, stage: int, frames: Mapping[int, bytes]) -> dict[int, bytes]:
        """A stage of a secure sum: what clients answer to these frames."""
        asked = {}
        for n, host in enumerate(self.hosts):
            own = {k: frames[k] for k in host.wire_ids.tolist() if k in frames}
            if own and n not in self.no_replies:
                asked[n] = calls.sum_call(version, stage, own)
        replies: dict[int, bytes] = {}
        for n, reply in self.calls.ask(asked, limited=True):
            answers = self._read(n, reply, calls.read_summed, asked[n].tensors["wire_ids"])
            if not isinstance(answers, NoReply):
                replies |= answers
        return replies

    def answer(self, query: Query) -> Iterator[tuple[int, Ragged | NoReply]]:
        frames = {}
        for n in self._requests:
            if n in self.no_replies:
                continue
            clients = _among(query.asked, self.hosts[n])
            if len(clients):
                frames[n] = calls.query_call(replace(query, asked=clients))
        for n, reply in self.calls.ask(frames, limited=True):
            yield n, self._read(n, reply, calls.read_answer)

    def conclude(self, conclusion: RoundConclusion) -> None:
        """Notify all hosts of the round; late ones are notified without waiting for them."""
        frames = {
            n: calls.verdict_call(
                replace(
                    conclusion,
                    counted=_among(conclusion.counted, self.hosts[n]),
                    unheard=_among(conclusion.unheard, self.hosts[n]),
                )
            )
            for n in self._requests
        }
        self.tallies = {
            n: (
                len(one.heard),
                self._received.get(n, 0),
                len(_among(conclusion.counted, self.hosts[n])),
            )
            for n, one in self._requests.items()
        }
        for n in self._late:
            self.calls.notify(n, frames[n])
        waited = {n: call for n, call in frames.items() if n not in self._lost | self._late}
        for n, reply in self.calls.ask(waited, limited=not self.strict):
            if isinstance(reply, NoReply):
                self._note(n, reply)
                if reply.reason in UNREACHED:
                    self.calls.repeat_first(n)
            elif self.strict:
                self.calls.written[n] = reply.facts["written"]

    # -- models ----------------------------------------------------------------------------------
    def evaluate(
        self,
        version: int,
        down: DownMessage,
        wire_ids: Tensor,
        splits: tuple[str, ...],
        shared: bool = False,
    ) -> list[dict[str, Scores]]:
        kind = "evaluate_shared" if shared else "evaluate"
        clients = {n: _among(wire_ids, host) for n, host in enumerate(self.hosts)}
        clients = {n: ids for n, ids in clients.items() if len(ids)}
        frames = {
            n: calls.evaluate_call(kind, version, down, ids, splits)
            for n, ids in clients.items()
            if self.is_present(n)
        }
        parts = [
            self.hosts[n].unreported(ids, splits) for n, ids in clients.items() if n not in frames
        ]
        self.calls.open()
        for n, reply in self.calls.ask(frames, limited=not self.strict):
            if isinstance(reply, NoReply) and self.strict:
                continue
            scores = self._read(n, reply, self._read_scores, n, clients[n], splits)
            if isinstance(scores, NoReply):
                scores = self.hosts[n].unreported(clients[n], splits)
            parts.append(scores)
        return parts or [self.hosts[0].unreported(wire_ids[:0], splits)]

    def _read_scores(
        self, reply: Call, n: int, wire_ids: Tensor, splits: tuple[str, ...]
    ) -> dict[str, Scores]:
        host = self.hosts[n]
        scores = calls.read_scores(reply, wire_ids, host.settings.metrics)
        if isinstance(host, SiteProxy):
            host.check_scores(scores, wire_ids, splits)
        return scores

    def losses(self, version: int, down: DownMessage, wire_ids: Tensor) -> list[Scores]:
        clients = {n: _among(wire_ids, host) for n, host in enumerate(self.hosts)}
        frames = {
            n: calls.evaluate_call("losses", version, down, ids, ("train",))
            for n, ids in clients.items()
            if len(ids)
        }
        self.calls.open()
        self.calls.look_for_lost()
        parts = []
        for n, reply in self.calls.ask(frames, limited=True):
            scores = self._read(n, reply, calls.read_scores, clients[n], ())
            if not isinstance(scores, NoReply):
                parts.append(scores["train"])
        return parts

    def evaluate_subgroups(
        self, version: int, down: DownMessage, wire_ids: Tensor, shared: bool = False
    ) -> list[SubgroupScores]:
        clients = {n: _among(wire_ids, host) for n, host in enumerate(self.hosts)}
        clients = {n: ids for n, ids in clients.items() if len(ids)}
        frames = {n: calls.subgroups_call(version, down, ids, shared) for n, ids in clients.items()}
        self.calls.open()
        parts = []
        for n, reply in self.calls.ask(frames, limited=False):
            host = self.hosts[n]
            if isinstance(reply, NoReply):
                raise RuntimeError(f"host {n + 1} of {len(self.hosts)} cannot be reached")
            assert isinstance(host, RemoteHost)  # sites of others are never asked
            scores = calls.read_subgroups_reply(reply, clients[n], host.settings.metrics)
            host.check_subgroups(scores)
            parts.append(scores)
        return parts

    def check_complete(self) -> None:
        end = time.monotonic() + self.calls.patience
        while self.calls.away and time.monotonic() < end:
            self.calls.look_for_lost(RETRY_SECONDS)
        if self.calls.away:
            n = min(self.calls.away)
            raise RuntimeError(
                f"host {n + 1} of {len(self.hosts)} cannot be reached, so that its clients cannot "
                "be evaluated; the run can be resumed"
            )

    def ask(self, n: int, call: Call) -> Call:
        """One call to a host, outside a round; it must answer."""
        self.calls.open()
        ((_, reply),) = self.calls.ask({n: call})
        if isinstance(reply, NoReply):
            raise RuntimeError(f"host {n + 1} of {len(self.hosts)} cannot be reached")
        return reply

    def close(self) -> None:
        self.calls.carrier.close()

    # -- replies ---------------------------------------------------------------------------------
    def _read(
        self, n: int, reply: Call | NoReply, read: Callable[..., T], *arguments: Any
    ) -> T | NoReply:
        """A reply as a typed record; a malformed one of another owner's host counts as none."""
        if not isinstance(reply, NoReply):
            try:
                return read(reply, *arguments)
            except ValueError as error:
                if self.strict:
                    raise
                reply = NoReply("malformed", str(error))
        self._note(n, reply)
        return reply

    def _note(self, n: int, reply: NoReply) -> None:
        self.no_replies[n] = reply
        self.on_no_reply(n, reply)

    def _note_lost(self, n: int) -> None:
        clients = len(self.hosts[n].wire_ids)
        note(
            f"host {n + 1} of {len(self.hosts)} is lost: rounds and evaluations continue without "
            f"its {plural(clients, 'client')} until it replies"
        )


def _among(wire_ids: Tensor, host: HostLike) -> Tensor:
    return wire_ids[torch.isin(wire_ids, host.wire_ids)]


def request_for(request: RoundRequest, host: HostLike) -> RoundRequest:
    """The part of a request that concerns the clients of one host."""
    train = torch.isin(request.train, host.wire_ids)
    turns = None if request.turns is None else request.turns[train]
    heard_ids = _among(request.heard, host)
    train_ids = request.train[train]
    down = request.down.only(train_ids)
    return replace(request, down=down, train=train_ids, heard=heard_ids, turns=turns)
