"""What grows with the number of clients, beyond what fits on one machine: arithmetic.

`python -m benchmarks.on_ray beyond` prints the table of scale.md. What a message, a row and a frame
take follows from their form; what a client costs in time and memory was measured (`MEASURED`, by
the tables memory and methods of benchmarks/on_ray.py). Everything else is assumed: `Setting`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PARAMETERS = 10_010  # of the model: linear, 1,000 numbers to 10 classes
HEADER = 24  # bytes of a message beside its numbers
NUMBER = 4  # bytes: float32
ID = 8  # bytes: int64
FRAMES = 1024  # bytes of the heads of all frames to a host and back in a round


@dataclass(frozen=True)
class Setting:
    """What is assumed."""

    sample_bytes: int = 4_008  # 1,000 numbers and a class
    samples: int = 1  # of each client
    heard: int = 1_000  # clients per round
    rounds: int = 1_000
    host_bytes: int = 8 << 30  # memory of a host, which is one core


@dataclass(frozen=True)
class Measured:
    """Figures of `python -m benchmarks.on_ray overhead memory methods`, with 2 hosts."""

    driver: float = 373  # MiB, with 1,000 clients
    driver_bytes: float = 526  # of the driver for each client, while it trains
    tables_bytes: float = 1_570  # of the driver for each client, with the final tables
    host: float = 370  # MiB, with 1,000 clients of FedAvg
    empty: float = 0.0162  # seconds of a round with hardly any work
    fedavg: tuple[float, float] = (0.046, 0.083)  # seconds: of 10,000 and of 100,000 clients
    lpproj: tuple[float, float] = (0.233, 2.183)  # seconds: of 1,000 and of 10,000 clients
    heard: int = 100  # clients per round

    @property
    def driver_seconds(self) -> float:
        """Of a round, for each client that there is: FedAvg asks as many of them."""
        return (self.fedavg[1] - self.fedavg[0]) / 90_000

    @property
    def lpproj_seconds(self) -> float:
        """Of one core, for a client of lp-proj that trains."""
        return 2 * ((self.lpproj[1] - self.lpproj[0]) / 9_000 - self.driver_seconds)

    @property
    def fedavg_seconds(self) -> float:
        """Of one core, for a client of FedAvg that trains; what the driver does is among it."""
        return 2 * (self.fedavg[0] - self.empty) / self.heard


@dataclass(frozen=True)
class Kind:
    """A method, as far as it matters here."""

    name: str
    numbers: int  # of a message
    everyone: bool  # whether every client trains in every round, or those that are heard
    row_numbers: int  # that a client keeps
    counted: int  # numbers that a host tells of each client that trained, beside its gradients
    update_seconds: float  # of one core, for one client with one step


MEASURED = Measured()
SETTING = Setting()
FEDAVG = Kind("FedAvg", PARAMETERS, False, 0, 0, MEASURED.fedavg_seconds)
LPPROJ = Kind("lp-proj, 50 numbers", 50, True, PARAMETERS, 2, MEASURED.lpproj_seconds)
KINDS = (FEDAVG, LPPROJ)
ROW_COPIES = 2  # in memory: rows as they are, and those of a round while they are written
DISK_COPIES = 9  # at most, where every round changes all rows (see Durable.rewrite)


@dataclass(frozen=True)
class Needs:
    """What a run of so many clients takes."""

    hosts: int
    driver: float  # bytes of memory
    sent: int  # bytes per round between server and clients
    frames: int  # bytes per round between driver and hosts
    seconds: float  # per round
    rows: int  # bytes of all private rows


def needs(kind: Kind, clients: int, s: Setting = SETTING, m: Measured = MEASURED) -> Needs:
    """Hosts as many as their memory demands; the other figures with so many."""
    trained = clients if kind.everyone else min(s.heard, clients)
    heard = min(s.heard, clients)
    message = HEADER + NUMBER * kind.numbers
    row = NUMBER * kind.row_numbers
    held = clients * (ROW_COPIES * row + s.samples * s.sample_bytes)
    hosts = max(2, math.ceil(held / (s.host_bytes - m.host * 2**20)))
    told = ID * (3 + kind.counted)  # who trains; who has trained, with how many gradients, ...
    asked = (
        message + 4 * ID
    )  # a message, who is heard, its length and values, and whether it counted
    return Needs(
        hosts=hosts,
        driver=m.driver * 2**20 + clients * m.driver_bytes + 2 * heard * message,
        sent=(trained + heard) * message,
        frames=trained * told + heard * asked + hosts * (message + FRAMES),
        seconds=m.empty
        + clients * m.driver_seconds
        + trained * kind.update_seconds / min(hosts, trained),
        rows=clients * row,
    )


def text_of(bytes: float) -> str:
    """Bytes in words.

    >>> text_of(224_000), text_of(4e12)
    ('224 kB', '4.0 TB')
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if bytes >= size:
            found = bytes / size
            return f"{found:.1f} {unit}" if found < 10 else f"{found:,.0f} {unit}"
    return f"{bytes:.0f} B"


def rows(part: int = 1, turns: int = 1) -> Iterator[Sequence[str]]:
    """The lines of the table, its head first."""
    head = (
        "clients",
        "method",
        "hosts",
        "driver",
        "sent per round",
        f"in {SETTING.rounds:,} rounds",
    )
    yield (*head, "frames per round", "s per round", "private rows", "on disk, at most")
    for clients in (10**6, 10**8):
        for kind in KINDS:
            found = needs(kind, clients // part)
            totals = [found.driver, found.sent, found.sent * SETTING.rounds, found.frames]
            driver, sent, total, frames = map(text_of, totals)
            disk = text_of(DISK_COPIES * found.rows) if found.rows else "–"
            kept = text_of(found.rows) if found.rows else "–"
            figures = (f"{found.hosts:,}", driver, sent, total, frames, f"{found.seconds:.1f}")
            yield f"{clients // part:,}", kind.name, *figures, kept, disk
