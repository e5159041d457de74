"""Hosts in other processes of this machine, each behind a Unix socket of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from pathlib import Path

from idiolect.deploy.site.sockets import TooLarge, exchange
from idiolect.engine.carriers import Carrier
from idiolect.host.calls import MOST_FRAME


class Sockets(Carrier):
    """Carries frames to hosts that listen on these paths, as `idiolect host start` does.

    A thread per host sends its frames one after the other, so that all hosts are at work at the
    same time. A host that does not answer within `seconds` is lost, as one that is not there.
    """

    def __init__(self, paths: Sequence[str | Path], seconds: float | None = None):
        self.paths = [str(path) for path in paths]
        self.seconds = seconds
        self._tickets = 0
        self._replies: queue.Queue[tuple[int, bytes | None]] = queue.Queue()
        self._todo: list[queue.Queue[tuple[int, bytes] | None]] = [queue.Queue() for _ in paths]
        self._threads = [
            threading.Thread(target=self._work, args=(n,), daemon=True, name=f"host-{n}")
            for n in range(len(paths))
        ]
        for thread in self._threads:
            thread.start()

    def send(self, host: int, frame: bytes) -> int:
        self._tickets += 1
        self._todo[host].put((self._tickets, frame))
        return self._tickets

    def receive(self, seconds: float) -> list[tuple[int, bytes | None]]:
        try:
            found = [self._replies.get(timeout=seconds)]
        except queue.Empty:
            return []
        while not self._replies.empty():
            found.append(self._replies.get())
        return found

    def close(self) -> None:
        for todo in self._todo:
            todo.put(None)
        for thread in self._threads:
            thread.join(timeout=5.0)

    def _work(self, host: int) -> None:
        while (item := self._todo[host].get()) is not None:
            ticket, frame = item
            try:
                reply = exchange(self.paths[host], frame, MOST_FRAME, self.seconds)
            except (OSError, EOFError, TooLarge):
                self._replies.put((ticket, None))
            else:
                self._replies.put((ticket, reply))
