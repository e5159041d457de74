"""Worker processes on this machine, one per host, over pipes."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from queue import Queue
from threading import Thread
from typing import Any

from ...core.knobs import SettingError
from ...host.service import HostRecipe
from . import Carrier, EngineTraits, Place

SECONDS_TO_END = 10.0  # until a process that does not end by itself is terminated
READY = b"ready"


class ProcessCarrier(Carrier):
    """Frames to worker processes and back; each answers its frames in order."""

    def __init__(self, recipes: Sequence[HostRecipe], place: Place = Place()):
        context = _context()
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._waiting: list[deque[int]] = [deque() for _ in recipes]  # tickets, by process
        self._tickets = 0
        try:
            for recipe in recipes:
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(theirs,), daemon=True)
                self._pipes.append(ours)
                process.start()
                self._processes.append(process)
                theirs.close()
                ours.send_bytes(pickle.dumps(recipe))
            for n in range(len(recipes)):
                if (answer := self._read(n)) != READY:
                    raise RuntimeError(f"worker process {n + 1} did not start:\n{answer.decode()}")
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self.close()
            raise SettingError(
                f"engine: a worker process cannot receive this run ({error}); model, method and "
                "loss must be importable by name: a class or a function of a module, not a lambda"
            ) from None
        except BaseException:
            self.close()
            raise

    def send(self, host: int, frame: bytes) -> int:
        self._tickets += 1
        self._waiting[host].append(self._tickets)
        try:
            self._pipes[host].send_bytes(frame)
        except OSError:
            raise self._ended(host) from None
        return self._tickets

    def receive(self, seconds: float) -> list[tuple[int, bytes | None]]:
        if not any(self._waiting):
            time.sleep(seconds)
            return []
        ready = wait(self._pipes, seconds)
        readable = [n for n, pipe in enumerate(self._pipes) if pipe in ready]
        return [(self._waiting[n].popleft(), self._read(n)) for n in readable]

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()  # the process reads the end of its pipe, and ends
        for process in self._processes:
            process.join(SECONDS_TO_END)
            if process.is_alive():
                process.terminate()
                process.join()
        self._pipes = []
        self._processes = []

    def _read(self, n: int) -> bytes:
        try:
            return self._pipes[n].recv_bytes()
        except (EOFError, OSError):
            raise self._ended(n) from None

    def _ended(self, n: int) -> RuntimeError:
        process = self._processes[n]
        process.join(SECONDS_TO_END)
        return RuntimeError(
            f"worker process {n + 1} of {len(self._processes)} has ended by itself "
            f"(exit code {process.exitcode}); the run can be resumed"
        )


def _context() -> Any:
    """Processes are forked from a server that has imported torch and computed nothing yet."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _work(pipe: Connection) -> None:
    """Build the host that the run has sent, then answer frames until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the run
    try:
        recipe: HostRecipe = pickle.loads(pipe.recv_bytes())  # of the process that started this
        service = recipe.service()
    except Exception as error:
        with suppress(OSError):
            pipe.send_bytes(f"{type(error).__name__}: {error}".encode())
        return
    frames: Queue[bytes | None] = Queue()
    # read all the time: if both sides only wrote, full pipes would block both for ever
    Thread(target=_listen, args=(pipe, frames), daemon=True).start()
    with suppress(OSError):
        pipe.send_bytes(READY)
        while (frame := frames.get()) is not None:
            pipe.send_bytes(service.handle(frame))


def _listen(pipe: Connection, frames: Queue[bytes | None]) -> None:
    try:
        while True:
            frames.put(pipe.recv_bytes())
    except (EOFError, OSError):
        frames.put(None)


ENGINE = EngineTraits("in worker processes of this machine", ProcessCarrier)
