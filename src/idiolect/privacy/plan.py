"""What a run has agreed on about privacy: noise, clipping and budget, as numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..core.knobs import SettingError
from ..core.streams import Keys
from ..core.types import State
from ..task.sample_clipping import SampleClipping
from .accountant import Accountant, Exposure, calibrated_noise
from .clipping import AdaptiveClip, clip_factors, message_norms
from .noise import Noise, released
from .protection import Central, Protection
from .samples import SampleExposure, sample_clipping
from .sums.grid import Grid

FEWEST_STEPS = 4  # of the grid, to the standard deviation of a share of noise


@dataclass(frozen=True)
class MessageNoise:
    """What a client does to its own message before it leaves: clips it, and adds noise."""

    clip: float  # C
    sigma: float  # of the noise
    noise: Noise = field(repr=False)

    def __call__(self, up: State, reference: State, clients: Keys, turn: int) -> State:
        """Messages of these clients, their parts as changes of the reference where there is one."""
        factors = clip_factors(message_norms(up, reference), self.clip)
        messages = {}
        for name, rows in sorted(up.items()):
            own = reference[name] if name in reference else rows.new_zeros(rows.shape[1])
            noise = self.noise.normal(len(rows), rows.shape[1], f"message {name}", turn, clients)
            column = factors.unsqueeze(1).to(rows.device)
            # a message that is not finite goes as noise alone: that it was not must not show
            changes = ((rows - own).double() * column).where(column > 0, 0.0)
            private = released(changes, noise.to(rows.device), self.sigma)
            messages[name] = own + private.to(rows.dtype)
        return messages


@dataclass(frozen=True)
class SharedNoise:
    """The share of each client in the noise of a secure sum: at least `least` shares count.

    A share is rounded to whole steps of the grid. The sum of n rounded shares is, but for less
    than 10^-60 in total variation where a share is of four steps or more, the rounded sum of one
    Gaussian of their joint variance and of n - 1 uniform numbers: what is proved of the Gaussian
    holds.
    """

    multiplier: float  # z, of the sum of `least` clients
    least: int
    noise: Noise = field(repr=False)

    def steps(self, rows: int, grid: Grid, keys: Callable[[], Keys]) -> Tensor:  # -> int64[rows, m]
        share = self.multiplier * grid.norm / math.sqrt(self.least)
        if share < FEWEST_STEPS:
            raise SettingError(
                f"secure_sums: bits must leave at least {FEWEST_STEPS} steps to each client's "
                f"share of the noise, got {share:.3g} with {grid.bits} bits"
            )
        normal = self.noise.normal(rows, grid.numbers, "share", 0, keys())
        return normal.mul_(share).round_().long()


@dataclass(frozen=True)
class Mechanism:
    """What stays as it was when a run began, whatever rounds and clients are added to it.

    Were the noise chosen anew for more rounds, those that are done would be counted with more
    noise than they had.
    """

    noise: float  # z
    rate: float  # q of Poisson sampling; 1 = whoever is heard is known
    rounds: int  # the most that a client was to be exposed to
    sample: int  # m
    clients: int  # N
    # gradients of each client that the noise was chosen for, where single samples are protected
    planned: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.noise < math.inf or not 0 < self.rate <= 1:
            raise ValueError("noise must be a number > 0, and rate one above 0 and at most 1")
        if min(self.rounds, self.sample - 1, self.clients - 1, *self.planned) < 0:
            raise ValueError("rounds must be a whole number >= 0, sample and clients >= 1")


@dataclass(frozen=True)
class PrivacyPlan:
    """A protection with its noise known, and how often a round may touch a client."""

    protection: Protection
    clip: float  # C: where it moves, of the first round
    noise: float  # z
    delta: float
    epsilon: float  # the budget of every client; 0 = none, what is spent is counted
    exposure: Exposure
    sample: int  # m, clients heard per round: with Poisson sampling their expected number
    clients: int  # N, that may take part when the run starts
    source: Noise
    samples: SampleExposure | None = None  # where single samples are protected

    @classmethod
    def of(
        cls,
        protection: Protection,
        clip: float,
        epsilon: float,
        delta: float,
        exposure: Exposure,
        sample: int,
        clients: int,
        source: Noise,
        samples: SampleExposure | None = None,
    ) -> PrivacyPlan:
        """With as little noise as the budget allows, where the protection has none of its own."""
        noise = protection.noise
        if not noise and samples is not None:
            noise = samples.calibrated(epsilon, delta)
        elif not noise:
            noise = calibrated_noise(epsilon, delta, exposure)
        how = (protection, clip, noise, delta, epsilon, exposure)
        return cls(*how, sample, clients, source, samples)

    @classmethod
    def begun(
        cls,
        protection: Protection,
        clip: float,
        epsilon: float,
        delta: float,
        mechanism: Mechanism,
        source: Noise,
        samples: SampleExposure | None = None,
    ) -> PrivacyPlan:
        """That of a run that has begun."""
        exposure = Exposure(mechanism.rate, mechanism.rounds)
        sample, clients = mechanism.sample, mechanism.clients
        noise = mechanism.noise
        how = (protection, clip, noise, delta, epsilon, exposure)
        return cls(*how, sample, clients, source, samples)

    @property
    def mechanism(self) -> Mechanism:
        """What a run begins with, and keeps."""
        exposure, planned = self.exposure, ()
        if self.samples is not None and self.samples.planned.any():
            planned = tuple(self.samples.planned.tolist())
        how = (self.noise, exposure.rate, exposure.rounds, self.sample, self.clients)
        return Mechanism(*how, planned)

    @property
    def at_server(self) -> bool:
        """Whether the server adds the noise."""
        return not (self.protection.at_client or self.protection.in_sums)

    @property
    def accountant(self) -> Accountant:
        return Accountant(self.noise, self.exposure.rate)

    def adaptive_clip(self, sample: int) -> AdaptiveClip | None:
        """How the clipping norm moves after a round with so many; None where it stays."""
        p = self.protection
        if not isinstance(p, Central) or not p.adaptive:
            return None
        return AdaptiveClip(p.quantile, p.clip_rate, self.noise, sample)

    @property
    def message_noise(self) -> MessageNoise | None:
        """What clients do to their messages; None where the server adds the noise."""
        p = self.protection
        if not p.at_client or p.unit != "client":
            return None
        return MessageNoise(self.clip, self.noise * p.sensitivity(self.clip), self.source)

    def shared_noise(self, least: int) -> SharedNoise | None:
        """What clients add to messages of secure sums of which at least so many count."""
        if not self.protection.in_sums:
            return None
        return SharedNoise(self.noise, least, self.source)

    @property
    def sample_clipping(self) -> SampleClipping | None:
        """What clients do to every gradient; None where clients are protected as a whole."""
        p = self.protection
        if p.unit != "sample":
            return None
        return sample_clipping(self.clip, self.noise, self.source)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for a record."""
        p = self.protection
        return {
            "protects": p.title,
            "against": p.against,
            "trusted": p.trusted,
            "neighbours": p.neighbours,
            "unit": p.unit,
            "noise": self.noise,
            "delta": self.delta,
            "budget": self.epsilon,
            "sampling": "poisson" if self.exposure.amplified or self.samples else "known",
            "rate": self.exposure.rate,
            "source": self.source.source,
            "clip": self.clip,
            "adaptive": p.adaptive,
        }
