"""Ray: hosts as actors on the machines of a cluster, one for each share of the clients.

A killed actor is started again by Ray, takes its rows from disk and is sent the calls of the round
again (`engine.retry`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ...host.service import HostRecipe
from .. import ray_cluster
from . import Carrier, EngineTraits, Place


class RayCarrier(Carrier):
    """Frames to actors and back."""

    def __init__(self, recipes: Sequence[HostRecipe], place: Place):
        self.ray = ray_cluster.connect(place)
        self.place = place
        self.recipes = [self.ray.put(recipe) for recipe in recipes]
        self.actors = ray_cluster.start_actors(self.ray, self.recipes, place)
        self._under_way: dict[Any, tuple[int, int, bytes]] = {}  # reference -> ticket, host, frame
        self._tickets = 0
        self._all_well = True  # no actor was ever lost

    def send(self, host: int, frame: bytes) -> int:
        self._tickets += 1
        self._send(self._tickets, host, frame)
        return self._tickets

    def _send(self, ticket: int, host: int, frame: bytes) -> None:
        self._under_way[self.actors[host].handle.remote(frame)] = (ticket, host, frame)

    def receive(self, seconds: float) -> list[tuple[int, bytes | None]]:
        if not self._under_way:
            time.sleep(seconds)
            return []
        ready, late = self.ray.wait(list(self._under_way), num_returns=1, timeout=seconds)
        if late:
            ready = ready + self.ray.wait(late, num_returns=len(late), timeout=0)[0]
        replies = []
        for reference in ready:
            ticket, host, frame = self._under_way.pop(reference)
            reply = self._reply(reference)
            if reply == ray_cluster.NO_HOST:  # restarted: it gets its recipe, then the frame
                self.actors[host].become.remote(self.recipes[host])
                self._send(ticket, host, frame)
            else:
                replies.append((ticket, reply))
        return replies

    def _reply(self, reference: Any) -> bytes | None:
        try:
            return self.ray.get(reference)
        except (self.ray.exceptions.RayActorError, self.ray.exceptions.ObjectLostError):
            self._all_well = False
            return None

    def close(self) -> None:
        """Actors that have nothing to do any more may serve the next run of this process."""
        for reference in self._under_way:
            self.ray.cancel(reference)
        idle = self._all_well and not self._under_way and self.ray.is_initialized()
        ray_cluster.release_actors(self.ray, self.actors, self.place, idle)
        self.actors = []
        self.recipes = []
        self._under_way = {}


ENGINE = EngineTraits("on a Ray cluster", RayCarrier, ask=ray_cluster.ask, cluster=True)
