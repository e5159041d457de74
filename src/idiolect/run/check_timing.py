"""What cannot be trained asynchronously is refused before a run starts, with the reason."""

from __future__ import annotations

from typing import Any

from ..channels.link import Link
from ..core.knobs import SettingError
from ..engine.delays import ConstantDelay, delays_text
from ..method import Method
from ..methods import name_of
from ..server.staleness import staleness_text
from ..task.task import Task
from .settings import Settings


def check_asynchronous(
    method: Method, task: Task, link: Link, s: Settings, eligible: int, heard: int
) -> None:
    """Refuse what makes no sense when messages are used one by one."""
    if reason := why_not(method, task):
        raise SettingError(
            f"engine: 'asynchronous' is not accepted for {name_of(method)}: {reason}; "
            "use synchronous rounds (inprocess)"
        )
    if link.aggregate_stage is not None:
        raise SettingError(
            "channel: one that is decoded from the sum of a round's messages is not accepted with "
            "the engine 'asynchronous': each message is used by itself"
        )
    if s.attack is not None and s.attack.colludes:
        raise SettingError(
            "attack: one that knows the honest messages of the round is not accepted with the "
            "engine 'asynchronous': there is no such round"
        )
    if s.change_from == "newest" and not _models(method, task):
        raise SettingError(
            f"change_from: 'newest' is not accepted for {name_of(method)}: it sends changes, not "
            "models; 'start'"
        )
    s.rule.check(s.buffer)
    if s.quorum > s.buffer:
        raise SettingError(
            f"quorum: {s.quorum} is not accepted; at most the {s.buffer} messages of a step "
            "(buffer)"
        )
    busy = concurrency(method, s, eligible, heard)
    if busy > eligible:
        raise SettingError(
            f"concurrency: {busy} is not accepted; at most the {eligible} clients that can take "
            "part"
        )
    if method.trains == "everyone" and busy < eligible:
        raise SettingError(
            f"concurrency: {busy} is not accepted for {name_of(method)}, of which everyone "
            f"trains at all times; 0 or all {eligible} clients"
        )


def concurrency(method: Method, s: Settings, eligible: int, heard: int) -> int:
    """How many clients are at work at any time."""
    return s.concurrency or (eligible if method.trains == "everyone" else heard)


def timing(method: Method, s: Settings, eligible: int, heard: int) -> dict[str, Any]:
    """What a reader of the result should know of its clock and of its rounds."""
    clock = "seconds" if s.real else f"simulated, {delays_text(s.delays or ConstantDelay())}"
    if not s.asynchronous:
        return {
            "text": f"time is {clock}; a round takes as long as the slowest client that it hears"
        }
    busy = concurrency(method, s, eligible, heard)
    steps = "each message" if s.buffer == 1 else f"{s.buffer} messages"
    weight = staleness_text(s.staleness)
    return {
        "concurrency": busy,
        "text": f"asynchronous: a round is {heard:,} arrivals; {busy:,} clients at work at any "
        f"time; a step of the server for {steps}, weight by staleness {weight}; time is {clock}",
    }


def why_not(method: Method, task: Task) -> str:
    """Why a method cannot be trained asynchronously; "" where it can.

    By what it declares: its messages must be changes, or models that started from what was sent.
    """
    message = method.message(task)
    if not message:
        return "it sends nothing"
    if method.hears_all:
        return "it makes sense only if every client is heard in every round"
    if method.needs_round:
        return method.needs_round
    unknown = set(message) - set(method.changes) - _models(method, task)
    if unknown:
        parts = ", ".join(sorted(unknown))
        return f"the part {parts} of its message is neither a change nor a model that it was sent"
    return ""


def _models(method: Method, task: Task) -> set[str]:
    """The parts of the message that are models which started from what was sent."""
    return set(method.reference(task, method.broadcast(task, method.server(task))))
