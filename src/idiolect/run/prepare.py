"""The parts of a run, checked once before it starts: method, task, federation and settings."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..attacks import chosen
from ..channels.link import Link
from ..core import streams
from ..core.knobs import SettingError
from ..core.text import warn
from ..data.federation import Federation
from ..engine.delays import ConstantDelay, delays_text
from ..host.lazy_federation import LazyFederation
from ..host.metrics import check_metrics
from ..method import Method
from ..methods import batchnorm, label_of
from ..methods.reductions import equal_to
from ..server.roster import select
from ..server.staleness import staleness_text
from ..task.task import Numerics, Task
from .settings import Settings
from .validate import (
    check_asynchronous,
    check_memory,
    check_model,
    check_numbers,
    check_optimizer,
    check_schedule,
)


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
    _first_tasks: dict[int, Task] = field(default_factory=dict, repr=False)  # by torch's threads

    @cached_property
    def eligible(self) -> int:
        """How many clients may take part in training."""
        return len(People.of(self.federation, self.settings, self.settings.seed).eligible)

    @cached_property
    def clients_heard(self) -> int:
        """Clients heard per round."""
        return self.settings.sampled(self.eligible, self.method.traits.hears_all)

    @property
    def first_task(self) -> Task:
        """Model and loss as the first seed computes them: made once.

        An initialisation that decomposes matrices may depend on the threads in its last bits.
        """
        threads = torch.get_num_threads()
        if threads not in self._first_tasks:
            numerics = self.settings.numerics(self.settings.seed)
            self._first_tasks[threads] = self.task.under(numerics)
        return self._first_tasks[threads]

    def task_of(self, seed: int) -> Task:
        """Model and loss as a seed computes them, for a session, which may change its start."""
        if seed == self.settings.seed:
            return copy.copy(self.first_task)
        return self.task.under(self.settings.numerics(seed))

    def notes(self) -> dict[str, dict[str, Any]]:
        """What a reader of the result should know; see `Method.report`."""
        method, task, s = self.method, self.first_task, self.settings
        notes = method.report(task, self.eligible, self.clients_heard)
        if words := equal_to(method, task):
            notes["equal_to"] = {"warning": f"{label_of(method)}: {words}"}
        if task.statistics is not None:
            notes["statistics"] = batchnorm.described(method, task, s.statistics)
        if s.asynchronous or s.delays is not None:
            notes["timing"] = self._timing()
        return notes

    def _timing(self) -> dict[str, Any]:
        """Clock and rounds, where they are not those of a plain simulation."""
        s = self.settings
        clock = "seconds"
        if not s.carrier.remote:
            clock = f"simulated, {delays_text(s.delays or ConstantDelay())}"
        if not s.asynchronous:
            text = f"time is {clock}; a round takes as long as the slowest client that it hears"
            return {"text": text}
        busy = concurrency(self.method, s, self.eligible, self.clients_heard)
        steps = "each message" if s.buffer == 1 else f"{s.buffer} messages"
        return {
            "concurrency": busy,
            "text": f"asynchronous: a round is {self.clients_heard:,} arrivals; {busy:,} clients "
            f"at work at any time; a step of the server for {steps}, weight by staleness "
            f"{staleness_text(s.staleness)}; time is {clock}",
        }


def prepare(method: Method, task: Task, federation: Federation, s: Settings) -> RunParts:
    """The parts of a run, or a SettingError with the field, the value and what is accepted."""
    if task.numerics != Numerics():
        raise SettingError(
            "task: it has a device, precision, kernel, clipping, weight decay or seed of its own; "
            "these are settings of the run: give idiolect.run(..., dtype=...) and a plain Task"
        )
    method.check(task)
    check_optimizer(method, task, s.client_optimizer)
    check_schedule(method, task, s)
    for note in task.initial.notes(task.module, random=not isinstance(task.model, nn.Module)):
        warn(note)
    check_numbers(method, s)
    if federation.clients == 0:
        raise SettingError("clients: the federation is empty; at least one client is needed")
    if s.held_out >= federation.clients:
        raise SettingError(
            f"held_out must be less than the {federation.clients} clients, got {s.held_out}"
        )
    s.client_weights.of(federation.names)
    parts = RunParts(method, task, federation, s)
    eligible, clients_heard = parts.eligible, parts.clients_heard
    if s.quorum > clients_heard and not s.asynchronous:
        raise SettingError(
            f"quorum must be at most the {clients_heard} clients heard per round, got {s.quorum}"
        )
    if not s.asynchronous:
        s.rule.check(clients_heard)
    first_task = parts.first_task
    link = Link.fit(s.channel, method, first_task)
    if s.asynchronous:
        busy = concurrency(method, s, eligible, clients_heard)
        check_asynchronous(method, first_task, link, s, eligible, busy)
    for warning in link.check():
        warn(warning)
    if link.aggregate_stage is not None and not method.traits.linear:
        warn(
            "channel: this method's server step is not linear in the messages, "
            "and the channel decodes their sum only"
        )
    check_memory(method, first_task, s, clients_heard)
    if not isinstance(federation, LazyFederation):  # else they were tried where the samples are
        check_model(first_task, federation, s.batch, s.batching)
        check_metrics(first_task, federation, s.metrics, s.metric)
    return parts


def concurrency(method: Method, s: Settings, eligible: int, clients_heard: int) -> int:
    """How many clients are at work at any time."""
    return s.concurrency or (eligible if method.traits.trains == "everyone" else clients_heard)
