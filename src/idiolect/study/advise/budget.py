"""A privacy budget: candidates that federate are trained within it, Local without noise.

Each candidate has as little noise as ε allows over its own rounds. Where nobody says otherwise the
server adds the noise (`central`), and the clipping norm is 1 times the factor of the step sizes:
messages grow with these, and a grid of both is what a smaller noise must be weighed against. From
MANY clients on half of them are drawn per round, each by itself (Poisson sampling), so that
sampling amplifies; with fewer all are heard. At equal gradients half was as good as all or better,
and as a fifth, on federations of 100 and 300 clients at ε = 1 and 3.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...core.knobs import SettingError
from ...privacy.protection import PROTECTIONS, Central, Local, Protection
from ...run.settings import Privacy, Settings

MANY = 100  # training clients from which on a round hears half of them, drawn each by itself
FIELDS = tuple(f.name for f in dataclasses.fields(Privacy))
POISSON = {"selection": "poisson"}


@dataclass(frozen=True)
class PrivacyBudget:
    """What one training may spend of each client, and the settings that keep to it."""

    protection: Protection
    chosen: bool  # the user has said who adds noise, and how messages are clipped
    epsilon: float  # 0: the noise is what the user has said
    delta: float
    noise_source: str
    sample: int  # of the user; 0: chosen here
    selects: bool  # the user has said how clients are selected

    @classmethod
    def of(cls, settings: Settings, user_settings: Mapping[str, Any]) -> PrivacyBudget | None:
        """None without privacy.

        Noise comes from the seed unless the user says otherwise: an advice can be repeated, and is
        not private anyway.

        >>> PrivacyBudget.of(Settings(), {}) is None
        True
        >>> budget = PrivacyBudget.of(Settings(epsilon=3.0), {"epsilon": 3.0})
        >>> budget.text, budget.heard(5), budget.heard(200)
        ('ε = 3 at δ = 1e-05', 5, 100)
        """
        if settings.privacy is None:
            return None
        if not isinstance(settings.privacy, Central | Local):
            raise SettingError(
                "privacy must be 'central' or 'local' for advise, got "
                f"{PROTECTIONS.text(settings.privacy)!r}: it asks what a budget of each client is "
                "worth, with noise on messages or on their sum"
            )
        return cls(
            settings.privacy,
            user_settings.get("privacy") is not None,
            settings.epsilon,
            settings.delta,
            settings.noise_source if "noise_source" in user_settings else "seed",
            settings.sample,
            "selection" in user_settings,
        )

    @property
    def text(self) -> str:
        """The budget in words."""
        if not self.epsilon:
            return f"{PROTECTIONS.text(self.protection)}, δ = {self.delta:g}"
        return f"ε = {self.epsilon:g} at δ = {self.delta:g}"

    def heard(self, training: int) -> int:
        """How many of these clients a round hears, in the mean."""
        if self.sample:
            return min(self.sample, training)
        return training // 2 if self._draws(training) else training

    def _draws(self, training: int) -> bool:
        """Whether clients are drawn each by itself, where nobody has said how."""
        if self.selects or not isinstance(self.protection, Central):
            return False
        return self.sample < training if self.sample else training >= MANY

    def settings(self, factor: float, training: int, drawn: bool = True) -> dict[str, Any]:
        """Settings of a run with step sizes times a factor.

        `drawn`: with Poisson sampling; else as many are heard in every round.
        """
        protection = self.protection if self.chosen else Central(clip=factor, quantile=0.0)
        selection = POISSON if drawn and self._draws(training) else {}
        return {
            "privacy": PROTECTIONS.text(protection),
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise_source": self.noise_source,
            "sample": self.heard(training),
            **selection,
        }

    def noise_length(self, noise: float, numbers: int, heard: int) -> float:
        """How long the noise in the mean of a round's messages is, in units of the clipping norm.

        No message is longer than 1 of them, and so no mean without noise.
        """
        each = noise * self.protection.sensitivity(1.0) * math.sqrt(numbers)
        return each / (math.sqrt(heard) if self.protection.at_client else heard)
