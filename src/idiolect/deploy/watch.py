"""What a server can be asked while it trains: who is there, how far it is, who was put out and why.

The server's process writes server/status.json after each round and while it waits; `idiolect deploy
status` and the health endpoint read it. Nothing secret is in it: no key, no token, no model.
"""

from __future__ import annotations

import json
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ..core.documents import encode
from ..core.files import on_disk, read_document, write_document
from ..core.knobs import SettingError
from ..core.text import plural, shown
from ..report import captions
from ..report.format import size
from .certificates import expiry
from .config import Deployment
from .exclusions import Exclusions
from .folder import ROLES, DeploymentFolder, RunOutcome
from .pidfile import holder
from .site.spent import NO_PRIVACY

EVERY = 1.0  # seconds between two writes while nothing but time has passed
WIDTH = 80  # columns of the text
SOON = 30  # days: a certificate that expires within them is said to
WAITING, TRAINING, ENDED, STOPPED = "waiting", "training", "ended", "stopped"  # states of a run


@dataclass
class SiteStatus:
    """A site, as the server knows it."""

    site: str
    here: bool  # whether it is asked in the next round
    clients: int
    seen: float  # when it last answered, in seconds since 1970; 0: never
    rounds: int  # that it answered
    rejected: int  # messages that did not count
    missing: int  # messages that did not come
    bytes_up: int
    bytes_down: int
    put_out: bool
    reason: str  # why it was put out or takes no part; "" where it does
    put_out_at: float = 0.0  # when, in seconds since 1970; 0: it is not
    epsilon: float | None = None  # spent by its client that has spent most; None: not accounted


@dataclass
class ServerStatus:
    """A run, as its server knows it."""

    state: str
    directory: str
    method: str
    rounds_done: int
    rounds: int
    started: float  # seconds since 1970, as all times here
    last_round: float  # when the last round was done; 0: none has been
    updated: float
    wait: float
    deadline: float
    sites: list[SiteStatus] = field(default_factory=list)
    # what clients have spent, as PrivacyAccount.figures has it; None: it is not accounted
    privacy: dict[str, Any] | None = None

    def stalled(self, now: float) -> bool:
        """Whether a round, or the sites for the first one, take longer than they may."""
        if self.state == STOPPED:
            return True
        if self.state == ENDED:
            return False
        if not self.last_round:
            return now - self.started > self.wait + self.deadline
        return now - self.last_round > self.deadline


class StatusFile:
    """The status of a run on disk, written by its server."""

    def __init__(self, path: Path | None, status: ServerStatus):
        self.path = path
        self.status = status
        self._written = 0.0

    def write(self, sites: Callable[[], list[SiteStatus]], force: bool = True) -> None:
        """As it is now; without `force` not more often than `EVERY`. A full disk ends no run."""
        now = time.time()
        if self.path is None or (not force and 0 <= now - self._written < EVERY):
            return
        self._written = self.status.updated = now
        self.status.sites = sites()
        with on_disk("the status", None, any_error=True):
            write_document(self.path, encode(self.status))


# -- for whoever asks ------------------------------------------------------------------------------
def status(folder: Path) -> dict[str, Any]:
    """Everything there is to say of a federation's server, as plain data."""
    layout = DeploymentFolder(folder)
    deployment = Deployment.read(folder)
    run = read_status(layout)
    if run is not None and holder(layout.pid("server")) is None:
        _note_readmitted(run)
    outcome = read_document(layout.outcome, RunOutcome) if layout.outcome.exists() else None
    names = [path.stem for path in sorted(layout.keys.glob("*.pub"))]
    certificates = {} if deployment.terms.insecure else expiry(layout.certificates)
    return {
        "folder": str(folder),
        **processes(layout),
        "address": deployment.terms.address,
        "insecure": deployment.terms.insecure,
        "keys": names,
        "certificates": certificates,  # file -> last second of its validity
        "run": None if run is None else encode(run),
        "error": outcome.error if outcome is not None else "",
        "privacy": None if run is None else run.privacy,
    }


def processes(layout: DeploymentFolder) -> dict[str, int | None]:
    """The processes of a server by their roles; None where one is not running."""
    return {name: holder(layout.pid(name)) for name in ROLES}


def read_status(layout: DeploymentFolder) -> ServerStatus | None:
    """The run that the server carries out, or its last one; None where there was none."""
    path = layout.status
    return read_document(path, ServerStatus) if path.exists() else None


def _note_readmitted(run: ServerStatus) -> None:
    """Who was readmitted since the server has stopped is not put out any more."""
    out = {exclusion.site for exclusion in Exclusions(Path(run.directory)).read()}
    for site in run.sites:
        if site.put_out and site.put_out_at and site.site not in out:
            site.put_out, site.put_out_at = False, 0.0
            site.reason = "readmitted; it is greeted when the run is resumed"


def in_words(facts: dict[str, Any], now: float | None = None) -> list[str]:
    """The same as lines of at most 80 columns."""
    now = time.time() if now is None else now
    lines = [f"Server of {facts['folder']}, at {facts['address']}"]
    for name, title in ROLES.items():
        pid = facts[name]
        lines.append(f"{title}: {'not running' if pid is None else f'running (process {pid})'}")
    if facts["insecure"]:
        lines.append("Without TLS and keys: everyone on the network can read and forge messages")
    for name, last in facts["certificates"].items():
        lines.append(f"Certificate {name}: {validity(last, now)}")
    if facts["keys"]:
        lines.append(f"Keys registered: {', '.join(facts['keys'])}")
    run = facts["run"]
    if run is None:
        lines.append("No run has been started.")
    else:
        lines += _run_lines(run, facts, now)
    return [part for line in lines for part in _wrapped(shown(line))]


def _run_lines(run: dict[str, Any], facts: dict[str, Any], now: float) -> list[str]:
    sites = run["sites"]
    progress = f"{run['rounds_done']} of {run['rounds']} rounds done"
    state = state_of(run, facts["server"] is not None)
    lines = [f"Run {Path(run['directory']).name}: {run['method']}, {state}, {progress}"]
    if run["last_round"]:
        lines.append(f"Last round: {ago(run['last_round'], now)}")
    sums = totals(sites)
    lines.append(
        f"Messages: {sums['rejected']} rejected, {sums['missing']} missing; "
        f"{size(sums['bytes_up'])} up, {size(sums['bytes_down'])} down"
    )
    lines.append(f"Privacy spent: {privacy_words(run)}")
    if facts["error"] and run["state"] == STOPPED:
        lines.append(f"Stopped: {facts['error']}")
    lines += ["", *_table(sites, now)]
    for site in sites:
        if site["reason"]:
            word = "put out" if site["put_out"] else "takes no part" if not site["here"] else "last"
            when = f" ({ago(site['put_out_at'], now)})" if site["put_out_at"] else ""
            lines.append(f"{site['site']}: {word}: {site['reason']}{when}")
    return lines


def state_of(run: dict[str, Any], running: bool) -> str:
    """How a run stands; one whose server is gone does not train."""
    if run["state"] in (WAITING, TRAINING) and not running:
        return "interrupted; it is resumed when the server starts"
    return str(run["state"])


def state_of_site(site: dict[str, Any]) -> str:
    """Whether it is asked in the next round."""
    return "put out" if site["put_out"] else "here" if site["here"] else "away"


def privacy_words(run: dict[str, Any]) -> str:
    """What clients have spent of their privacy, who is protected from whom, by site."""
    if run["privacy"] is None:
        return NO_PRIVACY
    known = [site for site in run["sites"] if site["epsilon"] is not None]
    by_site = [f"{site['site']} {site['epsilon']:.3g}" for site in known]
    sites = f"; epsilon by site: {', '.join(by_site)}" if by_site else ""
    return f"{captions.privacy_words(run['privacy'])}{sites}; {captions.UNCOVERED}"


def totals(sites: list[dict[str, Any]]) -> dict[str, int]:
    """Messages and bytes of all sites."""
    names = ("rejected", "missing", "bytes_up", "bytes_down")
    return {name: sum(site[name] for site in sites) for name in names}


def _table(sites: list[dict[str, Any]], now: float) -> list[str]:
    """A line per site, at most 80 columns wide."""
    if not sites:
        return ["No site has come yet."]
    header = ("site", "now", "last seen", "rounds", "rejected", "missing", "up", "down")
    rows: list[tuple[str, ...]] = [header]
    for site in sites:
        numbers = (site["rounds"], site["rejected"], site["missing"])
        traffic = (size(site["bytes_up"]), size(site["bytes_down"]))
        name = shown(site["site"])
        name = name if len(name) <= 18 else f"{name[:17]}…"
        rows.append(
            (name, state_of_site(site), ago(site["seen"], now), *map(str, numbers), *traffic)
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = []
    for row in rows:
        text_cells = [cell.ljust(width) for cell, width in zip(row[:3], widths[:3], strict=True)]
        number_cells = [cell.rjust(width) for cell, width in zip(row[3:], widths[3:], strict=True)]
        lines.append("  ".join((*text_cells, *number_cells)).rstrip()[:WIDTH])
    return lines


def _wrapped(line: str) -> list[str]:
    if len(line) <= WIDTH:
        return [line]
    return textwrap.wrap(line, WIDTH, subsequent_indent="  ")


def validity(last: float, now: float) -> str:
    """Until when a certificate is valid, in words."""
    day = time.strftime("%Y-%m-%d", time.gmtime(last))
    days = int((last - now) // 86400)
    if last < now:
        return f"expired on {day}; idiolect deploy certificates makes new ones"
    word = "; renew it soon" if days < SOON else ""
    return f"valid until {day} ({plural(days, 'day')}){word}"


def ago(moment: float, now: float) -> str:
    """How long ago something was, in words."""
    if not moment:
        return "never"
    seconds = max(0, int(now - moment))
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"


# -- health ----------------------------------------------------------------------------------------
def health(layout: DeploymentFolder) -> tuple[int, dict[str, Any]]:
    """An HTTP status and what a monitor may know: no name, no address, nothing secret."""
    running = {name: pid is not None for name, pid in processes(layout).items()}
    up = all(running.values())
    now = time.time()
    try:
        run = read_status(layout)
    except SettingError:
        return 503, {**running, "state": "unreadable"}
    if run is None:
        return (200 if up else 503), {**running, "state": "idle"}
    stalled = run.stalled(now)
    facts = {
        **running,
        "state": "stalled" if stalled and run.state != STOPPED else run.state,
        "round": run.rounds_done,
        "rounds": run.rounds,
        "sites": sum(site.here for site in run.sites),
        "seconds_since_round": round(now - run.last_round, 1) if run.last_round else None,
    }
    return (200 if up and not stalled else 503), facts


class HealthServer:
    """Answers GET /health on this machine alone, while it is open."""

    def __init__(self, port: int, facts: Callable[[], tuple[int, dict[str, Any]]]):
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(facts))
        except OSError as error:
            raise SettingError(
                f"health_port: cannot listen at 127.0.0.1:{port} ({error.strerror})"
            ) from None
        self.port = int(self._server.server_address[1])

    def __enter__(self) -> HealthServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(facts: Callable[[], tuple[int, dict[str, Any]]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5  # seconds that a request may take
        server_version = "idiolect"
        sys_version = ""

        def do_GET(self) -> None:
            code, answer = facts() if self.path == "/health" else (404, {"error": "not found"})
            body = (json.dumps(answer) + "\n").encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing: monitors ask every few seconds."""

    return Handler
