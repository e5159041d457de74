"""The server's side of privacy: who has been exposed how often, and the noisy mean of a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
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
    killed: int = 0  # of these, rounds that were begun and are in no checkpoint
    log: Callable[[int], None] = field(default=lambda round: None, repr=False)
    _drawn: tuple[int, int] = (-1, 0)  # a round, and the secret seed of its sampling

    @classmethod
    def new(cls, plan: PrivacyPlan, clients: int) -> PrivacyAccount:
        """Of clients that have spent nothing."""
        kind = cls if plan.samples is None else SampleAccount
        return kind(plan, torch.zeros(clients, dtype=torch.int64), plan.clip)

    def grow(self, sizes: list[int]) -> None:
        """More clients have enrolled, with so many training samples each.

        One of them may have been heard in a round that was killed before it was in a checkpoint.
        """
        new = self.exposures.new_full((len(sizes),), self._of_newcomer())
        self.exposures = torch.cat([self.exposures, new])

    def _of_newcomer(self) -> int:
        return self.killed

    def begin(self, round: int, eligible: Tensor, heard: Tensor) -> None:
        """A round is opened; it is written down before anything is sent."""
        exposed = eligible if self.plan.exposure.amplified else heard
        if not self.affords(exposed):
            raise RuntimeError(f"privacy: round {round + 1} would spend more than epsilon")
        self.log(round)
        self.begun += 1
        self._expose(exposed)

    def count_killed(self, exposed: Tensor) -> None:
        """Add an exposure of these, of a round that was begun by a process that ended in it."""
        self.begun += 1
        self.killed += 1
        self._expose(exposed)

    def again(self, round: int, asked: Tensor) -> bool:
        """Whether these clients may be asked for the messages of a round once more.

        They would have other noise, unless that comes from the seed. It is written down, too.
        """
        plan = self.plan
        if plan.at_server or not plan.source.secret:
            return True
        if not self.affords(asked):
            return False
        self.log(round)
        self.begun += 1
        self._expose(asked)
        return True

    def _expose(self, exposed: Tensor) -> None:
        self.exposures[exposed] += 1

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
        facts = {"noise": self.plan.noise, "clip": self.clip}
        counts = {"begun": self.begun, "killed": self.killed}
        return {"exposures": self.exposures.clone()}, facts | counts

    def load(self, tensors: State, facts: dict[str, Any], rounds: int) -> None:
        """As it was saved after so many rounds; ValueError for what was not."""
        exposures, clip = tensors["exposures"], float(facts["clip"])
        begun, killed = int(facts["begun"]), int(facts["killed"])
        if facts["noise"] != self.plan.noise:
            raise ValueError(
                f"privacy.noise must be {self.plan.noise!r}, as the run was begun, got "
                f"{facts['noise']!r}"
            )
        if not 0 < clip < float("inf"):
            raise ValueError("privacy.clip must be a number > 0")
        if begun < rounds + killed:
            raise ValueError("privacy.begun must be at least the rounds done and killed")
        most = begun if self.plan.samples is None else MOST_GRADIENTS
        if bool((exposures < 0).any()) or bool((exposures > most).any()):
            raise ValueError("privacy.exposures must be from 0 to the rounds begun")
        self.exposures, self.clip = exposures.clone(), clip
        self.begun, self.killed = begun, killed


@dataclass
class SampleAccount(PrivacyAccount):
    """The same where single samples are protected: every gradient of a client is an exposure.

    A client that was to train and has not reported may have sent its message all the same: it
    counts with the most gradients that any client has reported. So does one of a round that was
    killed, or whose message was asked for again.
    """

    most: int = 0  # gradients that a client has taken in one round
    # rounds by wire id whose gradients are not known; empty = none
    unknown: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    _reported: set[int] = field(default_factory=set)

    @property
    def exposure(self) -> SampleExposure:
        assert self.plan.samples is not None
        return self.plan.samples

    def grow(self, sizes: list[int]) -> None:
        super().grow(sizes)
        self.plan = replace(self.plan, samples=self.exposure.grown(np.array(sizes)))
        if len(self.unknown):
            self.unknown = torch.cat([self.unknown, self.unknown.new_zeros(len(sizes))])

    def _of_newcomer(self) -> int:
        return self.killed * self._most_per_round()

    def _expose(self, exposed: Tensor) -> None:
        if not len(self.unknown):
            self.unknown = torch.zeros_like(self.exposures)
        self.unknown[exposed] += 1

    def begin(self, round: int, eligible: Tensor, heard: Tensor) -> None:
        self.log(round)
        self.begun += 1

    def gradients(self, wire_ids: Tensor, counts: Tensor) -> None:
        self.most = max(self.most, int(counts.max()) if len(counts) else 0)
        self.exposures[wire_ids] += counts
        self._reported.update(wire_ids.tolist())

    def end(self, trained: Tensor) -> None:
        silent = [k for k in trained.tolist() if k not in self._reported]
        self._expose(torch.tensor(silent, dtype=torch.int64))
        self._reported.clear()
        if self.most:
            self.exposures = torch.from_numpy(self._counts())
            self.unknown = self.unknown[:0]

    def _most_per_round(self) -> int:
        """Gradients of a client in one round, as far as is known: as planned before the first."""
        rounds = max(self.plan.exposure.rounds, 1)
        return self.most or -(-int(self.exposure.planned.max(initial=0)) // rounds) or 1

    def epsilons(self) -> np.ndarray:
        return self.exposure.each(self.plan.noise, self._counts(), self.plan.delta)

    def worst(self) -> float:
        return self.exposure.worst(self.plan.noise, self._counts(), self.plan.delta)

    def worst_quickly(self) -> float:
        return self.exposure.at_most(self.plan.noise, self._counts(), self.plan.delta)

    def _counts(self) -> np.ndarray:
        known = self.exposures.numpy()
        return known + self.unknown.numpy() * self._most_per_round() if len(self.unknown) else known

    def save(self) -> tuple[State, dict[str, Any]]:
        _, facts = super().save()
        return {"exposures": torch.from_numpy(self._counts().copy())}, facts | {"most": self.most}

    def load(self, tensors: State, facts: dict[str, Any], rounds: int) -> None:
        super().load(tensors, facts, rounds)
        if facts["most"] > MOST_GRADIENTS:
            raise ValueError(f"privacy.most must be at most {MOST_GRADIENTS}")
        self.most = facts["most"]

    def affords(self, exposed: Tensor) -> bool:
        plan = self.plan
        if not plan.epsilon or not len(exposed):
            return True
        after = self._counts().copy()
        after[exposed.numpy()] += self._most_per_round()
        if bool((after <= self.exposure.planned).all()) and not plan.protection.noise:
            return True  # the noise was chosen for that
        return self.exposure.at_most(plan.noise, after, plan.delta, True) <= plan.epsilon


@dataclass(frozen=True)
class PrivateMean:
    """The release of a round where the server adds the noise."""

    account: PrivacyAccount

    def divisor(self, asked: int) -> int:
        """What the sum is divided by: a number that tells nothing of what clients sent.

        The number of clients asked for a message, where that is known; else the expected one.
        """
        plan = self.account.plan
        return plan.sample if plan.exposure.amplified else max(asked, 1)

    def __call__(
        self, up: State, reference: State, version: int, asked: int
    ) -> tuple[State, float]:  # -> {part: [1, m]}, C of the next round
        """The noisy mean of the messages, clipped together with all their parts.

        With no message at all it is noise: that nobody was heard must not show. Parts that are
        models are the reference and the mean change.
        """
        account, plan = self.account, self.account.plan
        divisor = self.divisor(asked)
        norms = message_norms(up, reference)
        factors = clip_factors(norms, account.clip)
        adaptive = plan.adaptive_clip(divisor)
        noise = plan.noise if adaptive is None else adaptive.update_noise
        sigma = noise * plan.protection.sensitivity(account.clip)
        means = {}
        for name, rows in sorted(up.items()):
            own = reference.get(name)
            total = clipped_sum(rows, own, factors)
            normal = plan.source.normal(1, len(total), f"mean {name}", version).to(total.device)
            mean = (released(total, normal, sigma) / divisor).to(rows.dtype)
            means[name] = (mean if own is None else own + mean).unsqueeze(0)
        if adaptive is None:
            return means, account.clip
        count = float(plan.source.normal(1, 2, "count", version)[0, 0])
        return means, adaptive.after(account.clip, norms, count)
