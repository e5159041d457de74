"""What a search cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..sweep import Sweep


@dataclass(frozen=True)
class Cost:
    """Of all runs of a search; those that were stored before are counted with what they took."""

    runs: int
    gradients: int  # gradient evaluations, of all clients
    cpu_seconds: float
    seconds: float  # from start to end, of the last start

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.runs} runs, {self.gradients:,} gradient evaluations, "
            f"{self.cpu_seconds:.0f} CPU seconds, {self.seconds:.0f} s from start to end"
        )

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.runs + other.runs,
            self.gradients + other.gradients,
            self.cpu_seconds + other.cpu_seconds,
            self.seconds + other.seconds,
        )


def cost_of(sweep: Sweep, clients: Mapping[str, int], seconds: float) -> Cost:
    """The cost of the runs of a sweep; `clients` is how many each of its data sets has."""
    gradients = sum(
        summary["gradients_per_client"] * clients[trial.setting.data]
        for trial, summary in sweep.summaries.items()
    )
    spent = sum(summary["cpu_seconds"] for summary in sweep.summaries.values())
    return Cost(len(sweep.summaries), round(gradients), spent, seconds)
