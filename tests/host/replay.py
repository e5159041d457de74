"""A host whose calls were recorded, so that they can be made again to another one."""

from __future__ import annotations

import hashlib

import torch

from engine.loopback import Loopback, remote_rounds
from engine.setting import bits, contract, hosts, server
from idiolect.host.calls import Call
from idiolect.host.durable import Durable
from idiolect.host.host import Host
from idiolect.host.service import Service


class Recorded:
    """What an engine has asked of the first of two hosts in some rounds, and its rows after each.

    `rows[v]` is a digest of all rows after version v; -1 stands for before the first.
    """

    def __init__(self, method: str, channel: str = "none", rounds: int = 6):
        self.agreed = contract(method, channel)
        behind = hosts(self.agreed, 2)
        carrier = Loopback([Service(h) for h in behind])
        engine = remote_rounds(server(self.agreed, sample=5), behind, carrier)
        self.rows = {-1: digest(behind[0])}
        for version in range(rounds):
            engine.advance()
            self.rows[version] = digest(behind[0])
        self.calls = [frame for n, frame, _ in carrier.frames if n == 0]
        self.replies = [reply for n, _, reply in carrier.frames if n == 0]
        self.rounds = rounds

    def host(self) -> Host:
        """A new host of the same clients."""
        return hosts(self.agreed, 2)[0]

    def of(self, version: int) -> list[bytes]:
        """The calls of one round."""
        return [frame for frame in self.calls if Call.open(frame).facts["version"] == version]

    def replayed(self, service: Service, start: int = 0, end: int | None = None) -> None:
        for version in range(start, self.rounds if end is None else end):
            for frame in self.of(version):
                assert Call.open(service.handle(frame)).kind != "failed"


def service_on(recorded: Recorded, folder, begun: bool = False) -> Service:
    """A new process, so to speak, that goes on from what is in a folder."""
    durable = Durable(recorded.host(), folder)
    durable.load(begun)
    return Service(durable.host, durable)


def digest(host: Host) -> str:
    """SHA-256 of all rows."""
    everyone = torch.arange(host.data.clients)
    found = hashlib.sha256()
    for name, store in sorted(host.stores().items()):
        for part, t in sorted(store.read(everyone).items()):
            found.update(f"{name} {part}".encode() + bits(t).numpy().tobytes())
    return found.hexdigest()


def said(reply: bytes) -> tuple:
    """What a reply says, but for what is on disk."""
    call = Call.open(reply)
    facts = {n: v for n, v in call.facts.items() if n != "written"}
    return call.kind, facts, {n: bits(t).tolist() for n, t in call.tensors.items()}
