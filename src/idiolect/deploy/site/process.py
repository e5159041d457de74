"""What the owner does with a site: run it in the foreground, and look at what has left so far."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...core.documents import encode
from ...core.knobs import SettingError
from ...core.text import plural
from ...host.durable import rounds_on_disk
from .agreement import Agreement, Builder, Members
from .consent import ConsentGate, proposed, read_consent
from .data import SiteData
from .rules import Rules
from .site import Site
from .sockets import SocketServer
from .spent import facts_of, lines_of
from .state import ROWS, SiteDescription, StateFolder, Usage


def run_site(
    owned: SiteData,
    state: Path,
    rules: Rules,
    build: Builder,
    tell: Callable[[str], None] = print,
    *,
    decide: Callable[[], None] = lambda: None,
) -> None:
    """Answer calls until SIGTERM or SIGINT; the call under way is finished first.

    `decide` may ask the owner for their consent, once the directory is taken and the data can be
    read. SettingError where they cannot, or where another process is at work in `state`.
    """
    folder = StateFolder(state)
    folder.open()
    try:
        _same_site(folder, owned)
        tell(owned.check())
        folder.write_site(owned, rules.as_dict(), encode(build.machine))
        decide()
        site = Site(owned, folder, rules, build, tell)
        try:
            site.resume()
            server = SocketServer(folder.socket, site)
            tell(f"{owned.site} waits for a federation at {folder.socket.absolute()}")
            if site.consent.terms() is None:
                tell(site.agree_words)
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
    earlier = folder.site().site
    if earlier != owned.site:
        raise SettingError(
            f"site must be {earlier!r}, whose state directory {folder.path} is, got "
            f"{owned.site!r}; or choose another directory"
        )


# -- status ----------------------------------------------------------------------------------------
def status(state: Path) -> dict[str, Any]:
    """Everything there is to say, as plain data; SettingError where this is no site's."""
    folder = StateFolder(state)
    description = folder.site()
    running = folder.running()
    run = folder.current()
    return {
        "site": description.site,
        "data": encode(description.data),
        "running": running,
        "pid": folder.pid() if running else None,
        "socket": str(folder.socket.absolute()) if running else None,
        "run": None if run is None else _of_run(folder, run),
        "runs": [f"{r:08x}" for r in folder.runs()],
        "left": encode(Usage.load(state)),
        "rules": description.rules,
        "consent": _of_consent(state, description),
        "log": str(folder.messages),
        "privacy": facts_of(Usage.load(state).privacy),
        "privacy_words": _privacy_words(Usage.load(state)),
    }


def _of_consent(state: Path, description: SiteDescription) -> dict[str, Any]:
    """What the owner has agreed to, and what they have not."""
    rules = Rules(**description.rules)
    gate = ConsentGate(state, description.data, rules)
    terms, waiting = gate.terms(), proposed(state)
    consent = read_consent(state) if terms is not None else None
    return {
        "federation": None if terms is None else terms.federation,
        "code": None if consent is None else consent.code,
        "user": None if consent is None else consent.user,
        "time": None if consent is None else consent.time,
        "reason": gate.reason,
        "proposed": None if waiting is None or waiting == terms else waiting.federation,
    }


def _of_run(folder: StateFolder, run: int) -> dict[str, Any]:
    place = folder.run(run)
    agreement = Agreement.load(place)
    return {
        "run": f"{run:08x}",
        "method": agreement.plan.get("method"),
        "model": agreement.plan.get("model") or "chosen from the data",
        "clients": Members.load(place).ids,
        "rounds": rounds_on_disk(place / ROWS),
    }


def in_words(facts: dict[str, Any]) -> list[str]:
    """The same for the owner, a line each."""
    usage = facts["left"]
    here = f"is running (process {facts['pid']})" if facts["running"] else "is not running"
    lines = [f"{facts['site']} {here}; data: {data_name(facts['data'])}"]
    run, consent = facts["run"], facts["consent"]
    if consent["federation"] is not None:
        lines.append(
            f"Agreed to: {consent['federation'] or 'a federation without a name'}, terms "
            f"{consent['code']}, by {consent['user']} on {consent['time']}"
        )
    else:
        lines.append(f"Agreed to: nothing ({consent['reason']}); nothing is computed")
    if consent["proposed"] is not None:
        lines.append(
            f"WAITS FOR YOU: {consent['proposed'] or 'a federation'} proposes other terms; "
            "idiolect host agree"
        )
    if run is None:
        lines.append("It has taken part in no run yet.")
    else:
        clients = len(run["clients"])
        lines.append(
            f"Run {run['run']}: {run['method']}, model {run['model']}; "
            f"{plural(clients, 'client')}, {plural(run['rounds'], 'round')} done"
        )
    lines.append(
        f"Left so far: {plural(usage['numbers'], 'number')} in "
        f"{plural(usage['messages'], 'reply', 'replies')} "
        f"({usage['bytes_out']:,} bytes), of {plural(usage['rounds'], 'round')} of training"
    )
    figures = [f"{name} ({plural(count, 'time')})" for name, count in usage["metrics"].items()]
    lines.append(f"Figures of evaluations that left: {', '.join(figures) or 'none'}")
    lines.append(f"Refused: {plural(usage['refused'], 'message')}")
    lines.append(f"Last contact: {last_contact(usage['last_contact'])}")
    shares = caps(facts["rules"], usage)
    if shares:
        words = (f"{count:,} of {most:,} {name}" for name, (count, most) in shares.items())
        lines.append(f"Used of what you allow: {', '.join(words)}")
    first, *more = facts["privacy_words"]
    lines += [f"Privacy spent: {first}", *(f"  {line}" for line in more)]
    lines.append(f"Log of all messages: {facts['log']}")
    return lines


def _privacy_words(usage: Usage) -> list[str]:
    """What was spent of privacy, as lines."""
    return lines_of(usage.privacy, usage.uncovered)


def data_name(data: dict[str, Any]) -> str:
    """The file, or the name of a data set."""
    return str(data["options"].get("path") or data["data"])


def caps(rules: dict[str, Any], usage: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """What is used of what the owner allows, where that has a limit."""
    counts = {
        "rounds": usage["rounds"],
        "evaluations": usage["evaluations"],
        "questions about the data": len(usage["questions"]),
        "numbers": usage["numbers"],
    }
    return {name: (counts[name], most) for name, most in Rules(**rules).caps.items()}


def last_contact(moment: str) -> str:
    """When, and how long ago."""
    if not moment:
        return "never"
    then = datetime.strptime(moment, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    seconds = max(0, int((datetime.now(UTC) - then).total_seconds()))
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size:
            count = seconds // size
            return f"{moment} ({count} {unit}{'s' * (count > 1)} ago)"
    return f"{moment} (now)"
