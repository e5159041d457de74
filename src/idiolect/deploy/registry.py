"""The sites of a federation: greeted, offered the agreement, enrolled.

The registry talks to each site separately, step by step (hello, agree, enrol), and waits for none.
A site that refuses, fails or answers nonsense is left out with a reported reason, and tried again
later. What sites report about themselves is checked as foreign input.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core.files import check_object
from ..core.types import Id
from ..data.federation import Census
from ..data.splits import SPLITS
from ..engine.carriers import SiteCarrier
from ..host.calls import FAILED, REFUSED, Call

MOST_CLIENTS = 1 << 20  # of a site
MOST_SAMPLES = 1 << 40  # of a client
MOST_NAME = 200  # characters of an id or of the name of a site
KINDS = {str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.int64)}

SampleForm = tuple[
    str, tuple[int, ...], int
]  # of one sample: dtype, shape; and the number of classes


@dataclass
class RegisteredSite:
    """A site that has agreed: its clients, where it is, and since when it takes part."""

    name: str
    node: int  # where the carrier finds it
    ids: list[Id]  # of its clients
    sizes: dict[str, list[int]]  # split -> samples of each client
    form: SampleForm
    joined: int = 0  # the version of the first round that its clients could take part in
    wire_ids: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    here: bool = True  # whether it is asked

    def same(self, other: RegisteredSite) -> bool:
        """Whether these are the same clients with as many samples."""
        mine, theirs = (self.ids, self.sizes, self.form), (other.ids, other.sizes, other.form)
        return self.name == other.name and mine == theirs

    def census(self) -> Census:
        return census_of([self])

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for a run directory."""
        kind, shape, classes = self.form
        rows = [
            {"id": id, **{s: self.sizes[s][k] for s in SPLITS}} for k, id in enumerate(self.ids)
        ]
        return {
            "site": self.name,
            "node": str(self.node),  # 64 bits, which JSON's numbers do not have everywhere
            "joined": self.joined,
            "wire_ids": self.wire_ids.tolist(),
            "clients": rows,
            "inputs": [[kind, list(shape)]],
            "classes": classes,
        }

    @classmethod
    def from_dict(cls, saved: Any) -> RegisteredSite:
        """The inverse; ValueError for anything else."""
        facts = dict(check_object(saved))
        kinds = {"site": str, "node": str, "joined": int, "wire_ids": list[int]}
        facts_of_server = check_object({k: facts.pop(k, None) for k in kinds}, kinds)
        site = read_census(
            Call("census", facts), facts_of_server["site"], int(facts_of_server["node"])
        )
        site.joined = facts_of_server["joined"]
        site.wire_ids = torch.tensor(facts_of_server["wire_ids"], dtype=torch.int64)
        if len(site.wire_ids) != len(site.ids) or bool((site.wire_ids.diff() <= 0).any()):
            raise ValueError(f"{site.name}: a wire id per client, increasing")
        return site


def read_census(call: Call, name: str, node: int) -> RegisteredSite:
    """A site's answer to what the federation is about; ValueError for anything else."""
    call.expect("census", {}, {"clients": list, "inputs": list, "classes": int})
    rows = call.facts["clients"]
    if not 1 <= len(rows) <= MOST_CLIENTS:
        raise ValueError(f"census: from 1 to {MOST_CLIENTS} clients are expected, not {len(rows)}")
    ids: list[Id] = []
    sizes: dict[str, list[int]] = {split: [] for split in SPLITS}
    for row in rows:
        check_object(row, {"id": str | int, **dict.fromkeys(SPLITS, int)})
        if len(str(row["id"])) > MOST_NAME or any(
            not 0 <= row[split] <= MOST_SAMPLES for split in SPLITS
        ):
            raise ValueError("census: ids are short, and samples whole numbers >= 0")
        ids.append(row["id"])
        for split in SPLITS:
            sizes[split].append(row[split])
    if len({str(id) for id in ids}) < len(ids):
        raise ValueError("census: two clients have the same id")
    return RegisteredSite(
        name, node, ids, sizes, _form(call.facts["inputs"], call.facts["classes"])
    )


def _form(inputs: list[Any], classes: int) -> SampleForm:
    try:
        ((kind, shape),) = inputs
    except (TypeError, ValueError):
        raise ValueError("census: 'inputs' is [[dtype, shape]]") from None
    whole = isinstance(shape, list) and all(type(n) is int and 0 < n <= 1 << 30 for n in shape)
    if kind not in KINDS or not whole or not 0 <= classes <= 1 << 24:
        raise ValueError("census: 'inputs' is [[dtype, shape]], 'classes' a whole number >= 0")
    return kind, tuple(shape), classes


def census_of(sites: list[RegisteredSite], name: str = "sites") -> Census:
    """All clients of sites that have samples of the same form, in their order."""
    kind, shape, classes = sites[0].form
    ids = [id for site in sites for id in site.ids]
    sizes = {split: [n for site in sites for n in site.sizes[split]] for split in SPLITS}
    return Census.of_sizes(ids, sizes, classes, shape, KINDS[kind], name)


RETRY = 5.0  # seconds until a node that was left out is greeted again
LOST = 10.0  # seconds until a silent node is greeted again: the message may be lost
MOST_REASON = 500  # characters kept of a reason given by a site


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
    enrolled: dict[str, RegisteredSite] = field(
        default_factory=dict
    )  # by name: those that are enrolled
    agreed: dict[str, RegisteredSite] = field(default_factory=dict)  # by name: those that could be
    # the facts of the calls "sums" that come before an agreement can be made; None: it is made
    sums: dict[str, Any] | None = None
    column_sums: dict[str, tuple[int, dict[str, Any]]] = field(
        default_factory=dict
    )  # name -> node, sums
    check_sums: Callable[[str, dict[str, Any]], None] = lambda name, columns: None  # or ValueError
    _talks: dict[int, Conversation] = field(default_factory=dict)  # by node
    _left_out: dict[int, float] = field(default_factory=dict)  # node -> when it is tried again
    _enrolled: set[str] = field(default_factory=set)  # names of those that were here before
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

    @property
    def talking(self) -> bool:
        """Whether an answer is waited for."""
        return bool(self._talks)

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
            raise ValueError(f"site: a short name is expected, not {name[:40]!r}")
        site = self.enrolled.get(name) or self.agreed.get(name)
        if site is not None and site.node != node:
            if self.same_node or site.node in self.network.online():
                raise ValueError(f"{name!r} is the name of another site (node {site.node})")
            site.node = node
        talk.name = name
        if site is not None and name in self._enrolled and reply.facts["run"] == self.run:
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
        site = read_census(reply, talk.name, node)
        before = self.enrolled.get(site.name)
        if before is not None:
            if not before.same(site):
                raise ValueError("it has other clients or numbers of samples than before")
            before.node = node
            self._enrol_call(before)
            return
        owners = {str(id): s.name for s in self._all() for id in s.ids if s.name != site.name}
        for id in site.ids:
            if str(id) in owners:
                raise ValueError(f"duplicate client id {str(id)!r} (already at {owners[str(id)]})")
        form = next((s.form for s in self._all() if s.name != site.name), site.form)
        if form != site.form:
            raise ValueError(f"its samples are {site.form}, those of the others {form}")
        self.agreed[site.name] = site

    def _enrol(self, node: int, talk: Conversation, reply: Call) -> None:
        if reply.kind != "status":
            raise ValueError(f"{reply.kind[:40]!r} came where 'status' is expected")
        self._welcome(self.enrolled[talk.name])

    def _welcome(self, site: RegisteredSite) -> None:
        site.here = True
        self._enrolled.add(site.name)
        self._reported -= {text for text in self._reported if text.startswith(site.name)}
        self.tell(f"{site.name} takes part with {len(site.ids)} client(s)")

    def _enrol_call(self, site: RegisteredSite) -> None:
        facts = {"wire_ids": site.wire_ids.tolist(), **self.terms}
        self._ask(site.node, Conversation(-1, "enrol", site.name), Call("enrol", facts))

    # -- inside ----------------------------------------------------------------------------------
    def _all(self) -> Sequence[RegisteredSite]:
        return (*self.enrolled.values(), *self.agreed.values())

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
