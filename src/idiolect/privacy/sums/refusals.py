"""What cannot be had together with secure sums, and why."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from ...method import NOBODY, Method
from ...task.task import Task

MEAN = "mean"
IDENTITY = "none"
UNIFORM = "uniform"


@dataclass(frozen=True)
class Beside:
    """What else a run has, by the names of its settings: what comes of single messages there."""

    rule: str = MEAN
    channel: str = IDENTITY
    selection: str = UNIFORM
    asynchronous: bool = False
    own_weights: bool = False  # clients have weights of their own
    groups: bool = False  # of clients with unlike models
    # an attack that forges messages, or reads those of others; one on data alone is none
    attack: str = ""
    heard: int = field(default=2)  # clients per round


def why_not(method: Method, task: Task, beside: Beside | None = None, name: str = "") -> str:
    """Why a run cannot have secure sums; "" where it can. `name`: what the method is called.

    >>> from idiolect.methods import make_method
    >>> from idiolect.testing import task
    >>> fedavg = make_method("fedavg")
    >>> why_not(fedavg, task())
    ''
    >>> print(why_not(fedavg, task(), Beside(rule="median")))
    rule: 'median' compares single messages, and the server sees their sum only; use 'mean'
    """
    return _of_method(method, task, name or type(method).__name__) or _of_run(beside or Beside())


def _of_method(method: Method, task: Task, name: str) -> str:
    traits = method.traits
    if traits.uncombined:
        return f"method: {name} combines nobody's messages: {traits.uncombined}"
    if not (traits.linear and traits.can_stream):
        return f"method: the server of {name} needs single messages, and not their mean alone"
    if len(traits.exchanges) > 1:
        return (
            f"method: {name} has {len(traits.exchanges)} exchanges per round: a second sum over "
            "fewer clients would show by the difference what the others sent"
        )
    if traits.uncompressed:
        return (
            f"method: {name} sends parts that must arrive exactly "
            f"({', '.join(traits.uncompressed)}), and a secure sum rounds"
        )
    if method.server_rows(task, NOBODY):
        return f"method: the server of {name} keeps something for each client"
    one = np.zeros(1, dtype=np.uint64)
    state = method.server(task) | method.server_rows(task, one)
    if method.address(task, state, torch.zeros(1, dtype=torch.int64)):
        return f"method: {name} sends messages to single clients, made from those that they sent"
    if not sum(method.message(task).values()):
        return f"method: {name} sends nothing: there is no sum"
    return ""


def _of_run(run: Beside) -> str:
    if run.rule != MEAN:
        return (
            f"rule: {run.rule!r} compares single messages, and the server sees their sum only; "
            f"use {MEAN!r}"
        )
    if run.channel not in ("", IDENTITY):
        return (
            f"channel: {run.channel!r} codes single messages, which the server would have to "
            f"decode before it adds them up; use {IDENTITY!r}"
        )
    if run.asynchronous:
        return (
            "timing: 'arrivals' uses messages one by one, and a sum needs those of a round "
            "together; use 'rounds'"
        )
    if run.selection != UNIFORM:
        return f"selection: {run.selection!r} asks single clients for their losses; use {UNIFORM!r}"
    if run.own_weights:
        return "client_weights: all clients count alike in a secure sum; leave them out"
    if run.groups:
        return "model: groups of clients have unlike models, whose messages are no sum of one grid"
    if run.attack:
        return (
            f"attack: {run.attack!r} forges single messages, which no server can clip or see in a "
            "secure sum: its effect has no bound; attacks on data alone are possible"
        )
    if run.heard < 2:
        return f"sample must be at least 2, got {run.heard}: the sum of one message is that message"
    return ""
