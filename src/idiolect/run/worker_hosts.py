"""Hosts of a run in other processes: worker processes on this machine, or actors of Ray."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..attacks import Attack
from ..data.federation import Census, Federation
from ..engine.carriers import Carrier
from ..engine.engine import Engine
from ..engine.remote_hosts import RemoteHosts
from ..engine.retry import HostCalls
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
        engine, place = self.settings.carrier, self.settings.place
        assert engine.start is not None
        threads = place.threads if engine.cluster else torch.get_num_threads() // len(shares)
        recipes = [
            HostRecipe(
                share.kind,
                share.contract,
                self._data(share),
                share.wire_ids,
                share.settings,
                share.options,
                max(1, threads),
                str(self.folder / f"host-{n}") if engine.cluster else "",
            )
            for n, share in enumerate(shares)
        ]
        self.carrier = engine.start(recipes, place)
        return [_proxy(share) for share in shares]

    def _data(self, share: Share) -> Callable[[], Federation]:
        """How a host loads its data: by name, or as they are if the run has them as an object."""
        load: Callable[[], Federation]
        if not self.settings.carrier.loads_data:
            return InlineData(share.data())
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
        calls = HostCalls(self.carrier, s.deadline, s.patience_for_hosts)
        group = RemoteHosts(hosts, calls, counters)
        for number, host in enumerate(hosts):
            assert isinstance(host, RemoteHost)
            host.ask = partial(group.ask, number)
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


def _proxy(share: Share) -> RemoteHost:
    census = share.federation
    if not isinstance(census, Census):
        census = Census.of_data(census)
    clients = census.of(share.wire_ids)
    local = Host(share.contract, clients, share.wire_ids, share.settings)
    return RemoteHost(local, share.data)
