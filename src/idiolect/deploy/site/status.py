"""What a state directory says of its site: what has left so far, in plain words."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...host.durable import rounds_on_disk
from .agreement import Agreement, Members
from .audit import Usage
from .rules import Rules
from .state import ROWS, StateFolder


def status(state: Path) -> dict[str, Any]:
    """Everything there is to say, as plain data; SettingError where this is no site's."""
    folder = StateFolder(state)
    description = folder.site()
    running = folder.running()
    run = folder.current()
    return {
        "site": description["site"],
        "data": description["data"],
        "running": running,
        "pid": folder.pid() if running else None,
        "socket": str(folder.socket.absolute()) if running else None,
        "run": None if run is None else _of_run(folder, run),
        "runs": [f"{r:08x}" for r in folder.runs()],
        "left": Usage.load(state).as_dict(),
        "rules": description["rules"],
        "log": str(folder.messages),
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
    lines = [f"{facts['site']} {here}; data: {_data(facts['data'])}"]
    run = facts["run"]
    if run is None:
        lines.append("It has agreed to nothing yet.")
    else:
        clients = len(run["clients"])
        lines.append(
            f"Run {run['run']}: {run['method']}, model {run['model']}; "
            f"{clients} client{'s' * (clients != 1)}, {run['rounds']} rounds done"
        )
    lines.append(
        f"Left so far: {usage['numbers']:,} numbers in {usage['messages']:,} replies "
        f"({usage['bytes_out']:,} bytes), of {usage['rounds']:,} rounds of training"
    )
    figures = [f"{name} ({count} times)" for name, count in usage["metrics"].items()]
    lines.append(f"Figures of evaluations that left: {', '.join(figures) or 'none'}")
    lines.append(f"Refused: {usage['refused']:,} messages")
    lines.append(f"Last contact: {_ago(usage['last_contact'])}")
    lines += _caps(Rules(**facts["rules"]), usage)
    lines.append(f"Log of all messages: {facts['log']}")
    return lines


def _data(data: dict[str, Any]) -> str:
    return str(data["options"].get("path") or data["data"])


def _caps(rules: Rules, usage: dict[str, Any]) -> list[str]:
    caps = (("rounds", rules.max_rounds), ("numbers", rules.max_numbers))
    shares = [f"{usage[name]:,} of {most:,} {name}" for name, most in caps if most]
    return [f"Used of what you allow: {', '.join(shares)}"] if shares else []


def _ago(moment: str) -> str:
    if not moment:
        return "never"
    then = datetime.strptime(moment, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    seconds = max(0, int((datetime.now(UTC) - then).total_seconds()))
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size:
            count = seconds // size
            return f"{moment} ({count} {unit}{'s' * (count > 1)} ago)"
    return f"{moment} (now)"
