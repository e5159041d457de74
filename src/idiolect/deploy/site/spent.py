"""What runs have spent of a site's privacy, counted by the site itself from what it was asked.

It does not take the server's word. A round counts when a client of the site is asked for a message,
before anything is computed, and counts again if it is asked for again: noise that a site adds is
new then. Clients of a site that are heard less often than others have spent less than it says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ...core.knobs import SettingError
from ...core.text import plural
from ...privacy.accountant import Accountant
from ...privacy.protection import Protection

NO_PRIVACY = "none is accounted (messages carry no noise)"


@dataclass
class RunSpent:
    """What a run has spent: exposures to one mechanism."""

    protects: str  # who adds noise, as agreed
    unit: str  # client or sample
    noise: float  # z
    rate: float  # 1, or how likely a sample is in a mini-batch, of the client with the fewest
    delta: float
    budget: float  # ε that no client of this site may pass; 0 = none
    exposures: int = 0  # orders that a client was heard in; or gradients, of a client at most

    def __post_init__(self) -> None:
        if not 0 < self.noise < math.inf or not 0 < self.rate <= 1 or not 0 < self.delta < 1:
            raise ValueError("noise must be a number > 0, rate and delta numbers up to 1")
        if self.exposures < 0 or not 0 <= self.budget < math.inf:
            raise ValueError("exposures and budget must be numbers >= 0")

    @classmethod
    def new(
        cls, protection: Protection, delta: float, budget: float, fewest: int, batch: int
    ) -> RunSpent:
        """Of a run that has spent nothing; `fewest`: samples of the client with the fewest."""
        rate = min(1.0, batch / max(fewest, 1)) if protection.unit == "sample" else 1.0
        return cls(protection.title, protection.unit, protection.noise, rate, delta, budget)

    def epsilon(self, more: int = 0) -> float:
        """ε by now, or after more exposures."""
        return Accountant(self.noise, self.rate).epsilon(self.exposures + more, self.delta)

    def affords(self, more: int) -> bool:
        """Whether so many more exposures stay within the budget."""
        return not self.budget or self.epsilon(more) <= self.budget


def in_words(spent: RunSpent) -> str:
    """What was spent, for the owner.

    >>> in_words(RunSpent("local", "client", 2.0, 1.0, 1e-5, 3.0, exposures=1))
    'epsilon 1.99 at delta 1e-05 at most, of 3 (local, 1 message, noise 2)'
    """
    try:
        amount = f"epsilon {spent.epsilon():.3g} at delta {spent.delta:g} at most"
    except SettingError as error:  # dp-accounting is not installed
        amount = str(error)
    of = f", of {spent.budget:g}" if spent.budget else ""
    times = plural(spent.exposures, "gradient" if spent.unit == "sample" else "message")
    return f"{amount}{of} ({spent.protects}, {times}, noise {spent.noise:g})"


def facts_of(runs: dict[str, RunSpent]) -> dict[str, Any] | None:
    """The same of all runs, as plain data; None where none has any privacy."""
    if not runs:
        return None
    return {name: {**vars(one), "epsilon": _known(one)} for name, one in runs.items()}


def _known(spent: RunSpent) -> float | None:
    """ε; None where it cannot be counted here."""
    try:
        return spent.epsilon()
    except SettingError:
        return None


def lines_of(runs: dict[str, RunSpent], without: int) -> list[str]:
    """Words for each run; `without`: rounds of training of runs without any privacy."""
    if not runs:
        return [NO_PRIVACY]
    lines = [f"run {name}: {in_words(one)}" for name, one in runs.items()]
    if len(runs) > 1:
        lines.append("runs add up: who sees what came of several learns more than of each")
    if without:
        lines.append(f"NOT COVERED: {plural(without, 'round')} of runs without privacy")
    return lines
