"""A run as one frozen object: flags, TOML file, report header and the resume check all read it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

from ..attacks import attack_text
from ..core.knobs import SettingError
from ..engine.delays import delays_text
from ..host.metrics import direction
from ..task.numerics import Numerics
from .schedule import Schedule
from .sections import (
    ALL_UP_TO,
    DTYPES,
    MAY_CHANGE,
    MAY_GROW,
    SECTIONS,
    Adversary,
    Communication,
    Evaluation,
    Machines,
    Optimisation,
    Resources,
    Run,
    Selection,
    Timing,
)

__all__ = ["DTYPES", "SECTIONS", "Settings", "Timing", "fixed_on_resume"]


@dataclass(frozen=True)
class Settings(
    Resources,
    Evaluation,
    Adversary,
    Machines,
    Timing,
    Communication,
    Optimisation,
    Selection,
    Run,
):
    """Everything about a run but its method, model and data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.attack) != bool(self.malicious):
            missing = (
                "attack: 'none' is not accepted with malicious"
                if self.malicious
                else "malicious: 0 is not accepted with an attack"
            )
            raise SettingError(
                f"{missing}; how many clients are malicious and what they do go together, "
                "e.g. attack 'sign-flip' and malicious 0.2"
            )
        self._check_timing()
        _ = self.server_step  # refuses options that do not fit
        _ = self.client_optimizer
        check_device(self.device)
        if self.validates and not self.eval_every:
            name = "patience" if self.patience else "keep_best"
            raise SettingError(
                f"eval_every: 0 is not accepted with {name}; a whole number >= 1, so that there "
                "are evaluations to choose among"
            )
        if self.target_accuracy and not self.eval_every:
            raise SettingError(
                "eval_every: 0 is not accepted with a target_accuracy; "
                "a whole number >= 1, so that the target can be seen"
            )
        if self.target_value is not None and not self.eval_every:
            raise SettingError(
                "eval_every: 0 is not accepted with a target_value; "
                "a whole number >= 1, so that the target can be seen"
            )
        if self.metric:
            direction(self.metric, self.metrics)  # refuses an unknown one
        counted = dict.fromkeys(("loss", "accuracy", *(m.name for m in self.metrics)))
        if self.patience_metric and self.patience_metric not in {*counted, self.metric}:
            raise SettingError(
                f"patience_metric: {self.patience_metric!r} is not accepted; one of "
                f"{', '.join(counted)} (the setting metrics adds others)"
            )

    def _check_timing(self) -> None:
        """Refuse settings of another engine or clock than the one chosen."""
        by_default = {f.name: f.default for f in dataclasses.fields(Timing)}
        only = ["workers"] if not self.real or self.on_ray else []
        if not self.asynchronous:
            only += ["clock", "concurrency", "next_client", "staleness", "buffer", "change_from"]
        for name in only:
            if getattr(self, name) != by_default[name]:
                needed = "clock 'real'" if name == "workers" else "engine 'asynchronous'"
                raise SettingError(
                    f"{name}: {self.as_dict()[name]!r} is not accepted here; it goes with {needed}"
                )
        if self.engine == "ray" and self.delays is not None:
            raise SettingError(
                f"delays: {delays_text(self.delays)!r} is not accepted with the engine 'ray', "
                "whose time is real; leave it out"
            )
        machines = {f.name: f.default for f in dataclasses.fields(Machines)}
        for name, default in machines.items():
            if getattr(self, name) != default and not self.on_ray:
                raise SettingError(
                    f"{name}: {getattr(self, name)!r} is not accepted here; it goes with the "
                    "engine 'ray' (or 'asynchronous' with the clock 'ray')"
                )
        if self.on_ray and self.attack is not None and self.attack.colludes:
            raise SettingError(
                f"attack: {attack_text(self.attack)!r} is not accepted with hosts on Ray: it knows "
                "the honest messages of the round, which are in other processes; "
                "engine 'inprocess'"
            )
        if self.real and self.delays is not None:
            raise SettingError(
                f"delays: {delays_text(self.delays)!r} is not accepted with the clock "
                f"{self.clock!r}, "
                "which measures them; leave it out"
            )

    def __repr__(self) -> str:
        """The settings that differ from their defaults."""
        values = self.as_dict()
        changed = [
            f"{f.name}={values[f.name]!r}"
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != f.default
        ]
        return f"Settings({', '.join(changed)})"

    def sampled(self, eligible: int, hears_all: bool = False) -> int:
        """S for this many clients; all of them for a method that needs that.

        >>> [Settings().sampled(n) for n in (1, 5, 20, 21, 100, 1000)]
        [1, 5, 20, 10, 10, 100]
        """
        if self.sample > eligible:
            raise SettingError(
                f"sample: {self.sample} is not accepted; "
                f"at most the {eligible} clients that can take part"
            )
        if hears_all and self.sample not in (0, eligible):
            raise SettingError(
                f"sample: {self.sample} is not accepted for this method; "
                f"it must hear all {eligible} clients (0)"
            )
        if hears_all or eligible <= ALL_UP_TO:
            return self.sample or eligible
        return self.sample or max(10, round(0.1 * eligible))

    def numerics(self, seed: int) -> Numerics:
        """How a task is computed in this run, under one of its seeds."""
        return Numerics(
            torch.device(self.device),
            DTYPES[self.dtype],
            self.kernel,
            self.clip,
            self.weight_decay,
            seed,
        )


def fixed_on_resume(schedule: str = "constant") -> tuple[str, ...]:
    """The settings that must be the same when a run is resumed.

    The number of rounds is one of them where the schedule spreads the rates over all rounds: with
    more rounds, those that are done would have had other rates.

    >>> "batch" in fixed_on_resume(), "threads" in fixed_on_resume()
    (True, False)
    >>> "rounds" in fixed_on_resume(), "rounds" in fixed_on_resume("cosine")
    (False, True)
    """
    spread = Schedule.parse(schedule).over_all_rounds
    free = {MAY_CHANGE} if spread else {MAY_CHANGE, MAY_GROW}
    fields = dataclasses.fields(Settings)
    return tuple(f.name for f in fields if f.metadata["on_resume"] not in free)


def check_device(device: str) -> None:
    """Refuse a device that this machine does not have."""
    try:
        if torch.empty(1, device=device).device.type == "meta":
            raise RuntimeError("it holds no numbers")
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise SettingError(
            f"device: {device!r} is not available here ({reason}); 'cpu' always is"
        ) from None
