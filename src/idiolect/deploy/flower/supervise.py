"""Processes that belong together: started in order, started again when they end, stopped as one.

    python -m idiolect.deploy.flower.supervise FILE

FILE is JSON: {"pid": file, "processes": [{"name", "command", "log", "environment"}, ...]}. Each
process writes to its log; what is known of the lines in it is said in plain words. SIGTERM or
Ctrl-C stops all of them, the last one first. If this process is killed, so are they.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ..logs import RotatingLog
from ..pidfile import hold
from .internals import CONNECTED, UNFIT, UNKNOWN_KEY

SUPERNODE = "supernode"  # the process that connects a site
PAUSES = (1.0, 2.0, 5.0, 10.0)  # seconds before a process is started again, longer each time
STEADY = 60.0  # seconds after which a process that ends is taken to have worked
SECONDS_TO_STOP = 30.0
SAID_AGAIN = 60.0  # seconds after which the same is said again

# what a line of Flower means, for whoever looks at this process; the first that is found counts
MEANINGS = {
    "certificate has expired": "the server's certificate has expired: its operator makes new ones "
    "(idiolect deploy certificates), and every site needs the new ca.crt; trying again",
    "certificate is not valid for": "the server's certificate is for another name than the address "
    "in deployment.toml; trying again",
    "unable to get local issuer certificate": "the server's certificate was not made by the "
    "authority of certificates/ca.crt: this is another server, or ca.crt is an old one; "
    "trying again",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is refused: it has expired, is "
    "for another address, or was not made by the authority of certificates/ca.crt; trying again",
    UNKNOWN_KEY: "the server refuses this site: its key is not registered there. Give the public "
    "half to the server's operator (idiolect deploy add-site); trying again",
    CONNECTED: "the server refuses this site for now: a connection with its key is there already, "
    "of another process, or from before a crash (given up after 45 seconds); trying again",
    UNFIT: "the flwr that is installed here does not fit; pip install 'idiolect[flower]'",
    "[code: 1001]": "the server has another version of flwr; install the same; trying again",
    # said by a SuperLink
    "No SuperNode found with the given public key": "a site was refused, for its key is not "
    "registered: idiolect deploy add-site",
    "address already in use": "the port is in use by another process; trying again",
}
NO_ANSWER = "Connection attempt failed, retrying"  # of a relay: its SuperNode starts just now
AWAY = "the server does not answer at its address; trying again"
UNCLEAR = "could not establish a connection"  # comes after a line that says why, or does not
NOT_CONNECTED = "the server is there, and no connection comes about; the log says why; trying again"


@dataclass
class Process:
    """One of them."""

    name: str
    command: list[str]
    log: str
    environment: dict[str, str] = field(default_factory=dict)
    child: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    ended: int = 0  # how often, soon after its start
    due: float = 0.0  # when it is started
    said: dict[str, float] = field(default_factory=dict)
    explained: bool = False  # whether it has said why, since it was started

    def start(self) -> None:
        self.started = time.monotonic()
        self.explained = False
        self.child = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self.environment},
            start_new_session=True,  # Ctrl-C is for this process, which stops them in order
            preexec_fn=die_with_parent,
        )
        assert self.child.stdout is not None
        threading.Thread(target=self._listen, args=(self.child.stdout,), daemon=True).start()

    def _listen(self, output: IO[bytes]) -> None:
        with RotatingLog(Path(self.log)) as log, output:
            for line in output:
                log.write(line)
                self._explain(line.decode(errors="replace"))

    def _explain(self, line: str) -> None:
        meaning = next((words for pattern, words in MEANINGS.items() if pattern in line), "")
        if NO_ANSWER in line and self.name == SUPERNODE:
            meaning = AWAY
        if UNCLEAR in line and not self.explained:
            meaning = NOT_CONNECTED
        if not meaning:
            return
        self.explained = True
        now = time.monotonic()
        if now - self.said.get(meaning, -SAID_AGAIN) >= SAID_AGAIN:
            self.said[meaning] = now
            say(f"{self.name}: {meaning}")

    def over(self) -> bool:
        """Whether it has ended; then it is due again after a pause."""
        if self.child is None or self.child.poll() is None:
            return False
        steady = time.monotonic() - self.started > STEADY
        self.ended = 0 if steady else self.ended + 1
        pause = PAUSES[min(self.ended, len(PAUSES) - 1)]
        self.due = time.monotonic() + pause
        say(f"{self.name} has ended ({self.child.returncode}); it is started again; see {self.log}")
        self.child = None
        return True

    def stop(self) -> None:
        child, self.child = self.child, None
        if child is None or child.poll() is not None:
            return
        child.terminate()
        try:
            child.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


def say(text: str) -> None:
    print(text, flush=True)


def supervise(processes: list[Process], pid: Path) -> None:
    """Until a signal to stop comes."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stopped.set())
    file = hold(pid)
    try:
        while not stopped.is_set():
            for process in processes:
                if process.child is None and time.monotonic() >= process.due:
                    process.start()
                process.over()
            stopped.wait(0.2)
    finally:
        for process in reversed(processes):
            process.stop()
        pid.unlink(missing_ok=True)
        file.close()


def die_with_parent() -> None:
    """In the child: it gets SIGKILL when this process is gone; on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main(arguments: list[str]) -> None:
    settings: dict[str, Any] = json.loads(Path(arguments[0]).read_text())
    supervise([Process(**one) for one in settings["processes"]], Path(settings["pid"]))


if __name__ == "__main__":
    main(sys.argv[1:])
