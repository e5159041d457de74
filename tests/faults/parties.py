"""Two runs side by side: one with faults, and one in which the clients that failed never took part.

The second one is told, round by round, whose messages counted in the first. It has no fault, no
checkpoint and no crash; after a crash of the first it is made anew from what is left of its log.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from engine.setting import FEDERATION, RUN, TASK, bits, of_server
from faults.engine import ENGINES, FaultyHost, Post, ScriptedHost, ScriptedServer
from faults.fileops import at_operation, full_disk
from idiolect.attacks import parse_attack
from idiolect.attacks.malicious import MaliciousHost
from idiolect.channels import parse_channel
from idiolect.host.host import Host, HostSettings
from idiolect.methods import make_method
from idiolect.run import checkpoint
from idiolect.server.protocol import Contract
from idiolect.server.roster import Roster
from idiolect.server.rules import parse_rule
from idiolect.server.server import Server
from idiolect.server.step import ServerStep

HOSTS = ([0, 1], [2, 3])  # wire ids of the hosts there are from the start
NEWCOMERS = (4, 5)  # join with a host of their own each
SETTINGS = HostSettings(batch=8, chunk=1)  # a row's last bits may depend on the rows beside it
SMALL = {"lp-proj": {"dim": 6}}


@dataclass(frozen=True)
class Setting:
    """What a schedule is played on."""

    method: str
    channel: str = "none"
    rule: str = "mean"
    quorum: int = 1
    sample: int = 3
    attack: str = ""  # of the clients of the second host
    optimizer: str = "sgd"
    engine: str = "in-process"

    def contract(self) -> Contract:
        bound = TASK.under(dtype=torch.float32, kernel="auto", seed=3)
        method = make_method(self.method, **SMALL.get(self.method, {}))
        return Contract(method, bound, parse_channel(self.channel), RUN)

    def server(self, contract: Contract, cls: type[Server] = Server) -> Server:
        roster = Roster()
        first = [k for ids in HOSTS for k in ids]
        sizes = FEDERATION.sizes("train")
        roster.enrol([FEDERATION.ids[k] for k in first], sizes[first].tolist())
        step = ServerStep(self.optimizer, lr=0.1) if self.optimizer != "sgd" else None
        return cls(
            contract,
            roster,
            rule=parse_rule(self.rule),
            step=step,
            sample=self.sample,
            quorum=self.quorum if cls is Server else 1,
        )

    def host(self, contract: Contract, wire_ids: list[int]) -> Host:
        ids = torch.tensor(wire_ids)
        arguments = (contract, FEDERATION.of(ids), ids, SETTINGS)
        if self.attack and wire_ids == HOSTS[1]:
            return MaliciousHost(*arguments, attack=parse_attack(self.attack))
        return Host(*arguments)


def enrol(server: Server, client: int) -> None:
    size = int(FEDERATION.sizes("train")[client])
    assert server.enrol([FEDERATION.ids[client]], [size]).tolist() == [client]


# -- the run with faults ---------------------------------------------------------------------------
@dataclass
class Faulty:
    """A server and hosts behind a faulty network, with checkpoints in a folder."""

    setting: Setting
    folder: Path
    post: Post = field(default_factory=Post)
    places: list[list[int]] = field(default_factory=lambda: [list(ids) for ids in HOSTS])

    def __post_init__(self) -> None:
        self.contract = self.setting.contract()
        self.server = self.setting.server(self.contract)
        self.hosts = [self._behind(ids) for ids in self.places]
        self.bound = checkpoint.Bound("schedule", 0, "", self.contract.checksum)

    def _behind(self, wire_ids: list[int]) -> FaultyHost:
        return FaultyHost(self.setting.host(self.contract, wire_ids), self.post)

    def advance(self) -> None:
        self.post.arrived.clear()
        ENGINES[self.setting.engine](self.server, self.hosts).advance()

    def join(self, client: int) -> None:
        enrol(self.server, client)
        self.places.append([client])
        self.hosts.append(self._behind([client]))

    # -- what survives a crash -------------------------------------------------------------------
    def save(self, full_at: int = 0) -> bool:
        """A checkpoint; with `full_at`, the disk is full at that file operation. Whether it worked.

        The server alone is saved too, as where it is another machine than the hosts'.
        """
        tensors, facts = self.server.save()
        parts = {f"host-{i}": host.save for i, host in enumerate(self.hosts)}
        with at_operation(self.folder, full_at, full_disk) as operations:
            try:
                checkpoint.save(
                    self.folder / "all",
                    self.bound,
                    self.server.version,
                    {"server": tensors},
                    facts,
                    parts,
                )
            except OSError:
                assert full_at
                return False
        self.operations = len(operations)
        return True

    def newest(self, name: str = "all") -> checkpoint.Checkpoint:
        return checkpoint.load(self.folder / name, self.bound, 1000, 1 << 30)

    def load(self, places: list[list[int]]) -> None:
        """Everything is lost; server and hosts are made anew from the newest checkpoint."""
        found = self.newest()
        self.places = [list(ids) for ids in places]
        self.server = self._server_of(found)
        self.hosts = [self._behind(ids) for ids in self.places]
        for i, host in enumerate(self.hosts):
            host.real.load(found.path / f"host-{i}")

    def _server_of(self, found: checkpoint.Checkpoint) -> Server:
        server = self.setting.server(self.contract)
        tensors = found.read("server", lambda shapes: server.check(shapes, found.facts))
        server.load(tensors, found.facts)
        return server

    def lose_server_in_a_round(self) -> None:
        """The hosts have done their work for the round; the server is killed before it is closed.

        It comes back from what it saved before the round, and the round is opened again.
        """
        tensors, facts = self.server.save()
        folder = self.folder / "server"
        shutil.rmtree(folder, ignore_errors=True)  # of a time that a crash may have undone
        checkpoint.save(folder, self.bound, self.server.version, {"server": tensors}, facts)
        order = self.server.open().order
        for host in self.hosts:
            host.real.update(order)
        self.server = self._server_of(self.newest("server"))

    def restart(self, i: int) -> None:
        """A host stops and starts again, with what it saved on its way out."""
        folder = self.folder / f"restart-{i}"
        self.hosts[i].real.save(folder)
        self.hosts[i] = self._behind(self.places[i])
        self.hosts[i].real.load(folder)

    def back_up(self, i: int) -> None:
        self.hosts[i].real.save(self.folder / f"backup-{self.places[i]}")

    def restore(self, i: int) -> None:
        """A host is lost and comes back from its backup, with old rows."""
        self.hosts[i] = self._behind(self.places[i])
        self.hosts[i].real.load(self.folder / f"backup-{self.places[i]}")

    def kept(self) -> dict[str, Tensor]:
        """All that server and hosts keep; of a round that is under way, what was before it."""
        return of_server(self.server) | rows_before(self.server.version, self.hosts)


# -- the run without -------------------------------------------------------------------------------
@dataclass
class Model:
    """The same run, in which whoever failed was not selected. A log is all it is made of."""

    setting: Setting
    log: list[tuple] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.contract = self.setting.contract()
        self.server = self.setting.server(self.contract, ScriptedServer)
        self.places = [list(ids) for ids in HOSTS]
        self.hosts = [ScriptedHost(self.setting.host(self.contract, ids)) for ids in HOSTS]
        self.backups: dict[int, tuple[dict, dict]] = {}
        log, self.log = self.log, []
        for step, *arguments in log:
            self.do(step, *arguments)

    def do(self, step: str, *arguments) -> None:
        self.log.append((step, *arguments))
        getattr(self, f"_{step}")(*arguments)

    def _round(self, counted: list[int], altered: dict[int, bytes]) -> None:
        self.server.script = torch.tensor(counted, dtype=torch.int64)
        for host in self.hosts:
            host.altered = altered
        ENGINES[self.setting.engine](self.server, self.hosts).advance()

    def _join(self, client: int) -> None:
        enrol(self.server, client)
        self.places.append([client])
        self.hosts.append(ScriptedHost(self.setting.host(self.contract, [client])))

    def _leave(self, client: int) -> None:
        self.server.roster.leave([FEDERATION.ids[client]])

    def _rejoin(self, client: int) -> None:
        self.server.roster.rejoin([FEDERATION.ids[client]])

    def _back_up(self, i: int) -> None:
        host = self.hosts[i].real
        copies = ({n: t.clone() for n, t in s.save().items()} for s in (host.store, host.coder))
        self.backups[i] = tuple(copies)

    def _restore(self, i: int) -> None:
        host = self.hosts[i].real
        for store, rows in zip((host.store, host.coder), self.backups[i], strict=True):
            store.load({n: t.clone() for n, t in rows.items()})

    def kept(self) -> dict[str, Tensor]:
        return of_server(self.server) | rows_before(self.server.version, self.hosts)


def rows_before(version: int, hosts: list) -> dict[str, Tensor]:
    """Private rows and rows of the channel before this round, sorted by wire id."""
    order = torch.cat([h.wire_ids for h in hosts]).argsort()
    out = {}
    for part in ("store", "coder"):
        rows = [getattr(h, part).read(torch.arange(h.data.clients), version) for h in hosts]
        out |= {f"{part}.{n}": torch.cat([r[n] for r in rows])[order] for n in rows[0]}
    return out


def digest(kept: dict[str, Tensor]) -> str:
    """SHA-256 of everything that server and hosts keep."""
    out = hashlib.sha256()
    for name, t in sorted(kept.items()):
        out.update(name.encode() + bits(t).numpy().tobytes())
    return out.hexdigest()


def differences(a: dict[str, Tensor], b: dict[str, Tensor]) -> list[str]:
    names = sorted(a.keys() ^ b.keys())
    return names + [n for n in a.keys() & b.keys() if not torch.equal(bits(a[n]), bits(b[n]))]
