"""Carriers: how frames of bytes reach hosts in other processes, and how their replies come back.

A carrier has three functions. Everything else (who is asked, retries, deadlines, lost and repeated
replies) is written once above it, in `engine.retry`. Hosts in this process need no carrier.
"""

from __future__ import annotations

from dataclasses import dataclass


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


@dataclass(frozen=True)
class EngineTraits:
    """What the rest of a run has to know about where its hosts are."""

    remote: bool = True  # hosts are in other processes
    cluster: bool = False  # hosts are placed on the machines of a cluster, and may be restarted
    loads_data: bool = False  # hosts load data by name themselves: no sample is in this process


ENGINES = {
    "local": EngineTraits(remote=False),
    "processes": EngineTraits(),
    "ray": EngineTraits(cluster=True, loads_data=True),
    "flower": EngineTraits(loads_data=True),
}
