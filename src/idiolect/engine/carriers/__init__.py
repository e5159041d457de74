"""Carriers: how frames of bytes reach hosts in other processes, and how their replies come back.

A carrier has three functions. Everything else (who is asked, retries, deadlines, lost and repeated
replies) is written once above it, in `engine.retry`. Hosts in this process need no carrier.

A file in this folder is an engine that users can choose by its name; its `ENGINE` describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from ...host.service import HostRecipe


class Carrier:
    """Carries frames to hosts and back. Frames to one host arrive in order."""

    def send(self, host: int, frame: bytes) -> int:
        """Send a frame; returns a ticket that identifies its reply."""
        raise NotImplementedError

    def receive(self, seconds: float) -> list[tuple[int, bytes | None]]:
        """Replies by ticket, waiting this long for the first; None if the host is lost."""
        raise NotImplementedError

    def close(self) -> None:
        """No more frames will be sent."""


class SiteCarrier(Carrier):
    """Carries frames to sites, each behind a node of a network, which come and go."""

    def __init__(self) -> None:
        self.nodes: list[int] = []  # of each host; a host that comes back may have another
        self.why: dict[int, str] = {}  # node -> why its last frame has no reply

    def online(self) -> set[int]:
        """The nodes that are taken to be connected."""
        raise NotImplementedError

    def registered(self) -> dict[int, str] | None:
        """Nodes whose keys the operator has registered, by name; None: nodes have no keys."""
        return None

    def send_to(self, node: int, frame: bytes) -> int:
        """Send a frame to a node that is no host yet; returns a ticket."""
        raise NotImplementedError

    def send(self, host: int, frame: bytes) -> int:
        return self.send_to(self.nodes[host], frame)


@dataclass(frozen=True)
class Place:
    """Where the hosts of a cluster run."""

    address: str = ""  # of the cluster; "" = one that is started on this machine
    cpus: float = 1.0  # of each host
    gpus: float = 0.0

    @property
    def threads(self) -> int:
        """Of torch at each host."""
        return max(1, int(self.cpus))


@dataclass(frozen=True)
class EngineTraits:
    """Where the hosts of an engine are, and what the rest of a run has to know about it."""

    where: str  # for help texts: "hosts are ..."
    # starts a host of each recipe; None: a run does not start them
    start: Callable[[Sequence[HostRecipe], Place], Carrier] | None = None
    # answers a question where the data are: hosts load data by name, and no sample is in this
    # process; None: data are loaded in this process
    ask: Callable[[Callable[[], Any], Place], Any] | None = None
    remote: bool = True  # hosts are in other processes
    cluster: bool = False  # hosts are placed on the machines of a cluster, and may be restarted

    @property
    def loads_data(self) -> bool:
        """Whether hosts load data by name themselves."""
        return self.ask is not None


_names = sorted((module.name for module in iter_modules(__path__)), key=lambda n: (n != "local", n))
ENGINES: dict[str, EngineTraits] = {
    name: import_module(f"{__name__}.{name}").ENGINE for name in _names
}
