"""What a state directory says of its site: what has left so far, in plain words."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...host.durable import rounds_on_disk
from .agreement import Agreement, Members
from .audit import Spent
from .rules import Rules
from .state import ROWS, Folder


def status(state: Path) -> dict[str, Any]:
    """Everything there is to say, as plain data; SettingError where this is no site's."""
    folder = Folder(state)
    told = folder.site()
    running = folder.running()
    run = folder.current()
    return {
        "site": told["site"],
        "data": told["data"],
        "running": running,
        "pid": folder.pid() if running else None,
        "socket": str(folder.socket.absolute()) if running else None,
        "run": None if run is None else _of_run(folder, run),
        "runs": [f"{r:08x}" for r in folder.runs()],
        "left": Spent.load(state).as_dict(),
        "rules": told["rules"],
        "log": str(folder.messages),
    }


def _of_run(folder: Folder, run: int) -> dict[str, Any]:
    place = folder.run(run)
    agreement = Agreement.load(place)
    return {
        "run": f"{run:08x}",
        "method": agreement.plan.get("method"),
        "model": agreement.plan.get("model") or "chosen from the data",
        "clients": Members.load(place).ids,
        "rounds": rounds_on_disk(place / ROWS),
    }


def in_words(found: dict[str, Any]) -> list[str]:
    """The same for the owner, a line each."""
    left = found["left"]
    here = f"is running (process {found['pid']})" if found["running"] else "is not running"
    lines = [f"{found['site']} {here}; data: {_data(found['data'])}"]
    run = found["run"]
    if run is None:
        lines.append("It has agreed to nothing yet.")
    else:
        clients = len(run["clients"])
        lines.append(
            f"Run {run['run']}: {run['method']}, model {run['model']}; "
            f"{clients} client{'s' * (clients != 1)}, {run['rounds']} rounds done"
        )
    lines.append(
        f"Left so far: {left['numbers']:,} numbers in {left['messages']:,} replies "
        f"({left['bytes_out']:,} bytes), of {left['rounds']:,} rounds of training"
    )
    figures = [f"{name} ({count} times)" for name, count in left["metrics"].items()]
    lines.append(f"Figures of evaluations that left: {', '.join(figures) or 'none'}")
    lines.append(f"Refused: {left['refused']:,} messages")
    lines.append(f"Last contact: {_ago(left['last_contact'])}")
    lines += _caps(Rules(**found["rules"]), left)
    lines.append(f"Log of all messages: {found['log']}")
    return lines


def _data(told: dict[str, Any]) -> str:
    return str(told["options"].get("path") or told["data"])


def _caps(rules: Rules, left: dict[str, Any]) -> list[str]:
    caps = (("rounds", rules.max_rounds), ("numbers", rules.max_numbers))
    used = [f"{left[name]:,} of {most:,} {name}" for name, most in caps if most]
    return [f"Used of what you allow: {', '.join(used)}"] if used else []


def _ago(time: str) -> str:
    if not time:
        return "never"
    then = datetime.strptime(time, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    seconds = max(0, int((datetime.now(UTC) - then).total_seconds()))
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size:
            count = seconds // size
            return f"{time} ({count} {unit}{'s' * (count > 1)} ago)"
    return f"{time} (now)"
