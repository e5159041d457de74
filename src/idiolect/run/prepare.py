"""The parts of a run, checked once before it starts: method, task, federation and settings."""

from __future__ import annotations

import copy
import math
import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..attacks import ATTACKS, chosen
from ..attacks.poisoning import DataPoison, LabelFlip
from ..channels import CHANNELS, Channel
from ..channels.link import Link
from ..core import streams
from ..core.knobs import SettingError, nearest, scalable
from ..core.tensors import warn_of_variable_bits
from ..core.text import warn
from ..data.federation import Federation
from ..engine.delays import ConstantDelay, delays_text
from ..host.lazy_federation import LazyFederation, positive_of
from ..host.metrics import PositiveClass, check_metrics
from ..method import Method
from ..methods import batchnorm, equal_to, label_of, name_of
from ..methods.exchanges import check_exchanges
from ..methods.predictor import predicts_by_itself
from ..privacy.plan import Mechanism, PrivacyPlan
from ..privacy.sums.refusals import Beside
from ..privacy.sums.refusals import why_not as not_summed
from ..privacy.sums.setting import sums_note
from ..server.asynchronous import staleness_text
from ..server.protocol import Contract
from ..server.rules import RULES
from ..server.selection import SELECTIONS, Uniform, select
from ..server.streaming_mean import StreamingPlan
from ..task.client_optimizer import scale_factors
from ..task.groups import AnyTask, TaskGroups, tasks_of
from ..task.losses import Loss
from ..task.target_scale import TargetScale
from ..task.task import Numerics, Task
from ..task.trial import Behaviour
from .client_weights import check_weights
from .effects import idle_options
from .groups import groups_note, prepare_groups, public_note
from .model_check import behaviour_on, check_false_targets, check_model
from .protection import check_privacy, gradients_per_round, privacy_plan
from .sample_weights import weights_note
from .settings import DTYPES, Settings, default_settings
from .step_sizes import stable_steps
from .target_units import described, may_scale, outlier_note, scale_of


@dataclass(frozen=True)
class People:
    """Which clients play which part in a seed; wire ids, which are positions in the federation."""

    held_out: Tensor  # take no part in training: the same for every seed
    eligible: Tensor  # may take part: not held out, with training data
    malicious: Tensor  # among the eligible
    evaluated: Tensor  # the honest ones that are not held out

    @classmethod
    def of(cls, federation: Federation, settings: Settings, seed: int) -> People:
        everyone = torch.arange(federation.clients)
        keys = streams.name_keys(federation.names)
        held_out = select(settings.seed, 0, keys, everyone, settings.held_out, "held out")
        inside = everyone[~torch.isin(everyone, held_out)]
        eligible = inside[federation.sizes("train")[inside] > 0]
        if not len(eligible):
            raise SettingError(
                "data: no client has a training sample (those held out do not count)"
            )
        malicious = chosen(seed, keys, eligible, settings.malicious_among(len(eligible)))
        return cls(held_out, eligible, malicious, inside[~torch.isin(inside, malicious)])


@dataclass(frozen=True)
class RunParts:
    """What a run is made of. `prepare` checks that the parts fit each other."""

    method: Method
    task: Task  # as the user defined it
    federation: Federation
    settings: Settings
    target_scale: TargetScale | None = None  # of real targets that are standardised in training
    changes: tuple[str, ...] = ()  # what `stable_steps` has changed
    groups: TaskGroups | None = None  # where clients have unlike models; `task` is of the first
    of_groups: tuple[RunParts, ...] = ()  # the parts of each group, on all clients
    _first_tasks: dict[int, Task] = field(default_factory=dict, repr=False)  # by torch's threads

    @property
    def each_group(self) -> tuple[RunParts, ...]:
        """The parts of each group of clients; without groups these alone."""
        return self.of_groups or (self,)

    @cached_property
    def group_numbers(self) -> Tensor:  # int64[N]
        """The group of each client; without groups 0."""
        if self.groups is None:
            return torch.zeros(self.federation.clients, dtype=torch.int64)
        return self.groups.numbers(self.federation.ids)

    @cached_property
    def people(self) -> People:
        """Which clients play which part under the first seed."""
        return People.of(self.federation, self.settings, self.settings.seed)

    @property
    def eligible(self) -> int:
        """How many clients may take part in training."""
        return len(self.people.eligible)

    @cached_property
    def clients_heard(self) -> int:
        """Clients heard per round."""
        return self.settings.sampled(self.eligible, self.method.traits.hears_all)

    @cached_property
    def positive(self) -> PositiveClass | None:
        """The class of two that metrics are about; None where nothing tells which it is."""
        return positive_of(self.federation, self.settings.positive)

    @cached_property
    def contract(self) -> Contract:
        """What the first seed agrees on, but for its number: for checks before it starts."""
        return Contract(self.method, self.first_task, self.settings.channel, 0)

    @property
    def concurrency(self) -> int:
        """Clients that train at the same time, where training is asynchronous."""
        return concurrency(self.method, self.settings, self.eligible, self.clients_heard)

    @property
    def protected(self) -> bool:
        """Whether clients have privacy: it is set, and something is sent."""
        sends = any(self.method.message(self.first_task).values())
        return self.settings.privacy is not None and sends

    def privacy_plan(self, seed: int, begun: Mechanism | None = None) -> PrivacyPlan | None:
        """How clients are protected; None where they are not, or where nothing is sent.

        `begun`: as a run has begun that is resumed.
        """
        if not self.protected:
            return None
        return privacy_plan(self, seed, begun)

    @cached_property
    def gradients_per_round(self) -> np.ndarray:  # int64[N]
        """Gradients that each client takes in a round, on trial."""
        return gradients_per_round(self)

    def numerics(self, seed: int) -> Numerics:
        """How model and loss are computed under one of the seeds."""
        return replace(self.settings.numerics(seed), target_scale=self.target_scale)

    @property
    def first_task(self) -> Task:
        """Model and loss as the first seed computes them: made once.

        An initialisation that decomposes matrices may depend on the threads in its last bits.
        """
        threads = torch.get_num_threads()
        if threads not in self._first_tasks:
            task = self.task.under(self.numerics(self.settings.seed))
            self._first_tasks[threads] = task
            task.behave(self.behaviour)
        return self._first_tasks[threads]

    @cached_property
    def behaviour(self) -> Behaviour:
        """What model and loss do: by one trial, on samples of the client that has most."""
        if not self._first_tasks:
            return self.first_task.behaviour
        task = next(iter(self._first_tasks.values()))
        if isinstance(self.federation, LazyFederation):  # tried where the samples are
            return self.federation.behaviour or task.behaviour
        return behaviour_on(task, self.federation)

    def people_of(self, seed: int) -> People:
        """Which clients play which part under a seed."""
        if seed == self.settings.seed:
            return self.people
        return People.of(self.federation, self.settings, seed)

    def task_of(self, seed: int) -> Task:
        """Model and loss as a seed computes them, for a session, which may change its start."""
        if seed == self.settings.seed:
            return copy.copy(self.first_task)
        task = self.task.under(self.numerics(seed))
        task.behave(self.behaviour)
        return task

    def notes(self) -> dict[str, dict[str, Any]]:
        """What a reader of the result should know; see `Method.report`."""
        method, task, s = self.method, self.first_task, self.settings
        notes = method.report(task, self.eligible, self.clients_heard)
        same = {equal_to(method, parts.first_task) for parts in self.each_group}
        words = same.pop()
        if words and not same:
            notes["equal_to"] = {"warning": f"{label_of(method)}: {words}"}
        for one in reversed([parts.first_task for parts in self.each_group]):
            if one.statistics is not None:
                notes["statistics"] = batchnorm.described(method, one, s.statistics)
            if words := one.behaviour.warning:
                notes["draws"] = {"warning": words}
        if self.target_scale is not None:
            notes["targets"] = {"text": described(self.target_scale)}
        if self.changes:
            notes["steps"] = {"warning": "; ".join(self.changes)}
        if words := outlier_note(task.criterion, self.federation, self.people.eligible):
            notes["outliers"] = {"warning": words}
        if self.groups is not None:
            notes["groups"] = groups_note(self.groups, self.federation)
        if self.federation.public is not None:
            notes["public"] = public_note(self.federation, method)
        if sentences := idle_options(self):
            notes["idle"] = {"warning": "; ".join(sentences)}
        if s.asynchronous or s.delays is not None:
            notes["timing"] = self._timing()
        if s.secure_sums is not None:
            notes["sums"] = {"text": sums_note(s.secure_sums, self.clients_heard)}
        return notes | weights_note(self.federation)

    def _timing(self) -> dict[str, Any]:
        """Clock and rounds, where they are not those of a plain simulation."""
        s = self.settings
        clock = "seconds"
        if not s.carrier.remote:
            clock = f"simulated, {delays_text(s.delays or ConstantDelay())}"
        if not s.asynchronous:
            text = f"time is {clock}; a round takes as long as the slowest client that it hears"
            return {"text": text}
        busy = self.concurrency
        steps = "each message" if s.buffer == 1 else f"{s.buffer} messages"
        return {
            "concurrency": busy,
            "text": f"asynchronous: a round is {self.clients_heard:,} arrivals; {busy:,} clients "
            f"at work at any time; a step of the server for {steps}, weight by staleness "
            f"{staleness_text(s.staleness)}; time is {clock}",
        }


def prepare(method: Method, task: AnyTask, federation: Federation, s: Settings) -> RunParts:
    """The parts of a run, or a SettingError with the field, the value and what is accepted."""
    if isinstance(task, TaskGroups):
        return prepare_groups(method, task, federation, s, _prepare)
    return _prepare(method, task, federation, s)


def _prepare(method: Method, task: Task, federation: Federation, s: Settings) -> RunParts:
    """The parts of a run with one model."""
    if task.numerics != Numerics():
        raise SettingError(
            "task: it has its own device, precision, kernel, clipping, weight decay or seed; "
            "these are settings of the run: give idiolect.run(..., dtype=...) and a plain Task"
        )
    warn_of_variable_bits()
    task = trained_task(method, task, federation)
    method.check(task)
    _check_exchanges(method, task)
    _check_optimizer(method, task, s)
    _check_schedule(method, task, s)
    for note in task.initial.notes(task.module, random=not isinstance(task.model, nn.Module)):
        warn(note)
    _check_numbers(method, s)
    if federation.clients == 0:
        raise SettingError("clients: the federation is empty; at least one client is needed")
    if s.held_out >= federation.clients:
        raise SettingError(
            f"held_out must be less than the {federation.clients} clients, got {s.held_out}"
        )
    s.augment.check(federation.inputs)
    eligible = People.of(federation, s, s.seed).eligible
    parts = RunParts(method, task, federation, s, scale_of(task, federation, s, eligible))
    method, s, changes = stable_steps(method, parts.first_task, federation, s, eligible)
    if changes:
        parts = RunParts(method, task, federation, s, parts.target_scale, tuple(changes))
    if s.client_weights.of(federation.names) is not None:
        messages = s.buffer if s.asynchronous else parts.clients_heard
        check_weights(parts.contract, s.rule, messages, parts.eligible)
    if not s.asynchronous:
        if s.quorum > parts.clients_heard:
            raise SettingError(
                f"quorum must be at most the {parts.clients_heard} clients heard per round, "
                f"got {s.quorum}"
            )
        s.rule.check(parts.clients_heard)
    _check_rows(parts)
    _check_sums(parts)
    _check_selection(parts)
    check_privacy(parts)
    if s.finetune_steps and predicts_by_itself(method):
        raise SettingError(
            f"finetune_steps must be 0 for {name_of(method)}, whose clients do not predict with "
            f"one model, got {s.finetune_steps}"
        )
    link = parts.contract.link
    if s.asynchronous:
        _check_asynchronous(parts, link)
    for warning in link.check():
        warn(warning)
    if link.aggregate_stage is not None and not method.traits.linear:
        warn(
            "channel: this method's server step is not linear in the messages, "
            "and the channel decodes their sum only"
        )
    _check_memory(parts)
    _ = parts.positive  # refuses a class that there is not
    if not isinstance(federation, LazyFederation):  # else they were tried where the samples are
        check_model(parts.first_task, federation, s.batch, s.batching)
        check_metrics(parts.first_task, federation, s.metrics, s.metric, parts.positive)
        malicious = parts.people.malicious
        if s.attack is not None and s.attack.poisons and len(malicious):
            check_false_targets(parts.first_task, federation, s.attack, malicious, s.seed)
    return parts


def run_parts(
    method: Method,
    task: AnyTask,
    federation: Federation,
    settings: Settings,
    target_scale: TargetScale | None,
) -> RunParts:
    """The parts of a run that was prepared before: nothing is checked again."""
    every = [
        RunParts(method, trained_task(method, one, federation), federation, settings, target_scale)
        for one in tasks_of(task)
    ]
    if not isinstance(task, TaskGroups):
        return every[0]
    return replace(every[0], groups=task, of_groups=tuple(every))


def trained_task(method: Method, task: Task, federation: Federation) -> Task:
    """The task that a method trains: extended, with the data's public inputs if it uses them."""
    if not method.traits.uses_public:
        return method.extended(task)
    if federation.public is None:
        raise SettingError(
            f"public must be inputs that the server and all clients have for {name_of(method)}, "
            "got none: federation.publish(200) takes them from the training data, "
            "federation.with_public(inputs) has others; for data by name it is public=200, or "
            "--public 200"
        )
    return method.extended(task).with_public(federation.public)


def reported_loss(task: Task, federation: Federation, s: Settings) -> Loss:
    """The loss that figures of a run are by: of outputs and targets in the user's units."""
    if not may_scale(task, federation):
        return task.criterion
    scale = scale_of(task, federation, s, People.of(federation, s, s.seed).eligible)
    return task.criterion if scale is None else task.criterion.in_units(scale)


def check_stops(settings: Settings, federation: Federation) -> None:
    """Refuse stops that these data cannot show: validation data they lack, an accuracy above 1."""
    target = settings.target_value
    shares = (settings.metric or "accuracy") == "accuracy" and bool(federation.classes)
    if shares and target is not None and not 0 <= target <= 1:
        raise SettingError(f"target_value must be from 0 to 1 for an accuracy, got {target:g}")
    if not settings.validates:
        return
    name = "patience" if settings.patience else "keep_best"
    if not bool(federation.sizes("valid").any()):
        raise SettingError(
            f"{name}: it decides by validation data, and no client has any; make the federation "
            "with a share for validation, such as valid=0.2"
        )
    if settings.watched == "accuracy" and not federation.classes:
        raise SettingError("patience_metric must be 'loss' for real targets, got 'accuracy'")


def _check_optimizer(method: Method, task: Task, s: Settings) -> None:
    """Refuse an optimiser, or learning rates by parameter, for a method that fixes its steps."""
    optimizer = s.client_optimizer
    if optimizer.plain:
        return
    if not method.traits.optimizers:
        setting = "optimizer"
        if optimizer.name == "sgd":
            setting = "optimizer_options" if optimizer.options else "lr_scale"
        value = optimizer.lr_scale if setting == "lr_scale" else optimizer.words_of_step
        raise SettingError(
            f"{setting} must be left out for {name_of(method)}, got {value!r}: "
            f"{method.traits.fixed_step} (in a comparison, give it to the rows that take it: "
            f"'fedavg:{setting}=...')"
        )
    method.step_coordinates(task)  # refuses fields that belong to plain SGD
    still = int((scale_factors(optimizer.lr_scale, task.layout) == 0).sum())
    if still and any(method.message(task).values()):
        warn(
            f"lr_scale: {still:,} of {task.d:,} numbers have factor 0: they are not trained, but "
            "are still sent; Task(..., frozen=...) or --frozen makes them constants, which are not"
        )


def _check_exchanges(method: Method, task: Task) -> None:
    """Refuse exchanges that do not fit, and models that they were not made for."""
    check_exchanges(method, task)
    if method.traits.exchanges and task.statistics is not None:
        raise SettingError(
            f"model must have no running statistics (BatchNorm) for {name_of(method)}: a round has "
            "several exchanges, and which of them would send the statistics is not said"
        )


def _check_schedule(method: Method, task: Task, s: Settings) -> None:
    """Refuse curves for fields that do not exist, or that may not change between rounds."""
    names = (*scalable(type(method)), "batch", "server_lr")
    for name in s.schedule.fields:
        if name not in names:
            raise nearest(name, names, f"schedule: {name_of(method)} setting")
        if getattr(method, name, 1) == 0:
            raise SettingError(
                f"schedule must be about fields other than 0, got {name!r}, which stays 0 whatever "
                f"the factor; give {name}, or a curve to another field"
            )
        other = method.scaled({name: 2.0})
        if _forms(other, task) != _forms(method, task):
            raise SettingError(
                f"schedule must not change {name!r}: it is part of what clients send or keep, "
                "which is the same in every round"
            )
    method.scaled(s.schedule.factors(max(s.rounds - 1, 0), max(s.rounds, 1)))  # within its range
    if "batch" in s.schedule.fields and s.batching == "full":
        raise SettingError(
            "schedule must not have 'batch' with batching 'full', which takes all data; "
            "batching 'replace' or 'epochs'"
        )


def _forms(method: Method, task: Task) -> list:
    """What a method sends and keeps, by name and shape."""
    states = (method.server(task), method.private(task, np.zeros(1, dtype=np.uint64)))
    shapes = [{name: t.shape for name, t in state.items()} for state in states]
    return [method.message(task), method.traits.trains, *shapes]


def _check_numbers(method: Method, s: Settings) -> None:
    """Refuse a number that torch cannot hold in the run's precision."""
    steps = {
        name: getattr(s, name) for name in ("clip", "weight_decay", "server_lr", "finetune_lr")
    }
    largest = torch.finfo(DTYPES[s.dtype]).max
    for name, value in {**method.as_dict(), **steps}.items():
        if isinstance(value, float) and abs(value) > largest:
            raise SettingError(
                f"{name} must be at most {largest:.3g}, the largest {s.dtype}, got {value!r}"
            )


def _check_memory(parts: RunParts) -> None:
    """Warn where a round's messages exceed the memory and cannot be summed as they arrive."""
    s = parts.settings
    plan = StreamingPlan.of(parts.contract, s.rule, parts.clients_heard, int(s.memory * 2**30))
    if not plan.reason:
        return
    facts = (
        f"memory: the messages of a round take {plan.cohort / 2**30:.3g} GiB at the server, "
        f"more than the {s.memory:g} GiB that are set, and must all be held: {plan.reason}"
    )
    advice = "hear fewer clients per round (sample), or aggregate with the mean"
    if plan.cohort > physical_memory():
        raise SettingError(f"{facts}; this machine has less: {advice}")
    warn(f"{facts}; if that is too much, {advice}")


def physical_memory() -> float:
    """Bytes of memory of this machine; infinity where it is unknown."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf


def _check_rows(parts: RunParts) -> None:
    """Refuse what makes no sense where the server keeps what single clients have sent."""
    method, s = parts.method, parts.settings
    if method.traits.uncombined and s.rule != default_settings().rule:
        raise SettingError(
            f"rule must be 'mean' for {name_of(method)}, got {RULES.text(s.rule)!r}: "
            f"{method.traits.uncombined}"
        )
    contract = parts.contract
    if contract.link.aggregate_stage is not None and (contract.keeps_rows or contract.addresses):
        raise SettingError(
            f"channel must decode each message by itself for {name_of(method)}, whose server "
            "treats clients one by one; this one decodes the sum of a round's messages"
        )


def _check_sums(parts: RunParts) -> None:
    """Refuse what the sum of a round's messages is not enough for."""
    method, s = parts.method, parts.settings
    if s.secure_sums is None:
        return
    on_data = all(isinstance(part, DataPoison | LabelFlip) for part in ATTACKS.parts(s.attack))
    beside = Beside(
        rule=RULES.text(s.rule),
        channel=CHANNELS.text(s.channel),
        selection=SELECTIONS.text(s.selection),
        asynchronous=s.asynchronous,
        own_weights=bool(str(s.client_weights)),
        attack="" if on_data else ATTACKS.text(s.attack),
        heard=parts.clients_heard,
    )
    if reason := not_summed(method, parts.first_task, beside, name_of(method)):
        raise SettingError(f"secure_sums: {reason}")
    s.secure_sums.check(parts.clients_heard)
    _ = Contract(method, parts.first_task, s.channel, 0, sums=s.secure_sums).link  # its grid


def _check_selection(parts: RunParts) -> None:
    """Refuse another selection than a uniform one where there is nothing to select, or to ask."""
    method, s = parts.method, parts.settings
    if s.selection == Uniform():
        return
    reason = ""
    if method.traits.hears_all:
        reason = "every client is heard in every round"
    elif s.asynchronous:
        reason = "with timing='arrivals' whoever is idle starts next"
    elif s.selection.asks and not _has_shared_model(method, parts.first_task):
        reason = "candidates are asked for the loss of the shared model, and it has none"
    if reason:
        raise SettingError(
            f"selection must be 'uniform' for {name_of(method)}, "
            f"got {SELECTIONS.text(s.selection)!r}: {reason}"
        )
    s.selection.check(parts.clients_heard, parts.eligible)


def _has_shared_model(method: Method, task: Task) -> bool:
    state = method.server(task) | method.server_rows(task, np.zeros(1, dtype=np.uint64))
    return method.shared(task, method.broadcast(task, state)) is not None


def _check_asynchronous(parts: RunParts, link: Link) -> None:
    """Refuse what makes no sense when messages are used one by one."""
    method, task, s = parts.method, parts.first_task, parts.settings
    eligible, busy = parts.eligible, parts.concurrency
    if reason := why_not(method, task):
        raise SettingError(
            f"timing must be 'rounds' for {name_of(method)}, got 'arrivals': {reason}"
        )
    if link.aggregate_stage is not None:
        raise SettingError(
            "channel must decode each message by itself with timing='arrivals'; this one decodes "
            "the sum of a round's messages"
        )
    if s.attack is not None and s.attack.colludes:
        raise SettingError(
            "attack must not read the honest messages of the round with timing='arrivals': there "
            "is no such round"
        )
    if s.change_from == "newest" and not _models(method, task):
        raise SettingError(
            f"change_from must be 'start' for {name_of(method)}, which sends changes, not models, "
            "got 'newest'"
        )
    s.rule.check(s.buffer)
    if s.quorum > s.buffer:
        raise SettingError(
            f"quorum must be at most the {s.buffer} messages of a step (buffer), got {s.quorum}"
        )
    if busy > eligible:
        raise SettingError(
            f"concurrency must be at most the {eligible} clients that can take part, got {busy}"
        )
    if method.traits.trains == "everyone" and busy < eligible:
        raise SettingError(
            f"concurrency must be 0 or all {eligible} clients for {name_of(method)}, of which "
            f"everyone trains at all times, got {busy}"
        )


def why_not(method: Method, task: Task) -> str:
    """Why a method cannot be trained asynchronously; "" where it can.

    By what it declares: its messages must be changes, or models that started from what was sent.
    """
    if method.traits.needs_round:
        return method.traits.needs_round
    message = method.message(task)
    if not any(message.values()):
        alone = equal_to(method, task) if message else ""
        return f"it sends nothing; {alone}" if alone else "it sends nothing"
    if method.traits.exchanges:
        return "its rounds have several exchanges, with the same clients in each"
    if method.traits.hears_all:
        return "it makes sense only if every client is heard in every round"
    if Contract(method, task, Channel(), 0).addresses:
        return "the server sends each client a message of its own, made from those of a round"
    unknown = set(message) - set(method.traits.changes) - _models(method, task)
    if unknown:
        parts = ", ".join(sorted(unknown))
        return f"the part {parts} of its message is neither a change nor a model that it was sent"
    return ""


def _models(method: Method, task: Task) -> set[str]:
    """The parts of the message that are models which started from what was sent."""
    return set(method.reference(task, method.broadcast(task, method.server(task))))


def concurrency(method: Method, s: Settings, eligible: int, clients_heard: int) -> int:
    """How many clients train at the same time."""
    return s.concurrency or (eligible if method.traits.trains == "everyone" else clients_heard)
