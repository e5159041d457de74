"""Rounds per second of each system on each workload, and idiolect against each of them."""

from __future__ import annotations

from collections.abc import Iterator

from . import peers
from .loop import Loop
from .ours import Ours
from .timing import Times, least
from .workloads import PEERS, WORKLOADS

IDIOLECT = "idiolect"
LOOP = "loop, DataLoader"
INDEXED = "loop, indexing"
WALL = ("Flower",)  # systems of several processes: the wall clock, for idiolect too
TRIES = 5


def speeds(key: str, systems: list[str]) -> dict[str, Times]:
    work = WORKLOADS[key]
    here = {IDIOLECT: Ours(work), LOOP: Loop(work), INDEXED: Loop(work, indexed=True)}
    found = dict(
        zip(here, least(*(s.round for s in here.values()), tries=TRIES, warm=1), strict=True)
    )
    if key in PEERS:
        found |= {s: t for s in systems if (t := peers.measure(s, key))}
    return found


def figures() -> Iterator[dict]:
    systems = [s for s in peers.PACKAGES if peers.installed(s)]
    for key, work in WORKLOADS.items():
        found = speeds(key, systems)
        for system, times in found.items():
            clock = "wall" if system in WALL else "CPU"
            rate = {
                "value": 1 / (times.wall if system in WALL else times.cpu),
                "unit": "1/s",
                "goal": None,
                "better": "higher",
            }
            yield {
                "name": f"{system}: rounds per second, {work.label}",
                **rate,
                "workload": work.label,
                "system": system,
                "clock": clock,
            }
        for system, times in found.items():
            if system != IDIOLECT:
                ratio = (
                    times.wall / found[IDIOLECT].wall
                    if system in WALL
                    else times.cpu / found[IDIOLECT].cpu
                )
                yield {
                    "name": f"idiolect against {system}, {work.label}",
                    "value": ratio,
                    "unit": "x",
                    "goal": None,
                    "better": "higher",
                }
