"""Hosts of a run as actors on a Ray cluster."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..attacks import Attack
from ..data.federation import Census, Federation
from ..engine.arrivals import Pace, RemoteArrivals
from ..engine.carriers.ray import Place, RayCarrier, Recipe
from ..engine.engine import Engine
from ..engine.rounds import Remote
from ..host.calls import Call
from ..host.host import Host
from ..host.lazy_federation import LazyFederation
from ..host.remote_host import RemoteHost
from ..method import Method
from ..server.asynchronous import AsyncServer
from ..server.server import Server
from .session import Share, concurrency, data_of_clients
from .settings import Settings
from .survey import Load

HOSTS = ".hosts"  # in a run directory: rows of hosts that are at work


@dataclass(frozen=True)
class Given:
    """Data that travel to their host."""

    data: Federation

    def __call__(self) -> Federation:
        return self.data


@dataclass(frozen=True)
class ByName:
    """Data that their host loads itself."""

    load: Callable[[], Federation]  # the data of all clients
    wire_ids: Tensor
    attack: Attack | None = None
    seed: int = 0

    def __call__(self) -> Federation:
        return data_of_clients(self.load(), self.wire_ids, self.attack, self.seed)


class OnRay:
    """How hosts are made on Ray and reached there."""

    def __init__(
        self, settings: Settings, origin: dict[str, Any], seed: int, directory: Path | None
    ):
        self.settings = settings
        self.origin = origin
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="idiolect-hosts-")
            self.folder = Path(self._temporary.name)
        else:
            self.folder = directory.absolute() / HOSTS / f"seed-{seed}"
            shutil.rmtree(self.folder, ignore_errors=True)  # checkpoints have what is resumed from
        self.carrier: RayCarrier | None = None

    @property
    def place(self) -> Place:
        s = self.settings
        return Place(s.address, s.cpus_per_host, s.gpus_per_host)

    def hosts(self, shares: Sequence[Share]) -> Sequence[Host]:
        recipes = [self._recipe(number, share) for number, share in enumerate(shares)]
        self.carrier = RayCarrier(recipes, self.place)
        return [_stand_in(share) for share in shares]

    def _recipe(self, number: int, share: Share) -> Recipe:
        by_name = self._by_name(share.federation)
        load: Callable[[], Federation]
        if by_name is None:
            load = Given(share.data())
        else:
            load = ByName(by_name, share.wire_ids, share.attack, share.contract.task.seed)
        folder = str(self.folder / f"host-{number}")
        parts = (share.made, share.contract, load, share.wire_ids, share.settings, share.options)
        return Recipe(*parts, folder, self.place.threads)

    def _by_name(self, federation: Federation) -> Callable[[], Federation] | None:
        """How a host loads the data of all clients; None where they were given as an object."""
        if isinstance(federation, LazyFederation):
            return federation.load
        return Load(self.origin) if self.origin.get("data") else None

    def engine(self, server: Server, hosts: Sequence[Host], method: Method) -> Engine:
        assert self.carrier is not None
        s = self.settings
        remote = Remote(server, hosts, self.carrier, s.deadline, s.patience_for_hosts)
        for number, host in enumerate(hosts):
            assert isinstance(host, RemoteHost)
            host.ask = _asking(remote, number)
        if not s.asynchronous:
            return remote
        eligible = int(server.roster.eligible.sum())
        busy = concurrency(method, s, eligible, server.sample)
        arrivals = AsyncServer(server, s.staleness, s.buffer, s.change_from)
        return RemoteArrivals(remote, arrivals, Pace(busy, s.next_client))

    def leave(self, hosts: Sequence[Host]) -> None:
        for host in hosts:
            assert isinstance(host, RemoteHost)
            host.leave()

    def close(self) -> None:
        if self.carrier is not None:
            self.carrier.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._temporary is not None:
            self._temporary.cleanup()
            return
        with suppress(OSError):  # another seed is at work
            self.folder.parent.rmdir()


def _stand_in(share: Share) -> RemoteHost:
    census = share.federation
    if not isinstance(census, Census):
        census = Census.of_data(census)
    mine = census.of(share.wire_ids)
    return RemoteHost.of(share.contract, mine, share.wire_ids, share.settings, share.data)


def _asking(remote: Remote, number: int) -> Any:
    def ask(call: Call) -> Call:
        return remote.each({number: call})[number]

    return ask
