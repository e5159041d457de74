"""The contract of a run and the settings of its hosts, built once for simulations and sites.

A site builds them from a message, the server from its own plan: both call `build_contract`, so that
the checksums in their headers agree.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from ..host.host import HostSettings
from ..host.metrics import PositiveClass, in_use
from ..method import Method
from ..methods.batchnorm import with_statistics
from ..methods.wrapped import WithOptimizerState
from ..privacy.plan import PrivacyPlan
from ..server.protocol import Contract
from ..task.task import Task
from .settings import Settings, fixed_on_resume


def build_contract(
    method: Method,
    task: Task,
    settings: Settings,
    run: int,
    classes: int,
    positive: PositiveClass | None,
    layouts: tuple[Any, ...] = (),
    privacy: PrivacyPlan | None = None,
) -> tuple[Contract, HostSettings]:
    """What server and hosts agree on for one seed of a run, and how a host works.

    `task` is as the seed computes it, on a device that is not part of the contract; `positive` is
    the class of two that metrics are about; `layouts` are those of all groups of clients, where
    these have unlike models and `task` is that of one group; `privacy` is what clients do to their
    messages or gradients.
    """
    optimizer = settings.client_optimizer
    fitted = None
    if not optimizer.plain:
        fitted = optimizer.fit(task.layout, method.step_coordinates(task))
    if optimizer.state == "private":
        method = WithOptimizerState(method, optimizer)
    method = with_statistics(method, task, settings.statistics)
    digest = settings_digest(settings)
    sums = settings.secure_sums
    noise = None
    if privacy is not None and sums is not None:
        noise = privacy.shared_noise(sums.least(privacy.sample))
    contract = Contract(method, task, settings.channel, run, digest, layouts, sums, noise)
    metrics = in_use(settings.metrics, settings.metric, classes, task.criterion.name, positive)
    return contract, HostSettings(
        batch=settings.batch,
        batching=settings.batching,
        memory=int(settings.memory * 2**30),
        finetune_steps=settings.finetune_steps,
        finetune_lr=settings.finetune_lr,
        optimizer=fitted,
        augment=settings.augment,
        metrics=metrics,
        message_noise=privacy.message_noise if privacy else None,
        sample_clipping=privacy.sample_clipping if privacy else None,
    )


def settings_digest(settings: Settings) -> str:
    """SHA-256 of all settings that are fixed for a run: server and hosts must have them alike."""
    values = settings.as_dict()
    fixed = fixed_on_resume(values["schedule"])
    text = json.dumps({name: values[name] for name in sorted(fixed)})
    return hashlib.sha256(text.encode()).hexdigest()
