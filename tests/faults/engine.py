"""Hosts behind a faulty network, for any engine that is built from a server and hosts.

An engine sees ordinary hosts. What they send is lost, repeated, delayed, reordered, cut, enlarged,
altered or forged on its way, as a plan for the round says; nothing inside server or host is
replaced, and everything that leaves a host is checked (`CheckedHost`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from engine.loopback import local_rounds
from engine.setting import with_header
from host.leaks import CheckedHost
from idiolect.host.host import Host
from idiolect.server.protocol import HostUpdate, RoundConclusion
from idiolect.server.server import Server
from idiolect.wire.messages import HEADER

ENGINES = {"in-process": local_rounds}

HEAD = HEADER.itemsize
STRANGER = 1000  # a wire id that nobody has
NAN = np.float32("nan").tobytes()


# -- what happens to one message: (message, amount) -> what arrives in its place -------------------
def _flipped(message: bytes, amount: int) -> list[bytes]:
    """One bit is another, anywhere but in the sender's id: that would be a forgery."""
    places = [b for b in range(8 * len(message)) if not 16 <= b // 8 < 20]
    at = places[amount * 7919 % len(places)]
    changed = bytearray(message)
    changed[at // 8] ^= 1 << at % 8
    return [bytes(changed)]


FAULTS: dict[str, Callable[[bytes, int], list[bytes]]] = {
    "lost": lambda m, amount: [],
    "repeated": lambda m, amount: [m] * (2 + amount % 3),
    "after a bad copy": lambda m, amount: [m[: HEAD + amount % 4], m],
    "truncated": lambda m, amount: [m[: amount * 31 % len(m)]],
    "oversized": lambda m, amount: [m + bytes(1 + 997 * amount)],
    "flipped": _flipped,
    "not a number": lambda m, amount: [m[:HEAD] + NAN + m[HEAD + 4 :]],
    "huge": lambda m, amount: [m[:HEAD] + np.float32(3e38).tobytes() * ((len(m) - HEAD) // 4)],
    "of another run": lambda m, amount: [with_header(m, run=1 + amount)],
    "of another contract": lambda m, amount: [with_header(m, schema=1 + amount)],
    "of an older round": lambda m, amount: [with_header(m, version=2**31 + amount)],
    "of a stranger": lambda m, amount: [with_header(m, client=STRANGER + amount)],
    "of no weight": lambda m, amount: [with_header(m, weight=(0.0, -1.0, np.nan)[amount % 3])],
    "another format": lambda m, amount: [(b"PK\x03\x04", b"\x80\x04\x95", b"")[amount % 3] + m],
}
LATE = "late"  # by 1 + amount rounds
KINDS = (*FAULTS, LATE)
# of answers in a second exchange: those of a sender who cannot be told from an honest one are left
# to the messages
ANSWER_KINDS = (
    "lost",
    "repeated",
    "truncated",
    "oversized",
    "not a number",
    "of another run",
    LATE,
)


@dataclass
class Plan:
    """The faults of one round."""

    messages: dict[int, str] = field(default_factory=dict)  # wire id -> kind
    answers: dict[int, str] = field(default_factory=dict)
    amount: int = 0  # what the faults take a number from
    backwards: bool = False  # messages arrive in reverse order
    twice: bool = False  # every order reaches every host twice
    strangers: int = 0  # messages that nobody asked for


@dataclass
class Post:
    """What is under way between hosts and a server, and what happened to it in this round."""

    plan: Plan = field(default_factory=Plan)
    late: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))  # by round
    arrived: dict[int, list[bytes]] = field(default_factory=dict)  # this round, by true sender
    verdict: RoundConclusion | None = None

    def carry(self, version: int, kinds: dict[int, str], messages: dict[int, bytes]) -> list[bytes]:
        """What arrives of these messages, by their senders' wire ids."""
        amount = self.plan.amount
        out = []
        for sender, message in messages.items():
            kind = kinds.get(sender, "")
            if kind == LATE:
                self.late[version + 1 + amount % 3].append(message)
                arrives: list[bytes] = []
            else:
                arrives = FAULTS[kind](message, amount) if kind else [message]
            self.arrived.setdefault(sender, []).extend(arrives)
            out += arrives
        return out[::-1] if self.plan.backwards else out


class FaultyHost:
    """A host, as an engine meets it behind a faulty network."""

    def __init__(self, host: Host, post: Post):
        self.real = host
        self.checked = CheckedHost(host)
        self.post = post

    def update(self, order) -> HostUpdate:
        plan = self.post.plan
        if plan.twice:
            self.real.update(order)
        sent = self.checked.update(order)
        own = {int(k): sent.messages.row(i) for i, k in enumerate(_senders(sent))}
        arrives = self.post.carry(order.version, plan.messages, own)
        arrives += self.post.late.pop(order.version, [])
        if own:
            any_message = next(iter(own.values()))
            arrives += [
                with_header(any_message, client=STRANGER + k) for k in range(plan.strangers)
            ]
        return replace(sent, messages=arrives, values=np.zeros(len(arrives)))

    def updates(self, order) -> Iterator[HostUpdate]:
        yield self.update(order)

    def answer(self, query) -> list[bytes]:
        answers = self.checked.answer(query)
        rows = {int(row[16:20].copy().view("<u4")[0]): row.tobytes() for row in answers}
        return self.post.carry(query.version, self.post.plan.answers, rows)

    def conclude(self, verdict: RoundConclusion) -> None:
        self.post.verdict = verdict
        self.checked.conclude(verdict)

    def __getattr__(self, name: str):
        return getattr(self.real, name)


# -- a run in which the clients that failed were never selected ------------------------------------
class ScriptedServer(Server):
    """Selects the clients it is told to."""

    script: Tensor = torch.zeros(0, dtype=torch.int64)

    def _sampled(self, version: int) -> Tensor:
        return self.script


class ScriptedHost:
    """An honest host; messages that were altered and yet sound are altered here too."""

    def __init__(self, host: Host):
        self.real = host
        self.altered: dict[int, bytes] = {}  # by wire id

    def update(self, order) -> HostUpdate:
        sent = self.real.update(order)
        own = [(int(k), sent.messages.row(i)) for i, k in enumerate(_senders(sent))]
        return replace(sent, messages=[self.altered.get(k, message) for k, message in own])

    def updates(self, order) -> Iterator[HostUpdate]:
        yield self.update(order)

    def __getattr__(self, name: str):
        return getattr(self.real, name)


def _senders(sent: HostUpdate) -> np.ndarray:
    if not len(sent.messages):
        return np.zeros(0, dtype=np.int64)
    head = np.ascontiguousarray(sent.messages.matrix[:, :HEAD]).view(HEADER)[:, 0]
    return head["client"].astype(np.int64)
