"""Real time: hosts in worker processes, whose clients are done when they are done.

Each process holds one host, its data and its private rows, and works off its orders one after the
other. Orders, messages and verdicts travel through pipes as plain bytes. For evaluations and
checkpoints the processes write their rows to a folder, from which the host of the same clients in
this process takes them over.
"""

from __future__ import annotations

import multiprocessing
import pickle
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from ..core.knobs import SettingError
from ..host.host import Host
from ..server.protocol import RoundConclusion, RoundRequest
from ..server.server import Server
from .clocks import Delivery, PendingUpdate, RealClock
from .worker import receive, send, work

SECONDS_TO_END = 10.0  # that a process gets to end by itself


@dataclass
class Workers(RealClock):
    """The real clock: as `Flights`, with processes in place of a queue."""

    server: Server
    hosts: Sequence[Host]
    threads: int = 1  # of each process

    def __post_init__(self) -> None:
        self.under_way: dict[int, PendingUpdate] = {}
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._arrived: deque[Delivery] = deque()
        self._at = {int(k): n for n, host in enumerate(self.hosts) for k in host.wire_ids}
        self._here = True  # whether the rows of the hosts in this process are the newest

    def start(self, order: RoundRequest) -> None:
        """These clients start now."""
        if not self._processes:
            self._begin()
        assert order.turns is not None
        for wire_id, turn in zip(order.train.tolist(), order.turns.tolist(), strict=True):
            head = {
                "kind": "order",
                "client": wire_id,
                "turn": turn,
                "version": order.version,
                "factors": dict(order.factors),
            }
            send(self._pipes[self._at[wire_id]], head, order.down)
            self.under_way[wire_id] = PendingUpdate(order.version, self.now, self.now)

    def next(self) -> Delivery:
        """The next message, as soon as there is one."""
        while not self._arrived:
            self._read_all()
        return self._arrived.popleft()

    def conclude(self, wire_id: int, verdict: RoundConclusion) -> None:
        """The client learns whether its message counted."""
        head = {
            "kind": "verdict",
            "client": wire_id,
            "version": verdict.version,
            "counted": len(verdict.counted) > 0,
        }
        send(self._pipes[self._at[wire_id]], head)
        self._here = False

    def bring_home(self) -> None:
        """The newest rows of all clients, to the hosts in this process."""
        if self._here or not self._processes:
            return
        with tempfile.TemporaryDirectory(prefix="idiolect-rows-") as folder:
            self._saved = 0
            for n, pipe in enumerate(self._pipes):
                send(pipe, {"kind": "save", "folder": f"{folder}/{n}"})
            while self._saved < len(self._pipes):
                self._read_all()
            for n, host in enumerate(self.hosts):
                host.load(Path(folder) / str(n))
        self._here = True

    def close(self) -> None:
        """Training is over: rows come home, processes end."""
        if not self._processes:
            return
        try:
            if all(process.is_alive() for process in self._processes):
                self.bring_home()
        finally:
            for pipe in self._pipes:
                with suppress(OSError):
                    send(pipe, {"kind": "stop"})
                pipe.close()
            for process in self._processes:
                process.join(SECONDS_TO_END)
                if process.is_alive():
                    process.terminate()
                    process.join()
            self._processes = []
            self._pipes = []

    # -- processes -------------------------------------------------------------------------------
    def _begin(self) -> None:
        """A process for each host, with its rows as they are."""
        context = multiprocessing.get_context("spawn")
        with tempfile.TemporaryDirectory(prefix="idiolect-rows-") as folder:
            for n, host in enumerate(self.hosts):
                ours, theirs = context.Pipe()
                path = f"{folder}/{n}"
                host.save(Path(path))
                process = context.Process(
                    target=work, args=(theirs, host.recipe(), path, self.threads), daemon=True
                )
                try:
                    process.start()
                except (pickle.PicklingError, AttributeError, TypeError) as error:
                    raise SettingError(
                        "clock: 'real' is not accepted, for a worker process cannot be given this "
                        f"run ({error}); model, method and loss must be found by their names in a "
                        "module: a class or a function, no lambda"
                    ) from None
                theirs.close()
                self._pipes.append(ours)
                self._processes.append(process)
            for n, _ in enumerate(self._pipes):
                self._read(n)  # it has its rows
        self._began = time.monotonic()

    def _read_all(self) -> None:
        """What those processes say that have something to say: wait for one of them at least."""
        for speaking in wait(self._pipes):
            self._read(self._pipes.index(speaking))  # type: ignore[arg-type]

    def _read(self, n: int) -> None:
        """What a process says."""
        try:
            head, body = receive(self._pipes[n])
        except (EOFError, OSError):
            self._processes[n].join(SECONDS_TO_END)
            raise RuntimeError(
                f"worker process {n + 1} of {len(self._processes)} has ended by itself "
                f"(exit code {self._processes[n].exitcode}); the run can be resumed"
            ) from None
        if head["kind"] == "error":
            raise RuntimeError(f"in worker process {n + 1}:\n{head['text']}")
        if head["kind"] == "saved":
            self._saved += 1
        if head["kind"] == "sent":
            wire_id = head["client"]
            flight = self.under_way.pop(wire_id)
            messages = [body] if body else []
            self._arrived.append(
                Delivery(
                    wire_id,
                    messages,
                    np.full(len(messages), head["values"]),
                    head["gradients"],
                    flight.version,
                    flight.start,
                    self.now,
                    head["counted"],
                )
            )
