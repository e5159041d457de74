"""Hosts of a run in other processes: worker processes on this machine, or actors of Ray."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..attacks import Attack
from ..data.federation import Census, Federation
from ..engine.carriers import Carrier
from ..engine.engine import Engine
from ..engine.remote_hosts import RemoteHosts
from ..host.calls import Call
from ..host.host import Host
from ..host.lazy_federation import LazyFederation
from ..host.remote_host import HostLike, RemoteHost
from ..host.service import HostRecipe
from ..method import Method
from ..server.server import Server
from .session import Share, build_engine, data_of_clients
from .settings import Settings
from .survey import Load

HOSTS = ".hosts"  # in a run directory: rows of hosts that are at work


@dataclass(frozen=True)
class InlineData:
    """Data that are sent to their host."""

    data: Federation

    def __call__(self) -> Federation:
        return self.data


@dataclass(frozen=True)
class NamedData:
    """Data that their host loads itself."""

    load: Callable[[], Federation]  # the data of all clients
    wire_ids: Tensor
    attack: Attack | None = None
    seed: int = 0

    def __call__(self) -> Federation:
        return data_of_clients(self.load(), self.wire_ids, self.attack, self.seed)


class WorkerHosts:
    """Starts the hosts of a seed in other processes and reaches them by a carrier."""

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
            shutil.rmtree(self.folder, ignore_errors=True)  # a resumed run reads checkpoints
        self.carrier: Carrier | None = None

    def hosts(self, shares: Sequence[Share]) -> Sequence[HostLike]:
        self.carrier = self._carrier(shares)
        return [_proxy(share) for share in shares]

    def _carrier(self, shares: Sequence[Share]) -> Carrier:
        if self.settings.engine == "processes":
            from ..engine.carriers.processes import ProcessCarrier

            threads = max(1, torch.get_num_threads() // len(shares))
            recipes = [_recipe(share, InlineData(share.data()), threads) for share in shares]
            return ProcessCarrier(recipes)
        from ..engine.carriers.ray import RayCarrier

        place = self.settings.place
        recipes = [
            _recipe(share, self._data(share), place.threads, str(self.folder / f"host-{n}"))
            for n, share in enumerate(shares)
        ]
        return RayCarrier(recipes, place)

    def _data(self, share: Share) -> Callable[[], Federation]:
        """How a host loads its data: by name, or as they are if the run has them as an object."""
        load: Callable[[], Federation]
        if isinstance(share.federation, LazyFederation):
            load = share.federation.load
        elif self.origin.get("data"):
            load = Load(self.origin)
        else:
            return InlineData(share.data())
        return NamedData(load, share.wire_ids, share.attack, share.contract.task.seed)

    def engine(self, server: Server, hosts: Sequence[HostLike], method: Method) -> Engine:
        assert self.carrier is not None
        s = self.settings
        counters = server.contract.method.traits.counters
        group = RemoteHosts(hosts, self.carrier, counters, s.deadline, s.patience_for_hosts)
        for number, host in enumerate(hosts):
            assert isinstance(host, RemoteHost)
            host.ask = _asking(group, number)
        return build_engine(server, group, s, method)

    def leave(self, hosts: Sequence[HostLike]) -> None:
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


def _recipe(
    share: Share, load: Callable[[], Federation], threads: int, folder: str = ""
) -> HostRecipe:
    return HostRecipe(
        share.kind,
        share.contract,
        load,
        share.wire_ids,
        share.settings,
        share.options,
        threads,
        folder,
    )


def _proxy(share: Share) -> RemoteHost:
    census = share.federation
    if not isinstance(census, Census):
        census = Census.of_data(census)
    clients = census.of(share.wire_ids)
    local = Host(share.contract, clients, share.wire_ids, share.settings)
    return RemoteHost(local, share.data)


def _asking(group: RemoteHosts, number: int) -> Callable[[Call], Call]:
    def ask(call: Call) -> Call:
        return group.each({number: call})[number]

    return ask
