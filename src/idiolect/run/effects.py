"""Options of a run that have no effect in it, each with the reason."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..attacks import ATTACKS
from ..channels import CHANNELS
from ..channels.dense import Feedback
from ..core.knobs import Knobs, idle_fields, with_role
from ..engine.delays import DELAYS
from ..host.metrics import Metric, in_use
from ..methods import name_of
from ..server.asynchronous import STALENESS
from ..server.protocol import Contract
from ..server.rules import RULES
from ..server.selection import SELECTIONS
from .client_weights import server_after
from .settings import MESSAGES, Settings, default_settings
from .target_units import may_scale

if TYPE_CHECKING:
    from .prepare import RunParts


MOST_TRIED = 1_000_000  # numbers of all messages of a server step for which a rule is tried


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
    defaults = default_settings()
    names = (f.name for f in dataclasses.fields(Settings))
    return {n for n in names if getattr(settings, n) != getattr(defaults, n)}


def _of_messages(parts: RunParts) -> Iterator[str]:
    s, method, contract = parts.settings, parts.method, parts.contract
    defaults = default_settings()
    if not contract.up.length:
        for name in with_role(Settings, MESSAGES):
            if name in _changed(s):
                yield f"{name}: it has no effect on {name_of(method)}, which sends nothing"
        return
    if method.traits.shared_name not in method.server(parts.first_task):
        for name in ("server_optimizer", "server_lr", "server_options"):
            if name in _changed(s):
                reason = "whose server keeps no shared model to step on"
                yield f"{name}: it has no effect on {name_of(method)}, {reason}"
    if s.selection != defaults.selection and parts.clients_heard == parts.eligible:
        yield (
            f"selection: {SELECTIONS.text(s.selection)!r} has no effect where all "
            f"{parts.eligible} clients are heard in every round (sample)"
        )
    messages = s.buffer if s.asynchronous else parts.clients_heard
    if s.rule != defaults.rule and _gives_mean(parts, contract, messages):
        some = "one message" if messages == 1 else f"{messages} messages, whose mean it gives,"
        yield f"rule: {RULES.text(s.rule)!r} has no effect on {some} per step of the server"
    claims = parts.federation.weight_totals("train")
    claims = method.weigh(claims[claims > 0])
    if len(claims.unique()) == len({weight for _, weight in s.client_weights.pairs}) == 1:
        yield "client_weights: they have no effect: all are alike, as the clients are"
    stages = CHANNELS.parts(s.channel)
    if stages and all(isinstance(stage, Feedback) for stage in stages):
        yield "channel: 'feedback' has no effect on messages of which nothing is lost"


def _gives_mean(parts: RunParts, contract: Contract, messages: int) -> bool:
    """Whether the rule gives the server of the mean for so many messages: tried on random ones."""
    s = parts.settings
    if messages == 1:
        return True
    if messages * parts.first_task.d > MOST_TRIED:
        return False
    own_weights = bool(s.client_weights.pairs)
    weights = torch.ones(messages)
    if own_weights or len(parts.federation.weight_totals("train").unique()) > 1:
        weights = torch.linspace(0.5, 1.25, messages)
    one, other = (
        server_after(contract, rule, weights, parts.eligible, own_weights)
        for rule in (s.rule, default_settings().rule)
    )
    return all(torch.allclose(one[name], other[name], rtol=1e-4) for name in one)


def _counted(parts: RunParts) -> tuple[Metric, ...]:
    """The metrics of a run."""
    s, loss = parts.settings, parts.task.criterion.name
    return in_use(s.metrics, s.metric, parts.federation.classes, loss, parts.positive)


def _of_the_rest(parts: RunParts) -> Iterator[str]:
    s = parts.settings
    defaults = default_settings()
    if not s.standardise_targets and not may_scale(parts.task, parts.federation):
        yield "standardise_targets: it has no effect: these targets would not be standardised"
    scaled = (parts.method.scaled(s.schedule.factors(r, s.rounds)) for r in range(s.rounds))
    of_the_run = {"batch", "server_lr"} & set(s.schedule.fields)
    if s.schedule.curves and not of_the_run and all(m == parts.method for m in scaled):
        yield f"schedule: {str(s.schedule)!r} has no effect: the method is the same in every round"
    fields = parts.method.as_dict()
    steps = [value for name, value in fields.items() if name.endswith("steps")]
    one_step = bool(steps) and max(steps) < 2 and not fields.get("epochs")
    momentum_alone = s.optimizer == "sgd" and s.optimizer_options.split("=")[:-1] == ["momentum"]
    if momentum_alone and one_step and s.optimizer_state == "reset":
        yield (
            "optimizer_options: momentum has no effect on one step per round, before which it is "
            "reset; optimizer_state='private' keeps it"
        )
    without = all(one.first_task.statistics is None for one in parts.each_group)
    if s.statistics != defaults.statistics and without:
        yield f"statistics: {s.statistics!r} has no effect: the model keeps no running statistics"
    if s.patience_metric and not s.validates:
        yield (
            f"patience_metric: {s.patience_metric!r} has no effect without patience or keep_best"
        )
    if s.positive and not any(m.of_positive for m in _counted(parts)):
        yield (
            f"positive: {s.positive!r} has no effect: no metric of this run is about one class "
            "(f1, precision, recall, sensitivity, specificity and pr_auc are)"
        )
    if s.attack is not None and not s.malicious_among(parts.eligible):
        yield (
            f"malicious: {s.malicious:g} of {parts.eligible} clients is none, so that the attack "
            "has no effect"
        )
    if not s.asynchronous:
        return
    if s.next_client != defaults.next_client and parts.concurrency == parts.eligible:
        yield f"next_client: {s.next_client!r} has no effect where all clients are always at work"
    if s.change_from != defaults.change_from and parts.concurrency == 1:
        yield f"change_from: {s.change_from!r} has no effect where one client works at a time"
