"""A site in the foreground: from its start to the signal that stops it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ...core.knobs import SettingError
from .agreement import ContractBuilder
from .data import SiteData
from .rules import Rules
from .site import Site
from .sockets import SocketServer
from .state import StateFolder


def run_site(
    owned: SiteData,
    state: Path,
    rules: Rules,
    build: ContractBuilder,
    tell: Callable[[str], None] = print,
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
            server = SocketServer(folder.socket, site)
            tell(f"{owned.site} waits for a federation at {folder.socket.absolute()}")
            tell("what comes and leaves is in messages.csv; Ctrl-C stops")
            server.run()
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
