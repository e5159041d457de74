"""Candidates trained under equal compute, and what each held-out sample says of them.

Test data are cut off before anything else. Held out are either the federation's own validation
samples, where they are ENOUGH, or folds: each client's training and validation samples in one
random order, of which each seed holds out another fold, so that every sample judges once. A client
with fewer samples than folds has as many folds as samples, and one of a single sample keeps it for
training. Samples of one group (`Federation.groups`) are held out together, and folds are counted in
groups.

Where samples have times (`Federation.times`), folds go forward in time (a rolling origin): each
client's samples are cut in their order into one block more than there are folds, and a fold trains
on what comes before one of the blocks and is judged on that block. What comes after it is left out,
the first block judges nothing, and every judged sample is later than all training samples of its
client. The first seed has the last block, and so most training samples.

The held-out samples of each client fall into two halves, A and B. What is chosen (a step size) is
chosen on one half and judged on the other, so that no sample judges what was chosen by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ...core import streams
from ...core.knobs import SettingError, acts
from ...core.types import Tree, first, map_tree
from ...data.federation import Federation
from ...data.prepare.target_sums import bytes_of_moments
from ...data.splits import fold_counts, group_ranks, time_blocks, unit_owners
from ...method import Method
from ...methods import label_of
from ...report.captions import diverged
from ...report.verdicts import weighed_terms
from ...run.plan import Plan
from ...run.result import Result
from ...run.run import run
from ...run.session import Session
from ...task.task import Task
from .budget import PrivacyBudget
from .estimate import LOCAL
from .figures import MetricFigures

FOLDS = 5  # at most; with fewer seeds as many as seeds
FEWEST_FOLDS = 3  # two would train on half of the samples
# Validation samples that judge by themselves. Of candidates that disagree on one sample in ten, the
# paired difference of n samples has an interval of ± 1.96 sqrt(0.1 / n): one point at 4,000.
ENOUGH = 4000
GIVEN = "given"
IN_FOLDS = "folds"


def _rows(federation: Federation, index: Tensor) -> Federation:
    """The same clients, with these rows only; the offsets are the caller's to set."""
    at = index.to(first(federation.inputs).device)
    whole = torch.equal(index, torch.arange(len(index)))

    def chosen(t: Tensor) -> Tensor:
        return t[: len(index)] if whole else t[at]  # no copy of the first rows

    return replace(
        federation,
        inputs=map_tree(chosen, federation.inputs),
        targets=map_tree(chosen, federation.targets),
        sequences=federation.sequences and federation.sequences.of(index),
        groups=None if federation.groups is None else federation.groups[index],
        weights=None if federation.weights is None else federation.weights[index],
        subgroups=tuple(column.map(lambda t: t[index]) for column in federation.subgroups),
        times=None if federation.times is None else federation.times[index],
    )


@dataclass(frozen=True)
class Holdout:
    """The samples that may be held out, and who holds them out when."""

    data: Federation  # without test samples
    kind: str  # GIVEN or IN_FOLDS
    owner: np.ndarray  # int64[n]: the position of each sample's client
    half: np.ndarray  # bool[n]: whether it belongs to half B
    _order: np.ndarray  # int64[n]: the row of `data` that each sample is
    _fold: np.ndarray  # int64[n]: in which fold it is; -1 of one that judges nothing
    _folds: np.ndarray  # int64[clients]: how many folds each client has
    group: np.ndarray | None = None  # int64[n]: samples of one group say the same, as a patient's
    weights: np.ndarray | None = None  # float64[n]: how much each counts; None: all alike
    time: np.ndarray | None = None  # int64[n]: where folds go forward in time

    @classmethod
    def of(cls, federation: Federation, kind: str, seed: int, seeds: int = FOLDS) -> Holdout:
        """Of a federation: `kind` is "given", "folds", or "auto": given where they are ENOUGH.

        `seeds`: trainings of a candidate, which are as many folds where that can be.
        """
        # a preparation sends one message before the first round, which is no cost of the rounds
        data = replace(federation.without("test"), preparation=None)
        has = bool(data.sizes("valid").any())
        if kind == GIVEN and not has:
            raise SettingError(
                "validation must be 'folds' where no client has validation samples, got 'given'"
            )
        if kind == "auto":
            kind = GIVEN if int(data.sizes("valid").sum()) >= ENOUGH else IN_FOLDS
        splits = ("valid",) if kind == GIVEN else ("train", "valid")
        clients = np.arange(data.clients)
        sizes = {s: data.sizes(s).numpy() for s in splits}
        owner = np.concatenate([np.repeat(clients, sizes[s]) for s in splits])
        low = int(data.offsets[splits[0]][0])
        rows = low + np.arange(len(owner))
        order = np.lexsort((rows, owner))  # together by client
        owner, rows = owner[order], rows[order]
        count = np.bincount(owner, minlength=data.clients)
        group = None if data.groups is None else data.groups.numpy()[rows]
        weights = None if data.weights is None else data.weights.numpy()[rows]
        if weights is not None and (weights == weights[:1]).all():
            weights = None  # they say nothing
        most = min(FOLDS, max(FEWEST_FOLDS, seeds))
        if kind == IN_FOLDS and data.times is not None:
            time = data.times.numpy()[rows]
            fold, folds = _folds_in_time(owner, time, group, data.clients, most)
            half = (_ranks(data, owner, count, seed, group=group) + owner) % 2 == 1
            return cls(data, kind, owner, half, rows, fold, folds, group, weights, time)
        folds = np.ones_like(count)
        if kind == IN_FOLDS:
            folds = fold_counts(owner, group, data.clients, most)
        rank = _ranks(data, owner, count, seed, group=group)
        several = np.maximum(folds, 1)[owner]
        half = (rank // several + owner) % 2 == 1
        fold = np.where(several > 1, rank % several, -1)
        return cls(data, kind, owner, half, rows, fold, folds, group, weights)

    def mean(self, values: np.ndarray) -> float:
        """The mean of values[..., n] by the weights of the samples, of those that are not NaN."""
        weights = np.ones(self.samples) if self.weights is None else self.weights
        counted = np.where(np.isnan(values), 0.0, weights).sum()
        return float(np.nansum(values * weights) / counted) if counted else math.nan

    @property
    def samples(self) -> int:
        return len(self.owner)

    @property
    def folds(self) -> int:
        """Of a client with enough samples; 1 where validation samples are as given."""
        return int(self._folds.max(initial=1))

    @property
    def targets(self) -> Tree:
        """The targets of the samples."""
        at = torch.from_numpy(self._order).to(first(self.data.targets).device)
        return map_tree(lambda t: t[at].cpu(), self.data.targets)

    def held(self, seed: int) -> np.ndarray:  # -> int64
        """Which samples are held out under a seed, counted from 0."""
        if self.kind == GIVEN:
            return np.arange(self.samples)
        return np.flatnonzero(self._sides(seed)[1])

    def _sides(self, seed: int) -> tuple[np.ndarray, np.ndarray]:  # -> bool[n], bool[n]
        """Which samples train and which are held out under a seed, where there are folds."""
        now = (seed % np.maximum(self._folds, 1))[self.owner]
        held_out = self._fold == now
        if self.time is None:
            return ~held_out, held_out
        begins = np.full(self.data.clients, np.iinfo(np.int64).max)  # of the block that is judged
        np.minimum.at(begins, self.owner[held_out], self.time[held_out])
        # folds count back from the last block; a group may be earlier and end later
        earlier = (self._fold > now) | (self._fold == -1)
        trains = earlier & (self.time < begins[self.owner])
        has_training = np.bincount(self.owner[trains], minlength=self.data.clients) > 0
        return trains, held_out & has_training[self.owner]

    def mask(self, seeds: int) -> np.ndarray:  # -> bool[seeds, n]
        """Which samples are held out under each of some seeds."""
        mask = np.zeros((seeds, self.samples), dtype=bool)
        for seed in range(seeds):
            mask[seed, self.held(seed)] = True
        return mask

    def under(self, seed: int) -> tuple[Federation, np.ndarray]:
        """The federation whose validation samples are held out under a seed, counted from 0.

        And which samples they are, in the order in which the federation has them.
        """
        if self.kind == GIVEN:
            return self.data, np.arange(self.samples)
        trains, held_out = self._sides(seed)
        at = np.concatenate([np.flatnonzero(trains), np.flatnonzero(held_out)])
        subset = _rows(self.data, torch.from_numpy(self._order[at]))
        offsets = {}
        start = 0
        for split, mask in (("train", trains), ("valid", held_out)):
            sizes = np.bincount(self.owner[mask], minlength=self.data.clients)
            ends = start + np.concatenate([[0], sizes.cumsum()])
            offsets[split] = torch.from_numpy(ends)
            start = int(ends[-1])
        offsets["test"] = torch.full((self.data.clients + 1,), start)
        return replace(subset, offsets=offsets), np.flatnonzero(held_out)

    def halves(self, seed: int) -> Federation:
        """Twice as many clients: each one's training samples in two random halves.

        Clients 2 k and 2 k + 1 are the halves of client k. For models that share no sample.
        """
        data = self.data
        sizes = data.sizes("train").numpy()
        owner = np.repeat(np.arange(data.clients), sizes)
        group = None if data.groups is None else data.groups_of("train").numpy()
        rank = _ranks(data, owner, sizes, seed, "halves", group)
        new = 2 * owner + rank % 2
        order = np.argsort(new, kind="stable")
        subset = _rows(data, torch.from_numpy(order))
        ends = np.concatenate([[0], np.bincount(new, minlength=2 * data.clients).cumsum()])
        none = torch.full((len(ends),), int(ends[-1]))
        offsets = {"train": torch.from_numpy(ends), "valid": none, "test": none}
        return replace(subset, offsets=offsets, ids=tuple(range(2 * data.clients)), name="halves")


def _folds_in_time(
    owner: np.ndarray, time: np.ndarray, group: np.ndarray | None, clients: int, most: int
) -> tuple[np.ndarray, np.ndarray]:  # -> int64[n], int64[clients]
    """The fold of each sample, counted back from each client's last block, and their number.

    The first block is in none, -1. Clients that share groups have the same number of folds, so that
    a group is judged at all of them under the same seed.
    """
    block = time_blocks(owner, time, group, most + 1)
    folds = np.zeros(clients, dtype=np.int64)
    np.maximum.at(folds, owner, block)
    if group is not None and len(group):
        _, unit = np.unique(group, return_inverse=True)
        is_shared = unit_owners(owner, unit)[unit] > owner.max()
        shares = np.bincount(owner[is_shared], minlength=clients) > 0
        folds[shares] = folds[shares].max(initial=0)
    return np.where(block > 0, folds[owner] - block, -1), folds


def _ranks(
    data: Federation,
    owner: np.ndarray,
    count: np.ndarray,
    seed: int,
    purpose: str = "folds",
    group: np.ndarray | None = None,
) -> np.ndarray:
    """The place of each sample in a random order of its client's; samples are together by client.

    A client's order does not depend on other clients. With `group`, the place is the group's.
    """
    keys = streams.keys(seed, f"advise {purpose}", 0, streams.name_keys(data.names))
    place = np.arange(len(owner)) - np.repeat(count.cumsum() - count, count)
    with np.errstate(over="ignore"):
        drawn = streams.mix(keys[owner] + place.astype(np.uint64))
    if group is not None:
        return group_ranks(owner, group, drawn)
    order = np.lexsort((drawn, owner))
    rank = np.empty(len(owner), dtype=np.int64)
    rank[order] = place
    return rank


# -- candidates ------------------------------------------------------------------------------------
STEP = 4.0  # between two step sizes of the grid
FIRST = (0, -1, 1)  # the grid: the method's own step sizes times STEP to these powers
MOST = 3  # how far the grid goes where its best is at its edge
FINALISTS = 2  # step sizes of a candidate that are trained under every seed, at most


class Judged(Protocol):
    """What held-out samples say of something: a candidate, or trees beside them."""

    @property
    def label(self) -> str: ...

    def scores(self, seeds: int, half: np.ndarray) -> np.ndarray:  # -> [2, seeds, n]
        """Hits and loss of every sample under every seed; NaN where it was not held out."""

    def answers(self, seeds: int, half: np.ndarray) -> np.ndarray:  # -> [seeds, n, ...]
        """What it answers to every sample under every seed."""


@dataclass
class Candidate:
    """A method among those that are compared."""

    plan: Plan
    rounds: int = 0  # that it can pay
    # what was trained: (power of STEP, seed from 0) -> a value per held-out sample, [hits, loss]
    outcomes: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    outputs: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)  # answers, [n, ...]
    finalists: list[int] = field(default_factory=list)  # the step sizes trained under every seed
    powers: tuple[int, int] = (0, 0)  # of halves A and B, each chosen on the other one
    power: int = 0  # to deploy: chosen on both
    gradients: float = 0.0  # per client, in the last training
    bytes_up: float = 0.0  # per round, of all clients together
    bytes_down: float = 0.0
    numbers: int = 0  # in a message
    spent: dict[int, dict[str, Any]] = field(default_factory=dict)  # privacy, by power of STEP
    run_settings: dict[int, dict[str, Any]] = field(default_factory=dict)  # that keep to it

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
    def privacy(self) -> dict[str, Any] | None:
        """What a training with the step size to deploy has spent; None without privacy."""
        return self.spent.get(self.power)

    @property
    def personal(self) -> bool:
        """Whether each client has its own model: not where all predict with the shared one."""
        return type(self.base).personal is not Method.personal

    @property
    def rates(self) -> list[str]:
        """The fields that are step sizes and have an effect; a user's own method may have none."""
        names = [name for name in self.base.traits.rates if hasattr(self.base, name)]
        return [name for name in names if acts(self.base, name)]

    @property
    def grid(self) -> list[int]:
        """The powers of STEP that were tried."""
        return sorted({power for power, _ in self.outcomes})

    def method(self, power: int) -> Method:
        """The method with all its step sizes times STEP to a power: their ratios stay."""
        method = self.base
        rates = {name: getattr(method, name) * STEP**power for name in self.rates}
        if not power:
            return method
        scaled = replace(method, **rates)
        # a copy has all fields as if they were set explicitly: these are still the user's own
        object.__setattr__(scaled, "explicit", method.explicit | rates.keys())
        return scaled

    def scores(self, seeds: int, half: np.ndarray) -> np.ndarray:  # -> [2, seeds, n]
        """Hits and loss of every sample under every seed; NaN where it was not held out.

        A sample is judged with the step size that was chosen on the other half.
        """
        by_half = [
            np.stack([self.outcomes[power, seed] for seed in range(seeds)], axis=1)
            for power in self.powers
        ]
        return np.where(half, by_half[1], by_half[0]).astype(np.float64)

    def answers(self, seeds: int, half: np.ndarray) -> np.ndarray:  # -> [seeds, n, ...]
        """What it answers to every sample under every seed, with the same step sizes."""
        by_half = [
            np.stack([self.outputs[power, seed] for seed in range(seeds)]) for power in self.powers
        ]
        return np.where(half.reshape(-1, *[1] * (by_half[0].ndim - 2)), by_half[1], by_half[0])


def _bytes_before_rounds(session: Session) -> tuple[int, int]:
    """(up, down) of all clients, for the mean and deviation of real targets, sent once."""
    scale = session.contract.task.numerics.target_scale
    if scale is None:
        return 0, 0
    up, down = bytes_of_moments(len(scale.centre))
    return up * len(session.people.eligible), down * len(session.people.eligible)


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
    figures: MetricFigures | None = None  # of a metric that no single sample has
    keeps_outputs: bool = False  # whether candidates keep what their models answer
    privacy: PrivacyBudget | None = None  # of candidates that send anything
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
        result = self._run(candidate, 0, 0, 1)
        rows = result.seeds[0].clients
        training = [row["gradients"] for row in rows if row["train_samples"]]
        per_round = sum(training) / len(training)
        before_use = result.seeds[0].gradients_per_client - sum(training) / len(rows)
        if not per_round:
            raise SettingError(f"{candidate.label}: it computes no gradient in a round")
        self._note_bytes(candidate, result, result.session())
        candidate.rounds = max(1, round((self.budget - before_use) / per_round))

    def train(self, candidate: Candidate, power: int, seed: int) -> None:
        """One training, if it was not done yet."""
        if (power, seed) in candidate.outcomes:
            return
        result = self._run(candidate, power, seed, candidate.rounds)
        _, held_out = self.split(seed)
        scores = np.full((2, self.holdout.samples), math.nan, dtype=np.float32)
        session = result.session()
        host = session.hosts[0]
        message = session.server.message(session.server.version, host.wire_ids)
        hits, loss = host.each_sample(session.server.version, message, "valid")
        scores[:, held_out] = np.stack([hits.numpy(), loss.numpy()])
        candidate.outcomes[power, seed] = scores
        if self.keeps_outputs:
            answers = host.each_output(session.server.version, message, "valid").outputs
            outputs = np.full((self.holdout.samples, *answers.shape[1:]), math.nan, np.float32)
            outputs[held_out] = answers.numpy()
            candidate.outputs[power, seed] = outputs
        summary = result.summary()
        if diverged(summary):  # it stopped early: neither its figures nor its costs are of use
            scores[:, held_out] = np.array([[0.0], [math.inf]])
        if not (diverged(summary) and candidate.gradients):
            candidate.gradients = summary["gradients_per_client"]
            if "privacy" in summary:
                candidate.spent[power] = summary["privacy"]
                candidate.numbers = sum(candidate.base.message(session.contract.task).values())
            else:
                self._note_bytes(candidate, result, session)
        self.spent(candidate.name)

    def _note_bytes(self, candidate: Candidate, result: Result, session: Session) -> None:
        """What a round sends. Of clients drawn by chance it is known from the round of `price`."""
        summary = result.summary()
        once_up, once_down = _bytes_before_rounds(session)
        candidate.bytes_up = (summary["bytes"]["up"] - once_up) / summary["rounds"]
        candidate.bytes_down = (summary["bytes"]["down"] - once_down) / summary["rounds"]

    def _run(self, candidate: Candidate, power: int, seed: int, rounds: int) -> Result:
        federation, _ = self.split(seed)
        training = int((federation.sizes("train") > 0).sum())
        settings = {
            **({} if candidate.name == LOCAL else {"sample": training}),
            **self.settings,
            **self._private(candidate, power, training, rounds),
            **candidate.plan.own,
            "rounds": rounds,
            "seed": self.seed + seed,
            "seeds": 1,
            "eval_every": 0,
        }
        return run(candidate.method(power), self.task, federation, progress=False, **settings)

    def _private(
        self, candidate: Candidate, power: int, training: int, rounds: int
    ) -> dict[str, Any]:
        """Settings that keep a training within the budget; none for Local, which sends nothing.

        The round that shows what a round costs hears as many clients as a round does in the mean.
        """
        if self.privacy is None or candidate.name == LOCAL:
            return {}
        settings = self.privacy.settings(STEP**power, training, drawn=rounds > 1)
        candidate.run_settings[power] = settings
        return settings

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
            best = self._best(candidate, candidate.grid, 1)
            low, high = candidate.grid[0], candidate.grid[-1]
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
        mine = self._values(candidate.outcomes[best, 0][:, held_out])
        behind = {}
        for power in candidate.grid:
            with np.errstate(invalid="ignore"):  # models that diverged
                d = mine - self._values(candidate.outcomes[power, 0][:, held_out])
            if self.holdout.weights is not None:
                d = weighed_terms(d, self.holdout.weights[held_out])
            if np.isfinite(d).all() and d.mean() <= 2 * d.std() / math.sqrt(len(d)):
                behind[power] = float(d.mean())
        nearest = sorted(behind, key=lambda power: (power != best, behind[power]))[:FINALISTS]
        candidate.finalists = sorted(nearest) or [best]

    def choose_steps(self, candidate: Candidate, seeds: int) -> None:
        """The step size for each half: the best on the other one, over all seeds.

        And the one to deploy: the best on both.
        """
        half = self.holdout.half
        by_b = self._best(candidate, candidate.finalists, seeds, half)
        by_a = self._best(candidate, candidate.finalists, seeds, ~half)
        candidate.powers = (by_b, by_a)  # of half A, of half B
        candidate.power = self._best(candidate, candidate.finalists, seeds)

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
            scores = np.stack([candidate.outcomes[power, s] for s in range(seeds)], axis=1)
            if not mask.any() or not np.isfinite(scores[1][mask]).all():
                return -math.inf, -math.inf, -abs(power)
            loss = self.holdout.mean(np.where(mask, scores[1].astype(np.float64), math.nan))
            value = self.holdout.mean(np.where(mask, self._values(scores), math.nan))
            if self.figures is not None:
                answers = np.stack([candidate.outputs[power, s] for s in range(seeds)])
                value = self.figures.value(answers, mask)
            return value, -float(loss), -abs(power)

        return max(powers, key=key)

    def _values(self, scores: np.ndarray) -> np.ndarray:  # [2, ...] -> [...]
        """What counts of a single sample's hits and losses, higher is better."""
        hits, loss = scores.astype(np.float64)
        return hits if self.metric == "accuracy" else -loss
