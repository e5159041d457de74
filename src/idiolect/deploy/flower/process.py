"""What the processes of a federation have in common: one per role, each in the foreground.

systemd or a container starts them, starts them again when they end, and keeps what they print.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from ...core.files import private_folder
from ..pidfile import hold

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "PYTHONUNBUFFERED": "1",
}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN = 60.0  # seconds after which the same is said again
NO_ANSWER = "Connection attempt failed, retrying"  # Flower's words for a server that is away


@contextmanager
def role(place: Path, name: str) -> Iterator[None]:
    """The body as the only process of a role in a folder: NAME.pid is locked until it ends.

    A signal to stop ends it with exit code 0; SettingError where another process has the role.
    """
    for number in SIGNALS:
        signal.signal(number, _stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    path = place / f"{name}.pid"
    with hold(path):
        os.environ.update(QUIET, FLWR_HOME=str(private_folder(place / "flower")))
        os.environ.setdefault("FLWR_LOG_LEVEL", "WARNING")  # INFO is ten lines per message
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def become(module: str, *arguments: object) -> NoReturn:
    """This process becomes `python -m module ...`; a signal waits until that can take it."""
    sys.stdout.flush()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    os.execv(sys.executable, [sys.executable, "-m", module, *map(str, arguments)])


def die_with_parent() -> None:
    """In a child: it gets SIGKILL when its parent is gone; on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def tell(text: str) -> None:
    """To whoever looks at this process, among Flower's own lines."""
    print(f"idiolect: {text}", file=sys.stderr, flush=True)


class Explanations(logging.Handler):
    """Says in plain words what Flower's log lines mean, each at most once a minute."""

    def __init__(self, meanings: dict[str, str], say: Callable[[str], None] = tell):
        super().__init__()
        self.meanings = meanings  # part of a line -> what it means; the first that fits counts
        self.say = say
        self.times: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        meaning = next((text for part, text in self.meanings.items() if part in line), "")
        now = time.monotonic()
        if meaning and now - self.times.get(meaning, -AGAIN) >= AGAIN:
            self.times[meaning] = now
            self.say(meaning)

    def listen(self) -> None:
        """To all that Flower logs in this process."""
        logging.getLogger("flwr").addHandler(self)
