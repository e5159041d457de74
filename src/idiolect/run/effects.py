"""Options of a run that have no effect in it, each with the reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..attacks import ATTACKS
from ..channels import CHANNELS
from ..core.knobs import Knobs, idle_fields, with_role
from ..engine.delays import DELAYS
from ..methods import name_of
from ..server.asynchronous import STALENESS
from ..server.protocol import Contract
from ..server.rules import RULES
from .settings import MESSAGES, Settings

if TYPE_CHECKING:
    from .prepare import RunParts


def idle_options(parts: RunParts) -> list[str]:
    """A sentence for each option that was changed from its default to no effect."""
    s = parts.settings
    around = {
        "batching": s.batching,
        "heard": "all clients" if parts.clients_heard == parts.eligible else "some clients",
    }
    sentences = idle_fields(parts.method, around) + idle_fields(s)
    options: list[Any] = [
        *CHANNELS.parts(s.channel),
        *RULES.parts(s.rule),
        *ATTACKS.parts(s.attack),
        *DELAYS.parts(s.delays),
        *STALENESS.parts(s.staleness),
    ]
    for part in options:
        sentences += idle_fields(part, around) if isinstance(part, Knobs) else []
    return [*sentences, *_of_messages(parts), *_of_the_rest(parts)]


def _changed(settings: Settings) -> set[str]:
    defaults = Settings()
    names = (f.name for f in dataclasses.fields(Settings))
    return {n for n in names if getattr(settings, n) != getattr(defaults, n)}


def _of_messages(parts: RunParts) -> Iterator[str]:
    s, method = parts.settings, parts.method
    if not Contract(method, parts.first_task, s.channel, 0).up.length:
        for name in with_role(Settings, MESSAGES):
            if name in _changed(s):
                yield f"{name}: it has no effect on {name_of(method)}, which sends nothing"
        return
    messages = s.buffer if s.asynchronous else parts.clients_heard
    if messages == 1 and s.rule != Settings().rule:
        yield f"rule: {RULES.text(s.rule)!r} has no effect on one message per step of the server"


def _of_the_rest(parts: RunParts) -> Iterator[str]:
    s = parts.settings
    if s.statistics != Settings().statistics and parts.first_task.statistics is None:
        yield f"statistics: {s.statistics!r} has no effect: the model keeps no running statistics"
    if s.patience_metric and not s.validates:
        yield (
            f"patience_metric: {s.patience_metric!r} has no effect without patience or keep_best"
        )
    if s.attack is not None and not s.malicious_among(parts.eligible):
        yield (
            f"malicious: {s.malicious:g} of {parts.eligible} clients is none, so that the attack "
            "has no effect"
        )
    if not s.asynchronous:
        return
    if s.next_client != Settings().next_client and parts.concurrency == parts.eligible:
        yield f"next_client: {s.next_client!r} has no effect where all clients are always at work"
    if s.change_from != Settings().change_from and parts.concurrency == 1:
        yield f"change_from: {s.change_from!r} has no effect where one client works at a time"
