"""What can be refused before a run starts."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

import numpy as np
import torch
from torch import nn

from ..channels.link import Link
from ..core.factors import scalable
from ..core.knobs import SettingError, nearest
from ..core.text import shown
from ..data.federation import Federation
from ..host.metrics.sense import check_metrics
from ..host.surveyed import Surveyed
from ..method import Method
from ..methods import name_of
from ..server.contract import Contract
from ..server.stream import Plan
from ..task.numerics import Numerics
from ..task.optimise import ClientOptimizer, scale_factors
from ..task.task import Task
from .check_model import check_model
from .check_timing import check_asynchronous
from .session import People
from .settings import DTYPES, Settings

_said: ContextVar[set[str] | None] = ContextVar("warnings that were said", default=None)


@contextmanager
def warnings_once() -> Iterator[None]:
    """Say each warning once, where many runs of one kind follow each other."""
    before = _said.set(set())
    try:
        yield
    finally:
        _said.reset(before)


def warn(text: str) -> None:
    """A warning for the user."""
    said = _said.get()
    if said is not None:
        if text in said:
            return
        said.add(text)
    with suppress(OSError):  # a terminal that is gone must not cost a run
        print(f"warning: {shown(text)}", file=sys.stderr)


def check(method: Method, task: Task, federation: Federation, s: Settings) -> None:
    """Refuse what cannot work, with the field, the value and what would be accepted."""
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
    _check_numbers(method, s)
    if federation.clients == 0:
        raise SettingError("clients: the federation is empty; at least one client is needed")
    if s.held_out >= federation.clients:
        raise SettingError(
            f"held_out: {s.held_out} is not accepted; less than the {federation.clients} clients"
        )
    s.client_weights.of(federation.names)
    bare = dataclasses.replace(s, attack=None, malicious=0.0)
    eligible = len(People.of(federation, bare, s.seed).eligible)
    if not eligible:
        raise SettingError("data: no client has a training sample (those held out do not count)")
    heard = s.sampled(eligible, method.hears_all)
    if s.quorum > heard and not s.asynchronous:
        raise SettingError(
            f"quorum: {s.quorum} is not accepted; at most the {heard} clients heard per round"
        )
    if not s.asynchronous:
        s.rule.check(heard)
    s.malicious_among(eligible)
    bound = task.under(s.numerics(s.seed))
    link = Link.fit(s.channel, method, bound)
    if s.asynchronous:
        check_asynchronous(method, bound, link, s, eligible, heard)
    for warning in link.check():
        warn(warning)
    if link.aggregate_stage is not None and not method.linear:
        warn(
            "channel: this method's server step is not linear in the messages, "
            "and the channel decodes their sum only"
        )
    _check_memory(method, bound, s, heard)
    if isinstance(federation, Surveyed):  # where its samples are they were tried already
        return
    check_model(bound, federation, s.batch, s.batching)
    check_metrics(bound, federation, s.metrics, s.metric)


def check_optimizer(method: Method, task: Task, optimizer: ClientOptimizer) -> None:
    """Refuse an optimiser, or learning rates by parameter, for a method that fixes its steps."""
    if optimizer.plain:
        return
    if not method.optimizers:
        setting = "lr_scale" if optimizer.name == "sgd" and not optimizer.options else "optimizer"
        value = optimizer.lr_scale if setting == "lr_scale" else optimizer.words_of_step
        raise SettingError(
            f"{setting}: {value!r} is not accepted for {name_of(method)}: {method.own_step}; "
            "leave it out here (in a comparison, give it to the rows that take it: "
            f"'fedavg:{setting}=...')"
        )
    method.stepped(task)  # refuses fields that belong to plain SGD
    still = int((scale_factors(optimizer.lr_scale, task.layout) == 0).sum())
    if still and method.message(task):
        warn(
            f"lr_scale: {still:,} of {task.d:,} numbers have factor 0: they are not trained, but "
            "are still sent; Task(..., frozen=...) or --frozen makes them constants, which are not"
        )


def check_schedule(method: Method, task: Task, s: Settings) -> None:
    """Refuse curves for fields that there are not, or that may not change between rounds."""
    known = (*scalable(type(method)), "batch", "server_lr")
    for name in s.schedule.fields:
        if name not in known:
            raise nearest(name, known, f"schedule: {name_of(method)} setting")
        if getattr(method, name, 1) == 0:
            raise SettingError(
                f"schedule: {name!r} is not accepted; it is 0, and stays 0 whatever the factor; "
                f"give {name}, or a curve to another field"
            )
        other = method.scaled({name: 2.0})
        if _forms(other, task) != _forms(method, task):
            raise SettingError(
                f"schedule: {name!r} is not accepted; it is part of what clients send or keep, "
                "which is the same in every round"
            )
    method.scaled(s.schedule.factors(max(s.rounds - 1, 0), max(s.rounds, 1)))  # within its range
    if "batch" in s.schedule.fields and s.batching == "full":
        raise SettingError(
            "schedule: 'batch' is not accepted with batching 'full', which takes all data; "
            "batching 'replace' or 'epochs'"
        )


def _forms(method: Method, task: Task) -> list:
    """What a method sends and keeps, by name and shape."""
    states = (method.server(task), method.private(task, np.zeros(1, dtype=np.uint64)))
    shapes = [{name: t.shape for name, t in state.items()} for state in states]
    return [method.message(task), method.trains, *shapes]


def _check_numbers(method: Method, s: Settings) -> None:
    """Refuse a number that torch cannot hold in the run's precision."""
    steps = {
        name: getattr(s, name) for name in ("clip", "weight_decay", "server_lr", "finetune_lr")
    }
    largest = torch.finfo(DTYPES[s.dtype]).max
    for name, value in {**method.as_dict(), **steps}.items():
        if isinstance(value, float) and abs(value) > largest:
            raise SettingError(
                f"{name}: {value!r} is not accepted; numbers of {s.dtype} are at most {largest:.3g}"
            )


@contextmanager
def numbers_fit(dtype: str) -> Iterator[None]:
    """A product of settings that overflows is a setting that is not accepted."""
    try:
        yield
    except RuntimeError as error:
        if "without overflow" not in str(error):
            raise
        raise SettingError(
            f"method: its step sizes and weights multiply to more than {dtype} holds; "
            "choose smaller ones, or dtype float64"
        ) from None


def _check_memory(method: Method, task: Task, s: Settings, heard: int) -> None:
    """Say it where a round's messages exceed the memory and cannot be summed as they arrive."""
    plan = Plan.of(Contract(method, task, s.channel, 0), s.rule, heard, int(s.memory * 2**30))
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
    """Bytes of memory of this machine; infinity where the system does not tell."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf
