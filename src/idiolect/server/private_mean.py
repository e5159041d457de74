"""The server's side of privacy: who has been exposed how often, and the noisy mean of a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.types import State
from ..privacy.clipping import clip_factors, clipped_sum, message_norms
from ..privacy.noise import released
from ..privacy.plan import PrivacyPlan
from ..privacy.samples import SampleExposure

MOST_GRADIENTS = 1 << 50


@dataclass
class PrivacyAccount:
    """What every client has been exposed to, and what that has spent.

    A round counts from the moment it is opened: what a killed server had sent, it has sent.
    """

    plan: PrivacyPlan
    exposures: Tensor  # int64[N], by wire id
    clip: float  # C of the next round
    begun: int = 0  # rounds opened, those that were killed and opened again included
    log: Callable[[int], None] = field(default=lambda round: None, repr=False)
    _drawn: tuple[int, int] = (-1, 0)  # a round, and the secret seed of its sampling

    @classmethod
    def new(cls, plan: PrivacyPlan, clients: int) -> PrivacyAccount:
        """Of clients that have spent nothing."""
        kind = cls if plan.samples is None else SampleAccount
        return kind(plan, torch.zeros(clients, dtype=torch.int64), plan.protection.clip)

    def grow(self, clients: int) -> None:
        """More clients have enrolled, `clients` in all."""
        new = self.exposures.new_zeros(clients - len(self.exposures))
        self.exposures = torch.cat([self.exposures, new])

    def begin(self, round: int, eligible: Tensor, heard: Tensor) -> None:
        """A round is opened; it is written down before anything is sent."""
        self.log(round)
        self.count(eligible, heard)

    def count(self, eligible: Tensor, heard: Tensor) -> None:
        """Add an exposure of everyone who could be heard, or of those who are known to be heard."""
        self.begun += 1
        self.exposures[eligible if self.plan.exposure.amplified else heard] += 1

    def gradients(self, wire_ids: Tensor, counts: Tensor) -> None:
        """These clients report so many gradients: no exposure where messages have the noise."""

    def end(self, trained: Tensor) -> None:
        """A round is over in which these clients were to train."""

    def sampling_seed(self, round: int, seed: int) -> int:
        """What the draw of a round is keyed by: where sampling amplifies, nobody else may know."""
        if not self.plan.exposure.amplified:
            return seed
        if self._drawn[0] != round:
            self._drawn = (round, self.plan.source.word("poisson sampling", round))
        return self._drawn[1]

    # -- what has been spent ---------------------------------------------------------------------
    def epsilons(self) -> np.ndarray:  # -> float64[N]
        """ε of each client by now."""
        counts, places = np.unique(self.exposures.numpy(), return_inverse=True)
        accountant, delta = self.plan.accountant, self.plan.delta
        return np.array([accountant.epsilon(int(n), delta) for n in counts])[places]

    def worst(self) -> float:
        """ε of the client that has spent most."""
        most = int(self.exposures.max()) if len(self.exposures) else 0
        return self.plan.accountant.epsilon(most, self.plan.delta)

    def affords(self, exposed: Tensor) -> bool:
        """Whether a round that exposes these clients stays within the budget of each."""
        plan = self.plan
        if not plan.epsilon or not len(exposed):
            return True
        accountant, next_count = plan.accountant, int(self.exposures[exposed].max()) + 1
        planned = plan.exposure.rounds
        if next_count <= planned and accountant.epsilon(planned, plan.delta) <= plan.epsilon:
            return True
        return accountant.epsilon(next_count, plan.delta) <= plan.epsilon

    def worst_quickly(self) -> float:
        """The same after any round, rounded up: see `Accountant.at_most`."""
        most = int(self.exposures.max()) if len(self.exposures) else 0
        plan = self.plan
        return plan.accountant.at_most(most, plan.delta, plan.exposure.rounds)

    def figures(self) -> dict[str, Any]:
        """Plain data for a record: the plan, and what has been spent over clients."""
        epsilons = self.epsilons()
        spent: dict[str, Any] = {"worst": self.worst(), "mean": 0.0, "quantiles": []}
        if len(epsilons):
            quantiles = np.quantile(epsilons, [0, 0.25, 0.5, 0.75, 1])
            spent |= {"mean": float(epsilons.mean()), "quantiles": quantiles.tolist()}
        return self.plan.as_dict() | {
            "clip": self.clip,
            "epsilon": spent,
            "rounds": self.begun,
            "exposures": int(self.exposures.max()) if len(self.exposures) else 0,
        }

    # -- checkpoints -----------------------------------------------------------------------------
    def save(self) -> tuple[State, dict[str, Any]]:
        """(tensors, facts) for a checkpoint."""
        return {"exposures": self.exposures.clone()}, {"clip": self.clip, "begun": self.begun}

    def load(self, tensors: State, facts: dict[str, Any]) -> None:
        """As it was saved; ValueError for what was not."""
        exposures, clip, begun = tensors["exposures"], float(facts["clip"]), int(facts["begun"])
        if not 0 < clip < float("inf"):
            raise ValueError("privacy.clip must be a number > 0")
        most = begun if self.plan.samples is None else MOST_GRADIENTS
        if bool((exposures < 0).any()) or bool((exposures > most).any()):
            raise ValueError("privacy.exposures must be from 0 to the rounds begun")
        self.exposures, self.clip, self.begun = exposures.clone(), clip, begun


@dataclass
class SampleAccount(PrivacyAccount):
    """The same where single samples are protected: every gradient of a client is an exposure.

    A client that was to train and has not reported may have sent its message all the same: it
    counts with the most gradients that any client has reported. So does every round that was
    killed.
    """

    killed: int = 0  # rounds begun and not ended, since the last one that was
    most: int = 0  # gradients that a client has taken in one round
    _reported: set[int] = field(default_factory=set)

    @property
    def exposure(self) -> SampleExposure:
        assert self.plan.samples is not None
        return self.plan.samples

    def count(self, eligible: Tensor, heard: Tensor) -> None:
        self.begun += 1
        self.killed += 1

    def gradients(self, wire_ids: Tensor, counts: Tensor) -> None:
        self.most = max(self.most, int(counts.max()) if len(counts) else 0)
        self.exposures[wire_ids] += counts * self.killed
        self._reported.update(wire_ids.tolist())

    def end(self, trained: Tensor) -> None:
        silent = [k for k in trained.tolist() if k not in self._reported]
        planned = int(self.exposure.planned.max(initial=0)) if not self.most else self.most
        self.exposures[silent] += planned * self.killed
        self.killed = 0
        self._reported.clear()

    def epsilons(self) -> np.ndarray:
        return self.exposure.each(self.plan.noise, self._counts(), self.plan.delta)

    def worst(self) -> float:
        return self.exposure.worst(self.plan.noise, self._counts(), self.plan.delta)

    def worst_quickly(self) -> float:
        return self.exposure.at_most(self.plan.noise, self._counts(), self.plan.delta)

    def _counts(self) -> np.ndarray:
        return self.exposures.numpy()

    def affords(self, exposed: Tensor) -> bool:
        plan = self.plan
        if not plan.epsilon or not len(exposed):
            return True
        after = self._counts().copy()
        after[exposed.numpy()] += max(self.most, 1) * (1 + self.killed)
        if bool((after <= self.exposure.planned).all()) and not plan.protection.noise:
            return True  # the noise was chosen for that
        return self.exposure.at_most(plan.noise, after, plan.delta, True) <= plan.epsilon


@dataclass(frozen=True)
class PrivateMean:
    """The release of a round where the server adds the noise."""

    account: PrivacyAccount

    def __call__(
        self, up: State, reference: State, version: int
    ) -> tuple[State, float]:  # -> {part: [1, m]}, C of the next round
        """The noisy mean of the messages, clipped together with all their parts.

        The divisor is the number of clients that a round is to hear, which is known, and not the
        number that it has heard. With no message at all it is noise: that nobody was heard must not
        show. Parts that are models are the reference and the mean change.
        """
        account, plan = self.account, self.account.plan
        norms = message_norms(up, reference)
        factors = clip_factors(norms, account.clip)
        adaptive = plan.adaptive_clip
        noise = plan.noise if adaptive is None else adaptive.update_noise
        sigma = noise * plan.protection.sensitivity(account.clip)
        means = {}
        for name, rows in sorted(up.items()):
            own = reference.get(name)
            total = clipped_sum(rows, own, factors)
            normal = plan.source.normal(1, len(total), f"mean {name}", version).to(total.device)
            mean = (released(total, normal, sigma) / plan.sample).to(rows.dtype)
            means[name] = (mean if own is None else own + mean).unsqueeze(0)
        if adaptive is None:
            return means, account.clip
        count = float(plan.source.normal(1, 2, "count", version)[0, 0])
        return means, adaptive.after(account.clip, norms, count)
