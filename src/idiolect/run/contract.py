"""The contract of a run and the settings of its hosts, built once for simulations and sites.

A site builds them from a message, the server from its own plan: both call `build_contract`, so that
the checksums in their headers agree.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ..host.host import HostSettings
from ..host.metrics import in_use
from ..method import Method
from ..methods.batchnorm import with_statistics
from ..methods.optimizer_state import WithOptimizerState
from ..server.contract import Contract
from ..task.task import Task
from .settings import Settings, fixed_on_resume


def build_contract(
    method: Method,
    task: Task,
    settings: Settings,
    seed: int,
    run: int,
    classes: int,
    *,
    x0: Tensor | None = None,
    device: str = "",
    memory: float = 0.0,
    scratch: Path | None = None,
) -> tuple[Contract, HostSettings]:
    """What server and hosts agree on for one seed of a run, and how a host works.

    `x0` is the model to start from in place of a new one. `device` and `memory` (GiB) are those of
    the settings unless the machine's owner has chosen others; neither is part of the contract.
    """
    numerics = settings.numerics(seed)
    if device:
        numerics = replace(numerics, device=torch.device(device))
    bound = task.under(numerics)
    if x0 is not None:
        bound.begin_at(x0)
    optimizer = settings.client_optimizer
    fitted = None
    if not optimizer.plain:
        fitted = optimizer.fit(bound.layout, method.step_coordinates(bound))
    if optimizer.state == "private":
        method = WithOptimizerState(method, optimizer)
    method = with_statistics(method, bound, settings.statistics)
    contract = Contract(method, bound, settings.channel, run, settings_digest(settings))
    metrics = in_use(settings.metrics, settings.metric, classes, task.criterion.name)
    return contract, HostSettings(
        batch=settings.batch,
        batching=settings.batching,
        memory=int((memory or settings.memory) * 2**30),
        scratch=scratch,
        finetune_steps=settings.finetune_steps,
        finetune_lr=settings.finetune_lr,
        optimizer=fitted,
        metrics=metrics,
    )


def settings_digest(settings: Settings) -> str:
    """SHA-256 of all settings that are fixed for a run: server and hosts must have them alike."""
    values = settings.as_dict()
    fixed = fixed_on_resume(values["schedule"])
    text = json.dumps({name: values[name] for name in sorted(fixed)})
    return hashlib.sha256(text.encode()).hexdigest()
