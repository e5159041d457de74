"""What an agreement comes to at a site: method, model and settings by name, from a message.

The message is not trusted: nothing is imported but what the owner allows, and no file is read
because it says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..core.knobs import Knobs, SettingError, knob
from ..core.registry import only_names
from ..data.federation import Federation
from ..host.metrics import in_use
from ..host.settings import HostSettings
from ..methods.batchnorm import with_statistics
from ..methods.optimizer_state import WithOptimizerState
from ..run.plan import Plan
from ..run.session import settings_digest
from ..run.settings import Settings, check_device
from ..server.contract import Contract
from .site.agreement import Agreement, Work


@dataclass(frozen=True)
class Machine(Knobs):
    """What a site computes with: its owner's choice, not the federation's."""

    device: str = knob("cpu", "cpu, cuda, cuda:1, mps, ...")
    threads: int = knob(0, "CPU threads; 0 = torch's choice", low=0)
    memory: float = knob(2.0, "GiB for clients at work, and for private rows in memory", above=0)


def check_machine(machine: Machine) -> None:
    """Refuse a device that is not there, and set the threads of this process."""
    check_device(machine.device)
    if machine.threads:
        torch.set_num_threads(machine.threads)


@dataclass(frozen=True)
class Builder:
    """Makes the work of a site from an agreement."""

    machine: Machine = Machine()
    scratch: Path | None = None

    def __call__(
        self, agreement: Agreement, federation: Federation, allowed: tuple[str, ...]
    ) -> Work:
        """SettingError where the agreement asks for what there is not, or may not be."""
        plan = Plan.read(agreement.plan, "plan")
        _check_plan(plan)
        with only_names(allowed):
            method = plan.make_method()
            settings = plan.make_settings()
            _check_settings(settings)
            task = plan.make_task(federation)
            metrics = in_use(
                settings.metrics, settings.metric, federation.classes, task.criterion.name
            )
        numerics = settings.numerics(agreement.seed)
        bound = task.under(replace(numerics, device=torch.device(self.machine.device)))
        optimizer = settings.client_optimizer
        fitted = (
            None if optimizer.plain else optimizer.fit(bound.layout, method.step_coordinates(bound))
        )
        if optimizer.state == "private":
            method = WithOptimizerState(method, optimizer)
        method = with_statistics(method, bound, settings.statistics)
        digest = settings_digest(settings)
        contract = Contract(method, bound, settings.channel, agreement.run, digest)
        return Work(
            contract,
            HostSettings(
                batch=settings.batch,
                batching=settings.batching,
                memory=int(self.machine.memory * 2**30),
                scratch=self.scratch,
                finetune_steps=settings.finetune_steps,
                finetune_lr=settings.finetune_lr,
                optimizer=fitted,
                metrics=metrics,
            ),
        )


def _check_plan(plan: Plan) -> None:
    """Refuse what a message may not say, before any of it is looked at more closely."""
    if plan.data or plan.data_options:
        raise SettingError("plan: data: a message cannot say which data a site reads")
    if plan.task_options.get("weights"):
        raise SettingError("plan: weights: a message cannot name a file of a site")
    given = plan.run_settings
    weights = given.get("client_weights", "")
    if isinstance(weights, str) and weights and not weights.lstrip().startswith("{"):
        raise SettingError("plan: client_weights: a message cannot name a file of a site")
    for name in ("attack", "delays"):
        if given.get(name) not in (None, "", "none"):
            raise SettingError(f"plan: {name}: it is for simulations, and a site is none")


def _check_settings(settings: Settings) -> None:
    if settings.asynchronous:
        raise SettingError("plan: engine: a site takes part in synchronous rounds")
