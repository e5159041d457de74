"""The sites of a federation: greeted, offered the agreement, enrolled.

The registry talks to each site separately, step by step (hello, propose, agree, enrol), and waits
for none: neither for a site nor for its owner, who may take days to agree.
A site that refuses or fails is left out with a reported reason, and tried again later. What sites
report about themselves is foreign input: the server's own contract says which form samples have,
and numbers are within its bounds before they are used. A site that breaks them is left out for
longer each time, and put out of the run after `MOST_FAULTS`; the others go on.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ..core.documents import decode, encode
from ..core.text import plural
from ..core.types import Id
from ..data.federation import Census
from ..data.prepare import Preparation
from ..data.splits import SPLITS
from ..engine.carriers import SiteCarrier
from ..host.calls import FAILED, MOST_FACTS, REFUSED, Call
from .config import FederationTerms
from .exclusions import Exclusions
from .site.agreement import DTYPES, MOST_NAME, ArrayForm, SiteCensus, read_form

LOOK = 0.5  # seconds between two looks at who is there
RETRY = 5.0  # seconds until a node that was left out is greeted again
LONGEST_RETRY = 60.0  # the same for one that refuses each time
LONGEST_PAUSE = 3600.0  # the same for one that breaks the rules each time
MOST_FAULTS = 10  # replies in a row that no honest site sends, before a site is put out of the run
MOST_REPLY = MOST_FACTS + (1 << 16)  # bytes of a reply before the first round: plain facts
NUMBERED = re.compile(r"site-\d+")  # names of keys of sites that choose their own names
LOST = 10.0  # seconds until a silent node is greeted again: the message may be lost
UNDECIDED = "waits for its owner to agree (at the site: idiolect host agree)"
MOST_REASON = 500  # characters kept of a reason given by a site


@dataclass
class RegisteredSite(SiteCensus):
    """A site that has agreed: its clients, where it is, and since when it takes part."""

    name: str = field(metadata={"key": "site"})
    node: int  # where the carrier finds it
    joined: int  # the version of the first round that its clients could take part in
    wire_ids: list[int]
    # ids that clients have at the server, where those that the site uses are another site's too
    other_ids: dict[str, str] = field(default_factory=dict)

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
    def ids(self) -> list[Id]:
        """What its clients are called at the server."""
        return [self.other_ids.get(str(client.id), client.id) for client in self.clients]

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
    """All clients of sites that have samples of the form of the contract, in their order."""
    ((kind, shape),) = sites[0].inputs
    ids = [client for site in sites for client in site.ids]
    sizes = {split: [n for site in sites for n in site.sizes(split)] for split in SPLITS}
    return Census.of_sizes(ids, sizes, sites[0].classes, tuple(shape), DTYPES[kind], name)


def sample_form(data: dict[str, Any]) -> tuple[list[Any], int]:
    """What the contract says of a sample: dtype and shape, and the number of classes."""
    form = read_form(data)
    if isinstance(form, ArrayForm):
        return [form.inputs], form.classes
    width = len(form.features)
    if form.preparation is not None:
        width = len(Preparation.from_dict(form.preparation).feature_names)
    return [["torch.float32", [width]]], len(form.classes)


@dataclass
class SiteRecord:
    """What is known of a site, for whoever watches the server."""

    name: str
    node: int
    seen: float = 0.0  # when it last answered, in seconds since 1970
    rounds: int = 0  # that it was asked in and answered
    rejected: int = 0  # messages of its clients that did not count
    missing: int = 0  # messages of its clients that did not come
    reason: str = ""  # why it takes no part, or its last message did not count
    faults: int = 0  # replies in a row that no honest site sends
    refusals: int = 0  # refusals in a row
    refused_orders: int = 0  # orders to train that it refused, in a row
    put_out: bool = False  # for the rest of the run
    put_out_at: float = 0.0  # when, in seconds since 1970


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
    proposal: FederationTerms  # what the owners of the sites must agree to first
    agreement: dict[str, Any]  # what a run is about: the facts of the call "agree"
    tell: Callable[[str], None]
    exclusions: Exclusions  # who is put out, on disk
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
    looked: Callable[[], None] = lambda: None  # called after each look
    most_clients: int = 1 << 20  # of a site
    most_samples: int = 1 << 40  # of a client
    records: dict[int, SiteRecord] = field(default_factory=dict)  # by node
    _talks: dict[int, Conversation] = field(default_factory=dict)  # by node
    _left_out: dict[int, float] = field(default_factory=dict)  # node -> when it is tried again
    _known: set[str] = field(default_factory=set)  # names of those that were here before
    _names: dict[int, str] = field(default_factory=dict)  # what nodes have called themselves
    _silent: set[int] = field(default_factory=set)  # nodes that did not answer the last time
    _reported: dict[int, str] = field(default_factory=dict)  # node -> what was last said of it

    @property
    def run(self) -> int:
        return int(self.agreement["run"])

    def look(self, seconds: float = 0.0) -> None:
        """Greet new nodes and handle replies, waiting up to `seconds` for the first one."""
        online = self.network.online()
        for node in self.exclusions.readmitted():
            self._readmit(node)
        registered = self.network.registered()
        if registered is not None:
            for node in {*online, *self._names} - set(registered):
                self._remove(node)
                self._names.pop(node, None)
            online &= set(registered)
        online -= {node for node, record in self.records.items() if record.put_out}
        for site in self.enrolled.values():
            if site.here and site.node not in online:
                site.here = False
                self._once(site.node, f"{site.name} has left")
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
        self.looked()

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
        record = self.record(node, talk.name)
        if frame is None:
            why = self.network.why.get(node, "")
            self._leave_out(node, RETRY, f"{record.name} gives no answer: {why}")
            return
        record.seen = time.time()
        if len(frame) > MOST_REPLY:
            self.put_out(node, oversized(len(frame), MOST_REPLY))
            return
        try:
            reply = Call.open(frame, MOST_REPLY)
            if reply.kind not in (REFUSED, FAILED):
                getattr(self, f"_{talk.stage}")(node, talk, reply)
                return
        except ValueError as error:
            self.fault(node, str(error))
            return
        text = str(reply.facts.get("reason") or reply.facts.get("text") or "")[:MOST_REASON]
        record.reason = f"it {reply.kind}: {text}"
        pause = min(RETRY * 2**record.refusals, LONGEST_RETRY)
        record.refusals = min(record.refusals + 1, 30)
        self._leave_out(node, pause, f"{record.name} is left out: {record.reason}")

    def order_refused(self, node: int) -> None:
        """A site has refused to train: it is asked to agree anew, later each time.

        At once after the first: a site that was restarted refuses what it has not agreed to yet.
        """
        name = self._name_of(node)
        record = self.record(node, name)
        self._known.discard(name)
        if record.refused_orders:
            pause = min(RETRY * 2 ** (record.refused_orders - 1), LONGEST_RETRY)
            self._left_out[node] = time.monotonic() + pause
        record.refused_orders = min(record.refused_orders + 1, 30)

    # -- who breaks the rules --------------------------------------------------------------------
    def record(self, node: int, name: str = "") -> SiteRecord:
        """What is known of a node."""
        record = self.records.setdefault(node, SiteRecord(f"node {node}", node))
        registered = (self.network.registered() or {}).get(node, "")
        record.name = name or (record.name if registered in ("", record.name) else registered)
        return record

    def fault(self, node: int, reason: str) -> None:
        """A reply that no honest site sends: it is left out for longer each time, then for good."""
        record = self.record(node, self._name_of(node))
        record.faults += 1
        if record.faults >= MOST_FAULTS:
            self.put_out(node, f"{reason} ({record.faults} such replies in a row)")
            return
        record.reason = reason[:MOST_REASON]
        pause = min(RETRY * 2 ** (record.faults - 1), LONGEST_PAUSE)
        self._leave_out(node, pause, f"{record.name} is left out: {record.reason}")

    def put_out(self, node: int, reason: str) -> None:
        """For the rest of the run, this node takes no part; the others do."""
        record = self.record(node, self._name_of(node))
        record.put_out, record.put_out_at, record.reason = True, time.time(), reason[:MOST_REASON]
        self._forget(node)
        self.exclusions.add(record.name, node, record.reason)
        self._once(node, f"{record.name} is put out of this run: {record.reason}")

    def load_exclusions(self) -> None:
        """Who was put out before the server was started again still is."""
        for out in self.exclusions.read():
            node = int(out.node)
            record = SiteRecord(out.site, node, reason=out.reason)
            record.put_out, record.put_out_at = True, out.time
            self.records[node] = record
            self.tell(f"{out.site} is put out of this run: {out.reason}")

    def _readmit(self, node: int) -> None:
        """The operator has taken a site back in."""
        record = self.record(node)
        record.put_out, record.faults, record.reason = False, 0, ""
        self._left_out.pop(node, None)
        self._once(node, f"{record.name} is readmitted by the operator")

    def _remove(self, node: int) -> None:
        """A node whose key the operator has removed."""
        name = self._name_of(node)
        if not name and node not in self.records:
            return
        record = self.record(node, name)
        record.reason = "its key is not registered any more"
        self._forget(node)
        self._once(node, f"{record.name} takes no part: {record.reason}")

    def _forget(self, node: int) -> None:
        """What a node was about to do, it does not."""
        self._talks.pop(node, None)
        for site in self.enrolled.values():
            site.here = site.here and site.node != node
        self.agreed = {name: site for name, site in self.agreed.items() if site.node != node}
        sums = self.column_sums
        self.column_sums = {name: entry for name, entry in sums.items() if entry[0] != node}

    def _name_of(self, node: int) -> str:
        """The site that a node is, as far as it has agreed to anything."""
        for site in (*self.enrolled.values(), *self.agreed.values()):
            if site.node == node:
                return site.name
        return self._names.get(node, "")

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
        self._check_name(node, name)
        site = self.enrolled.get(name) or self.agreed.get(name)
        earlier = site.node if site is not None else self._put_out_node(name, node)
        if earlier != node:
            registered = self.network.registered() or {}
            rotated = registered.get(node) == name and earlier not in registered
            if not rotated and (self.same_node or earlier in self.network.online()):
                raise ValueError(f"{name!r} is the name of another site (node {earlier})")
            self._move(name, earlier, node, pardoned=rotated)
            if site is not None:
                site.node = node
            if self.records[node].put_out:
                return
        talk.name = name
        self._names[node] = name
        self.record(node, name)
        if site is not None and name in self._known and reply.facts["run"] == self.run:
            self._welcome(site)
            return
        self._ask(node, Conversation(-1, "propose", name), Call("propose", encode(self.proposal)))

    def _propose(self, node: int, talk: Conversation, reply: Call) -> None:
        reply.expect("consent", {}, {"agreed": bool})
        record = self.record(node, talk.name)
        record.reason = "" if reply.facts["agreed"] else UNDECIDED
        if not reply.facts["agreed"]:
            self._leave_out(node, RETRY, f"{talk.name} {UNDECIDED}")
        elif self.sums is not None:
            self._ask(node, Conversation(-1, "sums", talk.name), Call("sums", self.sums))
        else:
            self.ask_agreement(node, talk.name)

    def _put_out_node(self, name: str, node: int) -> int:
        """Where a site was put out that has not agreed to anything; else `node`.

        With keys a key is put out, and another site may have the name that it had taken.
        """
        records = [r for r in self.records.values() if r.put_out and r.name == name]
        if self.same_node:
            registered = self.network.registered() or {}
            own = registered.get(node) == name
            records = [record for record in records if own and record.node not in registered]
        return next((record.node for record in records), node)

    def _move(self, name: str, earlier: int, node: int, pardoned: bool) -> None:
        """A site is back at another node: what is known of it goes with it.

        One that was put out still is, unless the operator has registered another key of it.
        """
        record = self.records.pop(earlier, None) or SiteRecord(name, node)
        record.node = node
        if pardoned:
            record.put_out, record.faults, record.reason = False, 0, ""
        if record.put_out:
            self.exclusions.add(name, node, record.reason)
        self.exclusions.remove(earlier)
        self.records[node] = record

    def _check_name(self, node: int, name: str) -> None:
        """Refuse, by ValueError, a name that is not this node's own.

        A key has one name: the one that the operator registered it under, or, where keys are
        numbered, the first that it came with.
        """
        registered = self.network.registered() or {}
        own = registered.get(node, "")
        if own and not NUMBERED.fullmatch(own) and name != own:
            raise ValueError(f"its key is registered as {own!r}, and it says {name[:40]!r}")
        if any(other != node and name == theirs for other, theirs in registered.items()):
            raise ValueError(f"{name!r} is the name of another key")
        if not self.same_node:
            return
        sites = (*self.enrolled.values(), *self.agreed.values())
        earlier = {site.node: site.name for site in sites}.get(node) or self._names.get(node, name)
        if earlier != name:
            raise ValueError(f"it was {earlier!r} before, and now says {name[:40]!r}")
        holder = next((n for n, theirs in self._names.items() if theirs == name and n != node), 0)
        if holder and holder in self.network.online():
            raise ValueError(f"{name!r} is the name of another site (node {holder})")

    def ask_agreement(self, node: int, name: str) -> None:
        """Tell a site what the run is about."""
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
        self.record(node, talk.name).reason = ""

    def _agree(self, node: int, talk: Conversation, reply: Call) -> None:
        if reply.tensors:
            raise ValueError("census: no tensors are expected")
        site = RegisteredSite.of(reply, talk.name, node)
        self._check_census(site)
        before = self.enrolled.get(site.name)
        if before is not None:
            if not before.same(site):
                raise ValueError("it has other clients or numbers of samples than before")
            before.node = node
            self._enrol_call(before)
            return
        self._tell_apart(site)
        self.agreed[site.name] = site

    def _check_census(self, site: RegisteredSite) -> None:
        """Refuse, by ValueError, what the contract and the terms of the server do not allow."""
        form = sample_form(self.agreement["data"])
        if site.form != form:
            raise ValueError(f"its samples are {site.form}, those of the contract {form}")
        if len(site.clients) > self.most_clients:
            raise ValueError(
                f"clients must be at most {self.most_clients}, got {len(site.clients)}"
            )
        largest = max(max(site.sizes(split)) for split in SPLITS)
        if largest > self.most_samples:
            raise ValueError(
                f"samples of a client must be at most {self.most_samples}, got {largest}"
            )

    def _tell_apart(self, site: RegisteredSite) -> None:
        """Ids of clients are a site's own: one that speaks for another site is refused, and one
        that happens to be another site's too has the site's name before it at the server."""
        everyone = (*self.enrolled.values(), *self.agreed.values())
        others = [other for other in everyone if other.name != site.name]
        names = {*(other.name for other in others), *(self.network.registered() or {}).values()}
        names |= {name for node, name in self._names.items() if node != site.node}
        names -= {site.name}
        owners = {str(client): other.name for other in others for client in other.ids}
        for client in map(str, site.ids):
            if client in names or client.rpartition("/")[0] in names:
                raise ValueError(f"client id {client[:40]!r} is in the name of another site")
        for client in map(str, site.ids):
            if client in owners:
                label = number = f"{site.name}/{client}"
                at = 1
                while number in owners:
                    at += 1
                    number = f"{label} ({at})"
                site.other_ids[client] = number
                self.tell(
                    f"{site.name} has a client {client!r}, and so has {owners[client]}; "
                    f"here it is {number!r}"
                )

    def _enrol(self, node: int, talk: Conversation, reply: Call) -> None:
        reply.expect_kind("status")
        self._welcome(self.enrolled[talk.name])

    def _welcome(self, site: RegisteredSite) -> None:
        site.here = True
        self._known.add(site.name)
        self._reported.pop(site.node, None)
        record = self.record(site.node, site.name)
        record.reason, record.refusals, record.faults = "", 0, 0
        self.tell(f"{site.name} takes part with {plural(len(site.ids), 'client')}")

    def _enrol_call(self, site: RegisteredSite) -> None:
        facts = {"wire_ids": site.wire_ids, **self.terms}
        self._ask(site.node, Conversation(-1, "enrol", site.name), Call("enrol", facts))

    # -- inside ----------------------------------------------------------------------------------
    def _ask(self, node: int, talk: Conversation, call: Call) -> None:
        talk.ticket = self.network.send_to(node, call.pack())
        self._talks[node] = talk

    def _leave_out(self, node: int, pause: float, text: str) -> None:
        self._left_out[node] = time.monotonic() + pause
        self._once(node, text)

    def _once(self, node: int, text: str) -> None:
        """Report it, unless it is what was last reported of this node."""
        if self._reported.get(node) != text:
            self._reported[node] = text
            self.tell(text)


def oversized(length: int, most: int) -> str:
    """What is said of a reply that is larger than any that was asked for."""
    return f"a reply of {length:,} bytes, where {most:,} are the most that was asked for"
