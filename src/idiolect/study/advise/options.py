"""Options of `advise` that are not run settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...core.knobs import Knobs, SettingError, knob, refused_in
from ...run.settings import Settings

METRICS = ("accuracy", "loss")
GRADIENTS = 500
QUICK_GRADIENTS = 150
SEEDS = 5
QUICK_SEEDS = 2

ALWAYS = ("local", "fedavg")  # in every table
PERSONAL = ("finetune", "ditto", "lp-proj")  # personalised methods, by default
QUICK_PERSONAL = ("finetune", "ditto")


@dataclass(frozen=True)
class AdviceOptions(Knobs):
    """The compute spent on the advice, and the samples it is judged by."""

    quick: bool = knob(
        False,
        f"a first answer: {QUICK_GRADIENTS} gradients, {QUICK_SEEDS} seeds and fewer candidates, "
        "unless given",
    )
    gradients: int = knob(
        0,
        "gradients per client that every candidate may spend, in each training; "
        f"0 = {GRADIENTS}, or {QUICK_GRADIENTS} with quick",
        low=0,
    )
    tie: float = knob(
        0.01,
        "smallest gain worth federating for: absolute accuracy, or a fraction of Local's loss",
        low=0,
        below=1,
    )
    validation: str = knob(
        "auto",
        "samples to judge by: the validation samples as given, folds of the training and "
        "validation samples, or auto: given where there are any",
        choices=("auto", "given", "folds"),
    )

    @property
    def budget(self) -> int:
        """Gradients per client of one training."""
        return self.gradients or (QUICK_GRADIENTS if self.quick else GRADIENTS)

    @property
    def seeds(self) -> int:
        """Trainings of each candidate, unless given."""
        return QUICK_SEEDS if self.quick else SEEDS

    @property
    def splits(self) -> int:
        """Splits into halves that R^2 is estimated from."""
        return 1 if self.quick else 3

    @property
    def personal(self) -> tuple[str, ...]:
        """The candidates besides Local and FedAvg, unless given."""
        return QUICK_PERSONAL if self.quick else PERSONAL


def refuse(settings: Mapping[str, Any]) -> None:
    """Refuse settings of runs that have no meaning for advice."""
    for name, reason in refused_in(Settings, "advise").items():
        if name in settings:
            raise SettingError(f"{name} must not be given to advise; {reason}")
    metric = settings.get("metric", "")
    if metric and metric not in METRICS:
        raise SettingError(
            f"metric must be accuracy or loss, which every sample has by itself, got {metric!r}"
        )
