"""Calls to hosts in other processes, and their replies, whatever gets lost on the way.

Frames travel by a `Carrier` (Ray, Flower). A host that is lost and comes back is asked where it
stands, and told everything of the round again: it has its rows from before it, so that it does the
same work. A host that is silent for long is asked the same: where it answers that and not what was
asked before, the question or its reply was lost on the way, and it is told again.

Hosts of one owner are trusted to be of the same code: what fails there ends the run (`strict`).
Hosts of other owners are not: what is refused, fails or cannot be read is a missing message.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ..core.knobs import SettingError
from ..host.calls import FAILED, REFUSED, Call

PATIENCE = 60.0  # seconds in which a lost host may come back
AGAIN = 0.5  # seconds after which a lost host is tried again
MOST_SAID = 500  # characters that are kept of what a host says of an error
UNHEARD = ("crashed", "timed out")  # reasons of a host that may not even have been reached


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
class NoReply:
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
    quiet: float = 0.0  # seconds of silence after which it is asked where it stands; 0 = never
    asked: float = 0.0  # when it was asked last


@dataclass
class HostCalls:
    """One line to each host."""

    carrier: Carrier
    deadline: float = 0.0  # seconds after which those that are late are not waited for; 0 = no
    patience: float = PATIENCE
    again: float = AGAIN
    silence: float = 0.0  # seconds after which one that says nothing is asked where it stands
    strict: bool = True
    lost: Callable[[int], None] = lambda host: None  # told of a host that is given up
    unexpected: Callable[[int, bytes | None], None] = lambda ticket, frame: None

    written: dict[int, int] = field(default_factory=dict)  # host -> the last round on its disk
    away: dict[int, int] = field(default_factory=dict)  # lost hosts -> ticket of a status call
    _said: dict[int, list[Call]] = field(default_factory=dict)  # to each host in this round
    # to hosts that have not said that they know the end of a round: all of that round
    _owed: dict[int, list[Call]] = field(default_factory=dict)

    def open(self) -> None:
        """What is said from now on belongs together: a host that comes back is told all of it."""
        self._said = {}

    def owe(self, host: int) -> None:
        """A host may not know how this round has ended: it is told before anything else."""
        self._owed[host] = self._said[host]

    def tell(self, host: int, call: Call) -> None:
        """A call whose reply nobody waits for; not to one that is still to be told of before."""
        if host not in self._owed:
            self.carrier.send(host, call.pack())

    # -- calls -----------------------------------------------------------------------------------
    def ask(
        self, said: Mapping[int, Call], limited: bool = False
    ) -> Iterator[tuple[int, Call | NoReply]]:
        """Replies in the order of hosts, each as soon as those before it are there.

        `limited`: the deadline holds.
        """
        lines: dict[int, _Line] = {}
        tickets: dict[int, int] = {}
        probes: dict[int, int] = {}  # tickets of questions where a silent host stands
        done: dict[int, Call | NoReply] = {}
        for n, call in said.items():
            line = lines[n] = _Line(deque([call]), quiet=self.silence)
            if n in self.away:
                done[n] = NoReply("crashed")
                continue
            if n in self._owed:
                self._said[n] = self._owed[n]
                line.todo.appendleft(Call("status"))
                line.lost = time.monotonic()
            self._said[n] = [*self._said.get(n, ()), call]
            self._say(n, line, tickets)
        end = time.monotonic() + self.deadline if limited and self.deadline else float("inf")
        waiting = deque(sorted(said))
        while waiting:
            while waiting and waiting[0] in done:
                n = waiting.popleft()
                reply = done.pop(n)
                if not isinstance(reply, NoReply) or reply.reason not in UNHEARD:
                    self._owed.pop(n, None)
                yield n, reply
            if not waiting:
                return
            now = time.monotonic()
            for n, line in lines.items():
                if n not in waiting or n in done:
                    continue
                if line.lost and (now - line.lost > self.patience or now > end):
                    done[n] = self._give_up(n)
                elif now > end:
                    done[n] = NoReply("timed out")
                elif line.ticket < 0:
                    if now >= line.retry:
                        self._say(n, line, tickets)
                elif line.quiet and now - line.asked > line.quiet:
                    probes[self.carrier.send(n, Call("status").pack())] = n
                    line.asked, line.quiet = now, 2 * line.quiet
            heard = self.carrier.receive(min(self.again, max(end - now, 0.0)))
            for ticket, frame in sorted(heard, key=lambda reply: reply[0]):
                if ticket in tickets:
                    n = tickets.pop(ticket)
                    self._heard(n, lines[n], frame, done, tickets)
                elif ticket in probes:
                    n = probes.pop(ticket)
                    if n in waiting and n not in done and lines[n].ticket in tickets:
                        del tickets[lines[n].ticket]  # it was lost
                        self._lose(lines[n])
                        self._heard(n, lines[n], frame, done, tickets)
                else:
                    self.unexpected(ticket, frame)

    def _say(self, n: int, line: _Line, tickets: dict[int, int]) -> None:
        line.ticket = self.carrier.send(n, line.todo[0].pack())
        line.asked = time.monotonic()
        tickets[line.ticket] = n

    def _lose(self, line: _Line) -> None:
        line.lost = line.lost or time.monotonic()
        if line.todo[0].kind != "status":  # it is asked where it stands when it is back
            line.todo.appendleft(Call("status"))

    def _heard(
        self,
        n: int,
        line: _Line,
        frame: bytes | None,
        done: dict[int, Call | NoReply],
        tickets: dict[int, int],
    ) -> None:
        """A reply, or the news that the host is lost."""
        line.ticket = -1
        if frame is None:
            self._lose(line)
            line.retry = time.monotonic() + self.again
            return
        reply = self._opened(n, frame)
        if isinstance(reply, NoReply):
            done[n] = reply
            return
        call = line.todo.popleft()
        if call.kind == "status" and line.lost:
            if not self.has_its_rows(n, reply):
                done[n] = self._give_up(n)
                return
            line.lost = 0.0
            concluded = reply.facts.get("concluded")
            if not isinstance(concluded, int):
                done[n] = NoReply("malformed", "status: 'concluded' is a whole number")
                return
            last = line.todo[-1]
            if last.kind == "conclude" and concluded >= last.facts["version"]:
                done[n] = reply
                return
            line.todo = deque(_unknown(self._said[n], concluded))
        if line.todo:
            self._say(n, line, tickets)
        else:
            done[n] = reply

    def _opened(self, n: int, frame: bytes) -> Call | NoReply:
        """A reply; where hosts are of other owners, what cannot be one is none."""
        try:
            reply = Call.open(frame)
        except ValueError as error:
            if self.strict:
                raise
            return NoReply("malformed", str(error))
        if reply.kind not in (FAILED, REFUSED):
            return reply
        if self.strict:
            raise failure(n, reply)
        said = reply.facts.get("reason" if reply.kind == REFUSED else "text")
        return NoReply(reply.kind, str(said)[:MOST_SAID])

    # -- lost hosts ------------------------------------------------------------------------------
    def _give_up(self, n: int) -> NoReply:
        """A lost host is gone until it answers; one of another owner until it is greeted again."""
        if self.strict:
            self.lost(n)
            self.away[n] = self.carrier.send(n, Call("status").pack())
        return NoReply("crashed")

    def look_for_lost(self, seconds: float = 0.0) -> None:
        """A lost host that has answered since is one of us again, if it still has its rows."""
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
        """A host without its rows stays away: nobody starts anew unnoticed.

        Hosts of other owners answer for their rows themselves.
        """
        if not self.strict:
            return True
        return status.kind == "status" and status.facts["written"] >= self.written.get(n, -1)


def _unknown(said: list[Call], concluded: int) -> list[Call]:
    """What a host that has concluded so much is told again: this round, and no earlier one that it
    knows the end of."""
    now = said[-1].facts.get("version", concluded)
    versions = [call.facts.get("version", now) for call in said]
    return [c for c, v in zip(said, versions, strict=True) if v == now or v > concluded]


def failure(n: int, reply: Call) -> Exception:
    """What a host says of an error, as an error here."""
    if reply.kind == REFUSED:
        return SettingError(f"host {n + 1} refuses: {reply.facts.get('reason', '')}")
    text = str(reply.facts.get("text", ""))
    if reply.facts.get("setting"):
        return SettingError(text)
    return RuntimeError(f"at host {n + 1}:\n{text}")
