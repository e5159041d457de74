"""Candidates trained under equal compute, and what each held-out sample says of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...core.knobs import SettingError
from ...data.federation import Federation
from ...method import Method
from ...methods import label_of
from ...run.plan import Plan
from ...run.result import Result
from ...run.run import run
from ...task.task import Task
from .holdout import Holdout

STEP = 4.0  # between two step sizes of the grid
FIRST = (0, -1, 1)  # the grid: the method's own step sizes times STEP to these powers
MOST = 3  # how far the grid goes where its best is at its edge
KEPT = 2  # step sizes of a candidate that are trained under every seed, at most


@dataclass
class Candidate:
    """A method among those that are compared."""

    plan: Plan
    rounds: int = 0  # that it can pay
    # what was trained: (power of STEP, seed from 0) -> a value per held-out sample, [hits, loss]
    found: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    kept: list[int] = field(default_factory=list)  # the step sizes trained under every seed
    powers: tuple[int, int] = (0, 0)  # of halves A and B, each chosen on the other one
    power: int = 0  # to deploy: chosen on both
    gradients: float = 0.0  # per client, in the last training
    bytes_up: float = 0.0  # per round, of all clients together
    bytes_down: float = 0.0

    @property
    def name(self) -> str:
        return self.plan.short_name

    @property
    def label(self) -> str:
        return label_of(self.base) + self.plan.note

    @cached_property
    def base(self) -> Method:
        """The method with its own step sizes."""
        return self.plan.make_method()

    @property
    def bytes(self) -> float:
        """Per round, both directions."""
        return self.bytes_up + self.bytes_down

    @property
    def personal(self) -> bool:
        """Whether each client has its own model: not where all predict with the shared one."""
        return type(self.base).personal is not Method.personal

    @property
    def rates(self) -> list[str]:
        """The fields that are step sizes; a user-defined method may have none."""
        return [name for name in self.base.traits.rates if hasattr(self.base, name)]

    @property
    def tried(self) -> list[int]:
        """The powers of STEP that were tried."""
        return sorted({power for power, _ in self.found})

    def method(self, power: int) -> Method:
        """The method with all its step sizes times STEP to a power: their ratios stay."""
        method = self.base
        rates = {name: getattr(method, name) * STEP**power for name in self.rates}
        return replace(method, **rates) if power else method

    def scores(self, seeds: int, half: np.ndarray) -> np.ndarray:  # -> [2, seeds, n]
        """Hits and loss of every sample under every seed; NaN where it was not held out.

        A sample is judged with the step size that was chosen on the other half.
        """
        by_half = [
            np.stack([self.found[power, seed] for seed in range(seeds)], axis=1)
            for power in self.powers
        ]
        return np.where(half, by_half[1], by_half[0]).astype(np.float64)


@dataclass(frozen=True)
class Trainer:
    """Trains candidates on what is not held out, all with the same compute."""

    task: Task
    holdout: Holdout
    settings: Mapping[str, Any]
    seed: int  # the first one
    budget: int  # gradients per client
    metric: str
    spent: Callable[[str], None]  # called after every training
    # the federation and the held-out samples of the seed at work
    _ready: dict[int, tuple[Federation, np.ndarray]] = field(default_factory=dict)

    def split(self, seed: int) -> tuple[Federation, np.ndarray]:
        """`Holdout.under`, made once while one seed after the other is at work."""
        if seed not in self._ready:
            self._ready.clear()
            self._ready[seed] = self.holdout.under(seed)
        return self._ready[seed]

    def price(self, candidate: Candidate) -> None:
        """How many rounds the candidate can pay: one round shows what a round costs."""
        result = self._run(candidate, candidate.base, 0, 1)
        rows = result.seeds[0].clients
        training = [row["gradients"] for row in rows if row["train_samples"]]
        per_round = sum(training) / len(training)
        before_use = result.seeds[0].gradients_per_client - sum(training) / len(rows)
        if not per_round:
            raise SettingError(f"{candidate.label}: it computes no gradient in a round")
        candidate.rounds = max(1, round((self.budget - before_use) / per_round))

    def train(self, candidate: Candidate, power: int, seed: int) -> None:
        """One training, if it was not done yet."""
        if (power, seed) in candidate.found:
            return
        result = self._run(candidate, candidate.method(power), seed, candidate.rounds)
        _, held_out = self.split(seed)
        scores = np.full((2, self.holdout.samples), math.nan, dtype=np.float32)
        session = result.session()
        message = session.server.message(session.server.version)
        hits, loss = session.hosts[0].each_sample(session.server.version, message, "valid")
        scores[:, held_out] = np.stack([hits.numpy(), loss.numpy()])
        candidate.found[power, seed] = scores
        summary = result.summary()
        candidate.gradients = summary["gradients_per_client"]
        candidate.bytes_up = summary["bytes"]["up"] / candidate.rounds
        candidate.bytes_down = summary["bytes"]["down"] / candidate.rounds
        self.spent(candidate.name)

    def _run(self, candidate: Candidate, method: Method, seed: int, rounds: int) -> Result:
        federation, _ = self.split(seed)
        settings = {
            "sample": int((federation.sizes("train") > 0).sum()),
            **self.settings,
            **candidate.plan.own,
            "rounds": rounds,
            "seed": self.seed + seed,
            "seeds": 1,
            "eval_every": 0,
        }
        return run(method, self.task, federation, progress=False, **settings)

    # -- step sizes ------------------------------------------------------------------------------
    def search_steps(
        self, candidate: Candidate, proceed: Callable[[], None] = lambda: None
    ) -> None:
        """The step sizes that are worth training under every seed, by the first one.

        The grid grows beyond its edge while its best lies there. What is then clearly worse than
        the best, by more than two standard errors of the paired difference, is dropped. `proceed`
        is called before every training, and may raise.
        """
        for power in FIRST if candidate.rates else FIRST[:1]:
            proceed()
            self.train(candidate, power, 0)
        while True:
            best = self._best(candidate, candidate.tried, 1)
            low, high = candidate.tried[0], candidate.tried[-1]
            proceed()
            if not candidate.rates:
                break
            if best == low > -MOST:
                self.train(candidate, low - 1, 0)
            elif best == high < MOST:
                self.train(candidate, high + 1, 0)
            else:
                break
        _, held_out = self.split(0)
        mine = self._values(candidate.found[best, 0][:, held_out])
        behind = {}
        for power in candidate.tried:
            with np.errstate(invalid="ignore"):  # models that diverged
                d = mine - self._values(candidate.found[power, 0][:, held_out])
            if np.isfinite(d).all() and d.mean() <= 2 * d.std() / math.sqrt(len(d)):
                behind[power] = float(d.mean())
        candidate.kept = sorted(sorted(behind, key=lambda power: behind[power])[:KEPT]) or [best]

    def choose_steps(self, candidate: Candidate, seeds: int) -> None:
        """The step size for each half: the best on the other one, over all seeds.

        And the one to deploy: the best on both.
        """
        half = self.holdout.half
        by_b = self._best(candidate, candidate.kept, seeds, half)
        by_a = self._best(candidate, candidate.kept, seeds, ~half)
        candidate.powers = (by_b, by_a)  # of half A, of half B
        candidate.power = self._best(candidate, candidate.kept, seeds)

    def _best(
        self,
        candidate: Candidate,
        powers: Sequence[int],
        seeds: int,
        samples: np.ndarray | None = None,  # bool[n]: only these
    ) -> int:
        """The step size that the held-out samples prefer; of equal ones by their loss."""
        mask = self.holdout.mask(seeds) & (True if samples is None else samples)

        def key(power: int) -> tuple[float, float, int]:
            scores = np.stack([candidate.found[power, s] for s in range(seeds)], axis=1)[:, mask]
            if not mask.any() or not np.isfinite(scores[1]).all():
                return -math.inf, -math.inf, -abs(power)
            loss = scores[1].astype(np.float64).mean()
            return float(self._values(scores).mean()), -float(loss), -abs(power)

        return max(powers, key=key)

    def _values(self, scores: np.ndarray) -> np.ndarray:  # [2, ...] -> [...]
        """What counts of hits and losses, higher is better."""
        hits, loss = scores.astype(np.float64)
        return hits if self.metric == "accuracy" else -loss
