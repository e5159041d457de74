"""Sites in this process, and a network between them and a server: what Flower carries, without it.

A site here is an `idiolect.host.Host` behind the calls of a deployed one, with none of its rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path

import torch

from idiolect.data.federation import SPLITS, Federation
from idiolect.engine.carriers import SiteCarrier
from idiolect.host.calls import Call
from idiolect.host.durable import Durable
from idiolect.host.host import Host, HostSettings
from idiolect.host.service import Service
from idiolect.run.plan import Plan
from idiolect.run.prepare import prepare
from idiolect.run.session import Session


class StandIn:
    """A site with these data; with a `folder` it goes on from its rows after a restart."""

    def __init__(self, name: str, data: Federation, folder: Path | None = None):
        self.name = name
        self.data = data
        self.folder = folder
        self.run: int | None = None
        self.service: Service | None = None
        self.calls: list[str] = []  # kinds of all calls

    def handle(self, frame: bytes) -> bytes:
        call = Call.open(frame)
        self.calls.append(call.kind)
        own = {
            "hello": self.hello,
            "propose": self.propose,
            "agree": self.agree,
            "enrol": self.enrol,
        }
        if call.kind in own:
            return own[call.kind](call).pack()
        if self.service is None:
            return Call("refused", {"reason": "nobody is enrolled yet"}).pack()
        return self.service.handle(frame)

    def hello(self, call: Call) -> Call:
        done = self.service.concluded if self.service else -1
        facts = {"idiolect": "0", "site": self.name, "run": self.run, "concluded": done}
        return Call("hello", facts)

    def propose(self, call: Call) -> Call:
        return Call("consent", {"agreed": True})

    def agree(self, call: Call) -> Call:
        facts = call.facts
        plan = Plan.read(facts["plan"], "plan")
        parts = prepare(
            plan.make_method(), plan.make_task(self.data), self.data, plan.make_settings()
        )
        made = Session(parts, facts["seed"], facts["run"])
        self.made, self.run = made, facts["run"]
        clients = [
            {"id": id, **{s: int(self.data.sizes(s)[k]) for s in SPLITS}}
            for k, id in enumerate(self.data.ids)
        ]
        inputs = [[str(self.data.inputs.dtype), list(self.data.shape)]]
        return Call("census", {"clients": clients, "inputs": inputs, "classes": self.data.classes})

    def enrol(self, call: Call) -> Call:
        if call.facts["checksum"] != self.made.contract.checksum:
            return Call("refused", {"reason": "another contract"})
        given = self.made.hosts[0].settings
        settings = HostSettings(
            batch=given.batch, validation=call.facts["validation"], metrics=given.metrics
        )
        wire_ids = torch.tensor(call.facts["wire_ids"])
        host = Host(self.made.contract, self.data, wire_ids, settings)
        durable = Durable(host, self.folder) if self.folder else None
        if durable:
            durable.load()
        self.service = Service(host, durable, masked=True)
        return Call("status", {"concluded": self.service.concluded})


class Wires(SiteCarrier):
    """Frames to sites by node; a node that is not in `sites` is gone."""

    def __init__(self, sites: dict[int, StandIn]):
        super().__init__()
        self.sites = sites
        self.sent: deque[tuple[int, int, bytes]] = deque()
        self.tickets = 0
        # (node, request, reply) -> the reply as it arrives; None: it is lost
        self.tamper: Callable[[int, bytes, bytes], bytes | None] = lambda node, asked, said: said
        self.silent: set[int] = set()  # nodes that take frames and never answer
        # (node, request) -> whether it gets lost, and nobody ever hears of it
        self.swallow: Callable[[int, Call], bool] = lambda node, asked: False

    def online(self) -> set[int]:
        return set(self.sites)

    def send_to(self, node: int, frame: bytes) -> int:
        self.tickets += 1
        self.sent.append((self.tickets, node, frame))
        return self.tickets

    def receive(self, seconds: float) -> list[tuple[int, bytes | None]]:
        found: list[tuple[int, bytes | None]] = []
        waiting = list(self.sent)
        self.sent.clear()
        for ticket, node, frame in waiting:
            if self.swallow(node, Call.open(frame)):
                continue
            if node in self.silent:
                self.sent.append((ticket, node, frame))
            elif node not in self.sites:
                self.why[node] = "the node is gone"
                found.append((ticket, None))
            else:
                said = self.sites[node].handle(frame)
                found.append((ticket, self.tamper(node, frame, said)))
        return found


def three(data: Federation, folder: Path | None = None) -> dict[int, StandIn]:
    """Sites of two clients each of six, by node."""
    names = ("east", "north", "south")
    parts = torch.arange(data.clients).tensor_split(3)
    return {
        100 + k: StandIn(name, data.of(part), folder / name if folder else None)
        for k, (name, part) in enumerate(zip(names, parts, strict=True))
    }
