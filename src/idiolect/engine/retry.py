"""Calls to hosts in other processes and their replies, whatever is lost on the way.

Frames travel by a `Carrier`. A host that was lost and is back is asked for its status, and then
sent all calls of the round again: it has its rows from before the round, so it repeats the same
work. A host that is silent for long is asked for its status too: if it replies to that and not to
the call before, the call or its reply was lost, and the call is repeated.

Hosts of one owner are trusted to run the same code: a failure there ends the run (`strict`). Hosts
of other owners are not: whatever they refuse, fail to do or garble is a missing message.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ..core.knobs import SettingError
from ..host.calls import FAILED, MOST_FRAME, REFUSED, Call
from .carriers import Carrier

PATIENCE = 60.0  # seconds in which a lost host may come back
RETRY_SECONDS = 0.5  # between two attempts to reach a lost host
MOST_TEXT = 500  # characters kept of a host's error message
UNREACHED = ("crashed", "timed out")  # reasons of hosts that may not have received the call


@dataclass(frozen=True)
class NoReply:
    """No usable reply, and why: one of the server's reasons for a missing message."""

    reason: str
    text: str = ""  # the host's error message, or what is wrong with its reply
    oversized: bool = False  # whether the reply had more bytes than the call allows


@dataclass
class _PendingCalls:
    """Calls that one host still has to answer; only the reply to the last one is returned."""

    queue: deque[Call]
    ticket: int = -1
    lost_since: float = 0.0  # 0 = not lost
    retry_at: float = 0.0
    silence: float = 0.0  # seconds without a reply after which its status is asked; 0 = never
    called_at: float = 0.0


@dataclass
class HostCalls:
    """Request and reply with every host of an engine."""

    carrier: Carrier
    deadline: float = 0.0  # seconds to wait for replies where a deadline applies; 0 = none
    patience: float = PATIENCE
    silence: float = 0.0  # see `_PendingCalls`
    strict: bool = True  # hosts run this run's own code: a failure there ends the run
    on_lost: Callable[[int], None] = lambda host: None  # a host has been given up
    # a reply that came too late for its round
    on_unexpected: Callable[[int, bytes | None], None] = lambda ticket, frame: None

    # whether a host may be asked for its messages once more: see `Server.may_ask_again`
    may_repeat: Callable[[int, Call], bool] = lambda host, call: True
    # bytes of a reply to a call, at most: longer ones are not read
    most_reply: Callable[[int, Call], int] = lambda host, call: MOST_FRAME

    written: dict[int, int] = field(default_factory=dict)  # host -> the last round on its disk
    away: dict[int, int] = field(default_factory=dict)  # lost hosts -> ticket of a status call
    _calls: dict[int, list[Call]] = field(default_factory=dict)  # to each host in this round
    _updates: dict[int, int] = field(default_factory=dict)  # host -> the last version asked for
    # all calls of the last round, to hosts that may not know how it ended
    _unconcluded: dict[int, list[Call]] = field(default_factory=dict)

    def open(self) -> None:
        """Start a new round: calls from now on are repeated together to a host that is back."""
        self._calls = {}

    def repeat_first(self, host: int) -> None:
        """A host may not know how this round ended: its calls are repeated before any other."""
        self._unconcluded[host] = self._calls[host]

    def notify(self, host: int, call: Call) -> None:
        """Send a call without waiting; not to a host that has earlier calls to be repeated."""
        if host not in self._unconcluded:
            self.carrier.send(host, call.pack())

    def ask(
        self, calls: Mapping[int, Call], limited: bool = False
    ) -> Iterator[tuple[int, Call | NoReply]]:
        """Replies by increasing host number, each as soon as those before it have come.

        `limited`: the deadline applies.
        """
        pending: dict[int, _PendingCalls] = {}
        tickets: dict[int, int] = {}
        probes: dict[int, int] = {}  # tickets of status calls to silent hosts
        replies: dict[int, Call | NoReply] = {}
        for n, call in calls.items():
            line = pending[n] = _PendingCalls(deque([call]), silence=self.silence)
            if n in self.away:
                replies[n] = NoReply("crashed")
                continue
            if n in self._unconcluded:
                self._calls[n] = self._unconcluded[n]
                line.queue.appendleft(Call("status"))
                line.lost_since = time.monotonic()
            self._calls[n] = [*self._calls.get(n, ()), call]
            self._send(n, line, tickets, replies)
        end = time.monotonic() + self.deadline if limited and self.deadline else float("inf")
        waiting = deque(sorted(calls))
        while waiting:
            while waiting and waiting[0] in replies:
                n = waiting.popleft()
                reply = replies.pop(n)
                if not isinstance(reply, NoReply) or reply.reason not in UNREACHED:
                    self._unconcluded.pop(n, None)
                yield n, reply
            if not waiting:
                return
            now = time.monotonic()
            for n, line in pending.items():
                if n not in waiting or n in replies:
                    continue
                if line.lost_since and (now - line.lost_since > self.patience or now > end):
                    replies[n] = self._give_up(n)
                elif now > end:
                    replies[n] = NoReply("timed out")
                elif line.ticket < 0:
                    if now >= line.retry_at:
                        self._send(n, line, tickets, replies)
                elif line.silence and now - line.called_at > line.silence:
                    probes[self.carrier.send(n, Call("status").pack())] = n
                    line.called_at = now
                    line.silence *= 2
            frames = self.carrier.receive(min(RETRY_SECONDS, max(end - now, 0.0)))
            for ticket, frame in sorted(frames, key=lambda reply: reply[0]):
                if ticket in tickets:
                    n = tickets.pop(ticket)
                    self._receive(n, pending[n], frame, replies, tickets)
                elif ticket in probes:
                    n = probes.pop(ticket)
                    if n in waiting and n not in replies and pending[n].ticket in tickets:
                        del tickets[pending[n].ticket]  # the call or its reply was lost
                        _mark_lost(pending[n])
                        self._receive(n, pending[n], frame, replies, tickets)
                else:
                    self.on_unexpected(ticket, frame)

    def _send(
        self,
        n: int,
        line: _PendingCalls,
        tickets: dict[int, int],
        replies: dict[int, Call | NoReply],
    ) -> None:
        call = line.queue[0]
        if call.kind == "update":
            version = int(call.facts["version"])
            if version <= self._updates.get(n, -1) and not self.may_repeat(n, call):
                replies[n] = NoReply("failed", "its messages again would pass the privacy budget")
                return
            self._updates[n] = version
        line.ticket = self.carrier.send(n, line.queue[0].pack())
        line.called_at = time.monotonic()
        tickets[line.ticket] = n

    def _receive(
        self,
        n: int,
        line: _PendingCalls,
        frame: bytes | None,
        replies: dict[int, Call | NoReply],
        tickets: dict[int, int],
    ) -> None:
        """A reply, or None: the host is lost."""
        line.ticket = -1
        if frame is None:
            _mark_lost(line)
            line.retry_at = time.monotonic() + RETRY_SECONDS
            return
        reply = self._open(n, frame, self.most_reply(n, line.queue[0]))
        if isinstance(reply, NoReply):
            replies[n] = reply
            return
        call = line.queue.popleft()
        if call.kind == "status" and line.lost_since:
            if not self.has_its_rows(n, reply):
                replies[n] = self._give_up(n)
                return
            line.lost_since = 0.0
            concluded = reply.facts.get("concluded")
            if not isinstance(concluded, int):
                replies[n] = NoReply("malformed", "status: 'concluded' must be a whole number")
                return
            last = line.queue[-1]
            if last.kind == "conclude" and concluded >= last.facts["version"]:
                replies[n] = reply
                return
            line.queue = deque(_calls_to_repeat(self._calls[n], concluded))
        if line.queue:
            self._send(n, line, tickets, replies)
        else:
            replies[n] = reply

    def _open(self, n: int, frame: bytes, most: int) -> Call | NoReply:
        """A reply; an unreadable one of another owner's host counts as none."""
        try:
            reply = Call.open(frame, most)
        except ValueError as error:
            if self.strict:
                raise
            return NoReply("malformed", str(error), len(frame) > most)
        if reply.kind not in (FAILED, REFUSED):
            return reply
        if self.strict:
            raise failure(n, reply)
        text = reply.facts.get("reason" if reply.kind == REFUSED else "text")
        return NoReply(reply.kind, str(text)[:MOST_TEXT])

    # -- lost hosts ------------------------------------------------------------------------------
    def _give_up(self, n: int) -> NoReply:
        """Skip a lost host until it replies again."""
        if self.strict:
            self.on_lost(n)
            self.away[n] = self.carrier.send(n, Call("status").pack())
        return NoReply("crashed")

    def look_for_lost(self, seconds: float = 0.0) -> None:
        """Take back lost hosts that have replied since and still have their rows."""
        if not self.away:
            return
        tickets = {ticket: n for n, ticket in self.away.items()}
        for ticket, frame in self.carrier.receive(seconds):
            if ticket not in tickets:
                continue
            n = tickets[ticket]
            if frame is not None and self.has_its_rows(n, Call.open(frame)):
                del self.away[n]
            else:
                self.away[n] = self.carrier.send(n, Call("status").pack())

    def has_its_rows(self, n: int, status: Call) -> bool:
        """Whether a host still has the rows it has written; without them it stays away.

        Hosts of other owners answer for their rows themselves.
        """
        if not self.strict:
            return True
        return status.kind == "status" and status.facts["written"] >= self.written.get(n, -1)


def _mark_lost(line: _PendingCalls) -> None:
    line.lost_since = line.lost_since or time.monotonic()
    if line.queue[0].kind != "status":  # ask for its status when it is back
        line.queue.appendleft(Call("status"))


def _calls_to_repeat(calls: list[Call], concluded: int) -> list[Call]:
    """The calls of this round, and those of earlier rounds that the host has not concluded."""
    now = calls[-1].facts.get("version", concluded)
    versions = [call.facts.get("version", now) for call in calls]
    return [c for c, v in zip(calls, versions, strict=True) if v == now or v > concluded]


def failure(n: int, reply: Call) -> Exception:
    """A host's error as an error of this process."""
    if reply.kind == REFUSED:
        return SettingError(f"host {n + 1} refuses: {reply.facts.get('reason', '')}")
    text = str(reply.facts.get("text", ""))
    if reply.facts.get("setting"):
        return SettingError(text)
    return RuntimeError(f"at host {n + 1}:\n{text}")
