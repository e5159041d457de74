"""A site in the foreground: from its start to the signal that stops it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ...core.knobs import SettingError
from .agreement import ContractBuilder
from .data import SiteData
from .rules import Rules
from .site import Site
from .socket_server import SECONDS, SocketServer
from .state import StateFolder


def run_site(
    owned: SiteData,
    state: Path,
    rules: Rules,
    build: ContractBuilder,
    tell: Callable[[str], None] = print,
    seconds: float = SECONDS,
) -> None:
    """Answer calls until SIGTERM or SIGINT; the call under way is finished first.

    SettingError where the data cannot be read, or another process is at work in `state`.
    """
    folder = StateFolder(state)
    folder.open()
    try:
        _same_site(folder, owned)
        tell(owned.check())
        folder.write_site(owned.site, owned.as_dict(), rules.as_dict())
        site = Site(owned, folder, rules, build, tell)
        try:
            site.resume()
            listener = SocketServer(folder.socket, site, seconds)
            try:
                with _signals(listener) as stopped:
                    tell(f"{owned.site} waits for a federation at {folder.socket.absolute()}")
                    tell("what comes and leaves is in messages.csv; Ctrl-C stops")
                    listener.serve(stopped)
            finally:
                listener.close()
            tell(f"{owned.site} has stopped; its rows are in {folder.path}")
        finally:
            site.close()
    finally:
        folder.close()


def _same_site(folder: StateFolder, owned: SiteData) -> None:
    """Refuse another site's state directory: its rows would be mixed up."""
    if not folder.runs():
        return
    earlier = folder.site()["site"]
    if earlier != owned.site:
        raise SettingError(
            f"site must be {earlier!r}, whose state directory {folder.path} is, got "
            f"{owned.site!r}; or choose another directory"
        )


@contextmanager
def _signals(listener: SocketServer) -> Iterator[Callable[[], bool]]:
    """Whether a signal to stop came; waiting ends when one comes."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def note(number: int, frame: object) -> None:
        if came and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C stops at once
        came.append(number)

    before = {n: signal.signal(n, note) for n in (signal.SIGINT, signal.SIGTERM)}
    wake = signal.set_wakeup_fd(listener.wake_writer.fileno(), warn_on_full_buffer=False)
    try:
        yield lambda: bool(came)
    finally:
        signal.set_wakeup_fd(wake)
        for number, handler in before.items():
            signal.signal(number, handler)
