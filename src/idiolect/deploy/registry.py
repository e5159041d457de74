"""The sites of a federation: greeted, offered the agreement, enrolled.

The registry talks to each site separately, step by step (hello, agree, enrol), and waits for none.
A site that refuses, fails or answers nonsense is left out with a reported reason, and tried again
later. What sites report about themselves is checked as foreign input.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ..core.documents import decode, encode
from ..core.text import plural
from ..data.federation import Census
from ..data.splits import SPLITS
from ..engine.carriers import SiteCarrier
from ..host.calls import FAILED, REFUSED, Call
from .site.agreement import DTYPES, MOST_NAME, SiteCensus

LOOK = 0.5  # seconds between two looks at who is there
RETRY = 5.0  # seconds until a node that was left out is greeted again
LOST = 10.0  # seconds until a silent node is greeted again: the message may be lost
MOST_REASON = 500  # characters kept of a reason given by a site


@dataclass
class RegisteredSite(SiteCensus):
    """A site that has agreed: its clients, where it is, and since when it takes part."""

    name: str = field(metadata={"key": "site"})
    node: int  # where the carrier finds it
    joined: int  # the version of the first round that its clients could take part in
    wire_ids: list[int]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.here = True  # whether it is asked

    @classmethod
    def of(cls, reply: Call, name: str, node: int) -> RegisteredSite:
        """From a site's answer to what the federation is about; ValueError for anything else."""
        reply.expect_kind("census")
        census = decode(reply.facts, SiteCensus)
        return cls(census.clients, census.inputs, census.classes, name, node, 0, [])

    def same(self, other: RegisteredSite) -> bool:
        """Whether these are the same clients with as many samples."""
        mine, theirs = (self.name, self.clients, self.form), (other.name, other.clients, other.form)
        return mine == theirs

    @property
    def form(self) -> tuple[list[Any], int]:
        """Of a sample: dtype and shape, and the number of classes."""
        return self.inputs, self.classes

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for a run directory; the node as a text: not all JSON has 64 bits."""
        return {**encode(self), "node": str(self.node)}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> RegisteredSite:
        """The inverse; ValueError for anything else."""
        site = decode({**saved, "node": int(str(saved.get("node")))}, cls)
        ids = site.wire_ids
        if len(ids) != len(site.clients) or any(b <= a for a, b in pairwise(ids)):
            raise ValueError(f"{site.name}: wire_ids must be increasing, one per client")
        return site


def census_of(sites: Sequence[RegisteredSite], name: str = "sites") -> Census:
    """All clients of sites that have samples of the same form, in their order."""
    ((kind, shape),) = sites[0].inputs
    ids = [client for site in sites for client in site.ids]
    sizes = {split: [n for site in sites for n in site.sizes(split)] for split in SPLITS}
    return Census.of_sizes(ids, sizes, sites[0].classes, tuple(shape), DTYPES[kind], name)


@dataclass
class Conversation:
    """A conversation with a node."""

    ticket: int
    stage: str  # the call that is to be answered
    name: str = ""  # what the site calls itself
    since: float = field(default_factory=time.monotonic)


@dataclass
class SiteRegistry:
    """The sites of a federation."""

    network: SiteCarrier
    agreement: dict[str, Any]  # what the federation is about: the facts of the call "agree"
    tell: Callable[[str], None]
    same_node: bool = True  # nodes are authenticated: a site keeps its node
    # terms of enrolment besides wire ids: checksum of the contract, whether any client of the
    # run has validation data
    terms: dict[str, Any] = field(default_factory=dict)
    enrolled: dict[str, RegisteredSite] = field(default_factory=dict)  # by name
    agreed: dict[str, RegisteredSite] = field(default_factory=dict)  # those that could be enrolled
    # the facts of the calls "sums" that come before an agreement can be made; None: it is made
    sums: dict[str, Any] | None = None
    # name -> node, sums
    column_sums: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    check_sums: Callable[[str, dict[str, Any]], None] = lambda name, columns: None  # or ValueError
    _talks: dict[int, Conversation] = field(default_factory=dict)  # by node
    _left_out: dict[int, float] = field(default_factory=dict)  # node -> when it is tried again
    _known: set[str] = field(default_factory=set)  # names of those that were here before
    _silent: set[int] = field(default_factory=set)  # nodes that did not answer the last time
    _reported: set[str] = field(default_factory=set)

    @property
    def run(self) -> int:
        return int(self.agreement["run"])

    def look(self, seconds: float = 0.0) -> None:
        """Greet new nodes and handle replies, waiting up to `seconds` for the first one."""
        online = self.network.online()
        for site in self.enrolled.values():
            if site.here and site.node not in online:
                site.here = False
                self._once(f"{site.name} has left")
        now = time.monotonic()
        for node, talk in list(self._talks.items()):
            if node not in online or now - talk.since > LOST:
                del self._talks[node]
                self._silent.add(node)
        busy = {site.node for site in self.enrolled.values() if site.here}
        busy |= {site.node for site in self.agreed.values()} | set(self._talks)
        busy |= {node for node, _ in self.column_sums.values()}
        for node in sorted(online - busy):
            if now >= self._left_out.get(node, 0.0):
                self._ask(node, Conversation(-1, "hello"), Call("hello"))
        for ticket, frame in self.network.receive(seconds):
            self.receive_reply(ticket, frame)

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Look at who is there until a condition holds; False where it does not in time."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            self.look(LOOK)
            if not self._talks and not condition():
                time.sleep(LOOK)
        return True

    def expecting(self, seconds: float) -> bool:
        """Whether a node contacted less than `seconds` ago has yet to answer.

        A node that was silent the last time is not waited for again.
        """
        now = time.monotonic()
        talks = (talk for node, talk in self._talks.items() if node not in self._silent)
        return any(now - talk.since < seconds for talk in talks)

    def receive_reply(self, ticket: int, frame: bytes | None) -> None:
        """Handle a reply; unexpected ones are dropped."""
        node = next((n for n, talk in self._talks.items() if talk.ticket == ticket), None)
        if node is None:
            return
        talk = self._talks.pop(node)
        self._silent.discard(node)
        who = talk.name or f"node {node}"
        if frame is None:
            self._leave_out(node, f"{who} gives no answer: {self.network.why.get(node, '')}")
            return
        try:
            reply = Call.open(frame)
            if reply.kind in (REFUSED, FAILED):
                reason = str(reply.facts.get("reason") or reply.facts.get("text") or "")
                raise ValueError(f"it {reply.kind}: {reason[:MOST_REASON]}")
            getattr(self, f"_{talk.stage}")(node, talk, reply)
        except ValueError as error:
            self._leave_out(node, f"{who} is left out: {error}")

    def enrol(self, site: RegisteredSite) -> None:
        """Ask a site that has agreed to take part under its wire ids; `here` when it does.

        One that comes back later is asked the same by itself.
        """
        self.agreed.pop(site.name, None)
        self.enrolled[site.name] = site
        site.here = False
        self._enrol_call(site)

    # -- steps -----------------------------------------------------------------------------------
    def _hello(self, node: int, talk: Conversation, reply: Call) -> None:
        facts = {"idiolect": str, "site": str, "run": int | None, "concluded": int}
        reply.expect("hello", {}, facts)
        name = reply.facts["site"]
        if not 0 < len(name) <= MOST_NAME or not name.isprintable():
            raise ValueError(f"site must be a short name, got {name[:40]!r}")
        site = self.enrolled.get(name) or self.agreed.get(name)
        if site is not None and site.node != node:
            if self.same_node or site.node in self.network.online():
                raise ValueError(f"{name!r} is the name of another site (node {site.node})")
            site.node = node
        talk.name = name
        if site is not None and name in self._known and reply.facts["run"] == self.run:
            self._welcome(site)
            return
        if self.sums is not None:
            self._ask(node, Conversation(-1, "sums", name), Call("sums", self.sums))
        else:
            self.propose(node, name)

    def propose(self, node: int, name: str) -> None:
        """Tell a site what the federation is about."""
        self._ask(node, Conversation(-1, "agree", name), Call("agree", self.agreement))

    def ask_sums(self, facts: dict[str, Any]) -> None:
        """Ask the sites that have sent sums for the next ones."""
        self.sums, earlier, self.column_sums = facts, self.column_sums, {}
        for name, (node, _) in earlier.items():
            self._ask(node, Conversation(-1, "sums", name), Call("sums", facts))

    def _sums(self, node: int, talk: Conversation, reply: Call) -> None:
        reply.expect("sums", {}, {"columns": dict[str, Any]})
        self.check_sums(talk.name, reply.facts["columns"])
        self.column_sums[talk.name] = (node, reply.facts["columns"])

    def _agree(self, node: int, talk: Conversation, reply: Call) -> None:
        site = RegisteredSite.of(reply, talk.name, node)
        before = self.enrolled.get(site.name)
        if before is not None:
            if not before.same(site):
                raise ValueError("it has other clients or numbers of samples than before")
            before.node = node
            self._enrol_call(before)
            return
        everyone = (*self.enrolled.values(), *self.agreed.values())
        others = [other for other in everyone if other.name != site.name]
        owners = {str(client): other.name for other in others for client in other.ids}
        for client in map(str, site.ids):
            if client in owners:
                raise ValueError(f"duplicate client id {client!r} (already at {owners[client]})")
        if others and others[0].form != site.form:
            raise ValueError(f"its samples are {site.form}, those of the others {others[0].form}")
        self.agreed[site.name] = site

    def _enrol(self, node: int, talk: Conversation, reply: Call) -> None:
        reply.expect_kind("status")
        self._welcome(self.enrolled[talk.name])

    def _welcome(self, site: RegisteredSite) -> None:
        site.here = True
        self._known.add(site.name)
        self._reported -= {text for text in self._reported if text.startswith(site.name)}
        self.tell(f"{site.name} takes part with {plural(len(site.ids), 'client')}")

    def _enrol_call(self, site: RegisteredSite) -> None:
        facts = {"wire_ids": site.wire_ids, **self.terms}
        self._ask(site.node, Conversation(-1, "enrol", site.name), Call("enrol", facts))

    # -- inside ----------------------------------------------------------------------------------
    def _ask(self, node: int, talk: Conversation, call: Call) -> None:
        talk.ticket = self.network.send_to(node, call.pack())
        self._talks[node] = talk

    def _leave_out(self, node: int, text: str) -> None:
        self._left_out[node] = time.monotonic() + RETRY
        self._once(text)

    def _once(self, text: str) -> None:
        """Report it, unless it has been reported already."""
        if text not in self._reported:
            self._reported.add(text)
            self.tell(text)
