"""What can be refused before a run starts."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from ..channels.link import Link
from ..core.knobs import SettingError
from ..core.text import shown
from ..data.federation import Federation
from ..method import Method
from ..server.contract import Contract
from ..server.stream import Plan
from ..task.numerics import Numerics
from ..task.task import Task
from .check_model import check_model
from .session import People
from .settings import DTYPES, Settings


def warn(text: str) -> None:
    """A warning for the user."""
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
    _check_numbers(method, s)
    if federation.clients == 0:
        raise SettingError("clients: the federation is empty; at least one client is needed")
    if s.held_out >= federation.clients:
        raise SettingError(
            f"held_out: {s.held_out} is not accepted; less than the {federation.clients} clients"
        )
    bare = dataclasses.replace(s, attack=None, malicious=0.0)
    eligible = len(People.of(federation, bare, s.seed).eligible)
    if not eligible:
        raise SettingError("data: no client has a training sample (those held out do not count)")
    heard = s.sampled(eligible, method.hears_all)
    if s.quorum > heard:
        raise SettingError(
            f"quorum: {s.quorum} is not accepted; at most the {heard} clients heard per round"
        )
    s.rule.check(heard)
    s.malicious_among(eligible)
    bound = task.under(s.numerics(s.seed))
    link = Link.fit(s.channel, method, bound)
    for warning in link.check():
        warn(warning)
    if link.aggregate_stage is not None and not method.linear:
        warn(
            "channel: this method's server step is not linear in the messages, "
            "and the channel decodes their sum only"
        )
    _check_memory(method, bound, s, heard)
    check_model(bound, federation, s.batch, s.batching)


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
