"""What a run has agreed on about privacy: noise, clipping and budget, as numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..core.streams import Keys
from ..core.types import State
from .accountant import Accountant, Exposure, calibrated_noise
from .clipping import AdaptiveClip, clip_factors, message_norms
from .noise import Noise, released
from .protection import Central, Protection


@dataclass(frozen=True)
class MessageNoise:
    """What a client does to its own message before it leaves: clips it, and adds noise."""

    clip: float  # C
    sigma: float  # of the noise
    noise: Noise = field(repr=False)

    def __call__(self, up: State, reference: State, clients: Keys, turn: int) -> State:
        """Messages of these clients, their parts as changes of the reference where there is one."""
        norms = message_norms(up, reference)
        factors = clip_factors(norms, self.clip)
        sound = norms.isfinite().unsqueeze(1)  # that training diverged would tell too: no change
        messages = {}
        for name, rows in sorted(up.items()):
            own = reference[name] if name in reference else rows.new_zeros(rows.shape[1])
            noise = self.noise.normal(len(rows), rows.shape[1], f"message {name}", turn, clients)
            changes = (rows - own).double() * factors.unsqueeze(1).to(rows.device)
            changes = changes.where(sound.to(rows.device), 0.0)
            private = released(changes, noise.to(rows.device), self.sigma)
            messages[name] = own + private.to(rows.dtype)
        return messages


@dataclass(frozen=True)
class PrivacyPlan:
    """A protection with its noise known, and how often a round may touch a client."""

    protection: Protection
    noise: float  # z
    delta: float
    epsilon: float  # the budget of every client; 0 = none, what is spent is counted
    exposure: Exposure
    sample: int  # m, clients heard per round: with Poisson sampling their expected number
    clients: int  # N, that may take part when the run starts
    source: Noise

    @classmethod
    def of(
        cls,
        protection: Protection,
        epsilon: float,
        delta: float,
        exposure: Exposure,
        sample: int,
        clients: int,
        source: Noise,
    ) -> PrivacyPlan:
        """With as little noise as the budget allows, where the protection has none of its own."""
        noise = protection.noise or calibrated_noise(epsilon, delta, exposure)
        return cls(protection, noise, delta, epsilon, exposure, sample, clients, source)

    @property
    def accountant(self) -> Accountant:
        return Accountant(self.noise, self.exposure.rate)

    @property
    def adaptive_clip(self) -> AdaptiveClip | None:
        """How the clipping norm moves; None where it stays."""
        p = self.protection
        if not isinstance(p, Central) or not p.adaptive:
            return None
        return AdaptiveClip(p.quantile, p.clip_rate, self.noise, self.sample)

    @property
    def message_noise(self) -> MessageNoise | None:
        """What clients do to their messages; None where the server adds the noise."""
        p = self.protection
        if not p.at_client:
            return None
        return MessageNoise(p.clip, self.noise * p.sensitivity(p.clip), self.source)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for a record."""
        p = self.protection
        return {
            "protects": p.title,
            "against": p.against,
            "trusted": p.trusted,
            "neighbours": p.neighbours,
            "unit": "client",
            "noise": self.noise,
            "delta": self.delta,
            "budget": self.epsilon,
            "sampling": "poisson" if self.exposure.amplified else "known",
            "rate": self.exposure.rate,
            "source": self.source.source,
            "clip": p.clip,
            "adaptive": p.adaptive,
        }
