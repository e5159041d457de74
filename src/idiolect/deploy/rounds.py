"""Synchronous rounds with sites of other owners, which come and go between rounds.

Before each round: who has gone is not asked any more, who is back takes part again under its wire
ids, who is new joins. A site that did not answer is greeted first, and asked again when it has
answered. What sites refuse, fail to do or send as nonsense costs their own messages only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from ..core.knobs import Factors
from ..engine.remote_hosts import RemoteHosts
from ..engine.retry import PATIENCE, HostCalls, NoReply
from ..engine.secure_rounds import SecureRounds
from ..host.calls import MOST_FACTS, REFUSED, Call
from ..host.host import HostSettings
from ..host.metrics import TargetForm
from ..host.remote_host import HostLike, SiteProxy
from ..privacy.sums.cost import most_bytes
from ..server.server import Server
from .config import Terms
from .registry import LOOK, MOST_FAULTS, RegisteredSite, SiteRegistry, census_of

GREETING = 10.0  # seconds in which those greeted before a round may answer
FRAME = MOST_FACTS + (1 << 16)  # bytes of a frame besides its tensors: facts, names, an error text
MESSAGE = 64  # bytes around the numbers of a message
SILENCE = 10.0  # seconds after which a site that says nothing is asked where it stands


class TooFewSites(RuntimeError):
    """Fewer sites are there than a round needs, for longer than the server waits."""


class SiteRounds(SecureRounds):
    """Rounds with sites."""

    def __init__(
        self,
        server: Server,
        registry: SiteRegistry,
        host_settings: HostSettings,
        form: TargetForm,  # of outputs and targets
        terms: Terms,
        sample_of: Callable[[int], int],  # clients heard, of this many
    ):
        self.proxies: list[HostLike] = []
        self.sites: list[RegisteredSite] = []  # of each proxy
        patience = min(PATIENCE, terms.deadline)
        calls = HostCalls(registry.network, terms.deadline, patience, SILENCE, strict=False)
        calls.on_unexpected = registry.receive_reply
        calls.most_reply = self.most_reply
        counters = server.contract.method.traits.counters
        self.remote = RemoteHosts(self.proxies, calls, counters, self._tell, self.present)
        super().__init__(server, self.remote, registry.tell)
        self.registry = registry
        self.host_settings = host_settings
        self.form = form
        self.terms = terms
        self.sample_of = sample_of
        # called before a new site's first round
        self.joined: Callable[[RegisteredSite], None] = lambda site: None
        # called before and after each round
        self.trained: Callable[[Server], None] = lambda server: None

    def add(self, site: RegisteredSite) -> None:
        """A site with wire ids, as the next host."""
        self.sites.append(site)
        wire_ids = torch.tensor(site.wire_ids)
        self.proxies.append(SiteProxy(census_of([site]), wire_ids, self.host_settings, self.form))
        self.registry.network.nodes.append(site.node)

    def advance(self, factors: Factors | None = None) -> None:
        self.trained(self.server)
        self.assemble()
        super().advance(factors)
        self._record()
        self.trained(self.server)

    def most_reply(self, host: int, call: Call) -> int:
        """Bytes that an honest reply to a call has at most."""
        tensors = call.tensors
        if call.kind == "sum":
            assert self.sum is not None
            return FRAME + len(tensors["wire_ids"]) * most_bytes(self.sum.plan)
        if call.kind == "update":
            _, message = self.server.contract.up_lengths(call.facts["version"])
            counters = 4 + len(self.remote.counted)
            return FRAME + len(tensors["train"]) * (message + 8 * counters)
        if call.kind == "answer":
            numbers = 2 * len(tensors["message"])  # 64 bits for each coordinate of 32
            return FRAME + len(tensors["asked"]) * (numbers + MESSAGE)
        if call.kind.startswith("evaluate"):
            metrics = self.host_settings.metrics
            columns = 6 + sum(metric.width(self.form) for metric in metrics)
            counts = sum(math.prod(metric.shape(self.form)) for metric in metrics)
            split = 8 * (len(tensors["wire_ids"]) * columns + counts)
            return FRAME + len(call.facts.get("splits", "1")) * split
        return FRAME

    def _record(self) -> None:
        """What became of each site's messages, for whoever watches; who breaks rules is put out."""
        # where the messages of most do not count, training has diverged (one malicious site is
        # enough for that), or a quorum is missing: it is nobody's fault that can be named
        sites = [counted > 0 for orders, _, counted in self.remote.tallies.values() if orders]
        most_counted = 2 * sum(sites) > len(sites)
        for n, (orders, received, counted) in self.remote.tallies.items():
            record = self.registry.record(self.sites[n].node, self.sites[n].name)
            no_reply = self.remote.no_replies.get(n)
            if no_reply is None:
                record.seen = time.time()
                record.rounds += 1
                rejected = max(min(orders, received) - counted, 0)
                record.rejected += rejected
                record.missing += orders - counted - rejected
                if counted:
                    record.faults, record.refused_orders, record.reason = 0, 0, ""
            else:
                record.missing += orders - counted
                record.reason = f"{no_reply.reason}: {no_reply.text}".rstrip(": ")
                if no_reply.reason == REFUSED and orders and not counted:
                    self.registry.order_refused(self.sites[n].node)
            malformed = no_reply is not None and no_reply.reason == "malformed"
            if malformed or (no_reply is None and orders and not counted and most_counted):
                self._blame(n, no_reply)

    def _blame(self, n: int, no_reply: NoReply | None) -> None:
        """A site has sent what no honest one sends; after several rounds of it, it is put out."""
        site = self.sites[n]
        record = self.registry.record(site.node, site.name)
        record.faults += 1
        text = no_reply.text if no_reply else "its messages were rejected"
        record.reason = text
        if record.faults >= MOST_FAULTS and not record.put_out:
            self.registry.put_out(site.node, f"{text} ({record.faults} rounds in a row)")

    def present(self, host: int) -> bool:
        """Not one that has just given no answer: the deadline has been waited for once."""
        no_reply = self.remote.no_replies.get(host)
        return self.sites[host].here and (no_reply is None or no_reply.reason == "malformed")

    # -- between rounds --------------------------------------------------------------------------
    def assemble(self) -> None:
        """Who takes part in the next round; TooFewSites where not enough come in time."""
        self._dismiss()
        begin = time.monotonic()
        new = [site for site in self.sites if site.name not in self.registry.enrolled]
        for site in new:  # it has agreed just now, and may have to load its data
            self.registry.enrol(site)
        first = begin + min(self.terms.deadline, self.terms.wait)
        self.registry.look()
        while self.registry.expecting(GREETING) or (
            not all(site.here for site in new) and time.monotonic() < first
        ):
            self.registry.look(LOOK)
            self._settle()

        def enough() -> bool:
            self._settle()
            return self.here >= self.terms.least

        if not self.registry.wait_until(enough, begin + self.terms.wait - time.monotonic()):
            raise TooFewSites(
                f"sites: {self.here} of the {self.terms.least} that a round needs are there, for "
                f"{self.terms.wait:g} seconds; the run can be resumed when they are back"
            )

    def check_complete(self) -> None:
        """Greet silent sites once more before the final evaluation; no site joins any more."""
        if not self.remote.no_replies:
            return
        self._dismiss()
        self.registry.look()

        def answered() -> bool:
            return not self.registry.expecting(GREETING) and self.here >= self.terms.least

        self.registry.wait_until(answered, max(self.terms.wait, GREETING))
        for n, site in enumerate(self.sites):
            self.registry.network.nodes[n] = site.node
        self.remote.no_replies = {}

    def _dismiss(self) -> None:
        """Who gave no answer does not take part until it has been greeted."""
        for n, no_reply in self.remote.no_replies.items():
            if no_reply.reason != "malformed":  # it is there; what it sends is its own affair
                self.sites[n].here = False

    @property
    def here(self) -> int:
        """How many sites take part."""
        return sum(site.here for site in self.sites)

    def _settle(self) -> None:
        """The roster as the sites are now."""
        roster = self.server.roster
        for site in list(self.registry.agreed.values()):
            self._join(site)
        for n, site in enumerate(self.sites):
            self.registry.network.nodes[n] = site.node
            if site.here and not bool(roster.eligible[site.wire_ids].any()):
                roster.rejoin(site.ids)
            elif not site.here:
                roster.leave(site.ids)
        eligible = int(roster.eligible.sum())
        if eligible:
            self.server.sample = self.sample_of(eligible)

    def _join(self, site: RegisteredSite) -> None:
        """A new site, from this round on."""
        site.joined = self.server.version
        site.wire_ids = self.server.enrol(list(site.ids), site.sizes("train")).tolist()
        self.server.roster.leave(site.ids)  # until it has said that it takes part
        self.joined(site)
        self.add(site)
        self.registry.enrol(site)

    def _tell(self, host: int, no_reply: NoReply) -> None:
        site = self.sites[host]
        reason = no_reply.text or self.registry.network.why.get(site.node, "")
        after = f": {reason}" if reason else ""
        if no_reply.oversized:
            self.registry.put_out(site.node, no_reply.text)
        else:
            self.registry.tell(f"{site.name} gives no message ({no_reply.reason}){after}")
