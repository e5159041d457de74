"""Do the gains of an advice, and what it says of them, hold what they promise?

Federations with known rules, real folds (`Holdout`), models by Newton's method in place of
gradient steps, and the estimator and the decision of `advise` itself.

What an interval is meant to hold (the estimand): the expected gain over Local of the procedure, a
candidate trained on as many samples as a fold leaves, per fresh sample of a client. With fewer than
20 clients it is about these clients: they stay, and all samples are drawn anew. With 20 or more it
is about clients such as these, which are drawn anew too. The expectation is over training samples
and held-out samples alike: an advice is about what to deploy, not about the models of its folds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from idiolect import Federation
from idiolect.study import MANY_CLIENTS, Compared, HeldOutSamples, Holdout, alternative, decide

from ..runs import Work

FEATURES = 5
FRESH = 400  # inputs that a true loss is the mean over; outcomes are summed over exactly
NEWTON = 8
RIDGE = 1.0  # of every model; Local's is towards 0, Ditto's towards the shared model
DITTO = 10.0
TIE = 0.01 * math.log(2)
LOCAL, UNDECIDED = "local", "undecided"  # choices of an advice that name no candidate
CANDIDATES = ("fedavg", "ditto")


def fitted(
    x: np.ndarray, y: np.ndarray, starts: np.ndarray, centre: np.ndarray, ridge: float
) -> np.ndarray:  # x[n, d], y[n], starts[K], centre[K, d] -> v[K, d]
    """Logistic models of K clients, whose rows begin at `starts`, by Newton's method.

    >>> x, y = np.array([[1.0], [1.0], [1.0]]), np.array([1, 1, 0])
    >>> fitted(x, y, np.array([0]), np.zeros((1, 1)), ridge=1e-9).round(3)  # log 2
    array([[0.693]])
    """
    owner = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(x)))
    v = centre.copy()
    for _ in range(NEWTON):
        p = 1 / (1 + np.exp(-(x * v[owner]).sum(1)))
        slope = np.add.reduceat(x * (p - y)[:, None], starts) + ridge * (v - centre)
        weighed = x[:, :, None] * (x * (p * (1 - p))[:, None])[:, None]
        curvature = np.add.reduceat(weighed, starts) + ridge * np.eye(x.shape[1])
        v = v - np.linalg.solve(curvature, slope[:, :, None])[:, :, 0]
    return v


def candidates_of(x: np.ndarray, y: np.ndarray, starts: np.ndarray) -> dict[str, np.ndarray]:
    """Every candidate's models of all clients, [K, d] each."""
    zero = np.zeros((len(starts), x.shape[1]))
    one = fitted(x, y, starts[:1], zero[:1], RIDGE)
    shared = np.repeat(one, len(starts), axis=0)
    return {
        LOCAL: fitted(x, y, starts, zero, RIDGE),
        "fedavg": shared,
        "ditto": fitted(x, y, starts, shared, DITTO),
    }


def true_losses(inputs: np.ndarray, rules: np.ndarray, models: np.ndarray) -> np.ndarray:
    """The expected log loss of each client's model under its rule: [K]."""
    z = inputs @ models.T  # [FRESH, K]
    outcome = 1 / (1 + np.exp(-(inputs @ rules.T)))
    return (np.logaddexp(0, z) - outcome * z).mean(0)


@dataclass(frozen=True)
class GainJob(Work):
    """Federations of one kind: intervals of gains, and statements, against the truth."""

    clients: int
    samples: int  # of a client
    spread: float  # of the clients' rules around the common one, per feature
    folds: int = 3
    repeats: int = 400
    seed: int = 1

    def describe(self) -> str:
        return (
            f"{self.clients} clients, {self.samples} samples, rules ± {self.spread:g}, "
            f"{self.folds} folds"
        )

    def train(self) -> dict[str, Any]:
        """Shares of intervals that hold the truth, and of false statements."""
        key = [self.seed, self.clients, self.samples, int(100 * self.spread), self.folds]
        rng = np.random.default_rng(key)
        rules = self._rules(rng)
        advices = []
        for _ in range(self.repeats):
            rules = self._rules(rng) if self.clients >= MANY_CLIENTS else rules
            advices.append(self._advice(rng, rules))
        truth = np.mean([a["gains of these models"] for a in advices], axis=0)
        own = np.array([a["intervals"] for a in advices])  # [repeats, candidates, 2]
        together = np.array([a["joint intervals"] for a in advices])
        estimates = np.array([a["estimates"] for a in advices])
        return {
            "truth": truth.tolist(),
            "bias": (estimates.mean(0) - truth).tolist(),
            "error": estimates.std(0, ddof=1).tolist(),
            "stated error": np.sqrt(np.mean([a["errors"] for a in advices], axis=0)).tolist(),
            "held": ((own[..., 0] <= truth) & (truth <= own[..., 1])).mean(0).tolist(),
            "held together": float(
                ((together[..., 0] <= truth) & (truth <= together[..., 1])).all(1).mean()
            ),
            **_statements(advices, truth),
        }

    def _rules(self, rng: np.random.Generator) -> np.ndarray:
        """The clients' rules, [K, d]; the common one is the same for all federations."""
        common = np.linspace(-0.6, 0.9, FEATURES)
        return common + self.spread * rng.normal(size=(self.clients, FEATURES))

    def _advice(self, rng: np.random.Generator, rules: np.ndarray) -> dict[str, Any]:
        owner = np.repeat(np.arange(self.clients), self.samples)
        x = rng.normal(size=(len(owner), FEATURES))
        chance = 1 / (1 + np.exp(-(x * rules[owner]).sum(1)))
        y = (rng.random(len(owner)) < chance).astype(int)
        data = Federation.from_arrays(x, y, owner, classes=2, valid=0.0, test=0.0)
        holdout = Holdout.of(data, "folds", seed=int(rng.integers(1 << 30)), seeds=self.folds)
        inputs = rng.normal(size=(FRESH, FEATURES))
        d = np.full((len(CANDIDATES), self.folds, holdout.samples), math.nan)
        gains = np.zeros(len(CANDIDATES))
        for seed in range(self.folds):
            fold, held_out = holdout.under(seed)
            train, valid = (fold.offsets[split].numpy() for split in ("train", "valid"))
            rows, targets = fold.inputs.double().numpy(), fold.targets.numpy()
            models = candidates_of(rows[: train[-1]], targets[: train[-1]], train[:-1])
            whose = np.repeat(np.arange(self.clients), np.diff(valid))
            judged, outcome = rows[valid[0] :], targets[valid[0] :]
            margins = {name: (judged * v[whose]).sum(1) for name, v in models.items()}
            losses = {name: np.logaddexp(0, z) - outcome * z for name, z in margins.items()}
            truth = {name: true_losses(inputs, rules, v) for name, v in models.items()}
            for at, name in enumerate(CANDIDATES):
                d[at, seed, held_out] = losses[LOCAL] - losses[name]
                gains[at] += (truth[LOCAL] - truth[name]).mean() / self.folds
        samples = HeldOutSamples(holdout.owner, self.clients, repeated=False)
        level = samples.joint_level(list(d))
        own = [samples.gain(values) for values in d]
        joint = [samples.gain(values, level) for values in d]
        decision = decide(
            [Compared(n, g, 1.0) for n, g in zip(CANDIDATES, joint, strict=True)], TIE
        )
        return {
            "gains of these models": gains,
            "estimates": [g.mean for g in own],
            "errors": [g.error**2 for g in own],
            "intervals": [(g.low, g.high) for g in own],
            "joint intervals": [(g.low, g.high) for g in joint],
            "choice": decision.choice,
            "alternative": alternative(joint[0]),
        }


def _statements(advices: list[dict[str, Any]], truth: np.ndarray) -> dict[str, float]:
    """How often each statement is made, and made falsely, in shares of all advices."""
    choices = np.array([a["choice"] for a in advices])
    sides = np.array([a["alternative"] for a in advices])
    federate = ~np.isin(choices, [LOCAL, UNDECIDED])
    return {
        "federate": float(federate.mean()),
        "federate, falsely": float(federate.mean()) if truth.max() <= 0 else 0.0,
        "alone": float((choices == LOCAL).mean()),
        "alone, falsely": float((choices == LOCAL).mean()) if truth.max() >= TIE else 0.0,
        "fedavg or local, falsely": float((sides == (LOCAL if truth[0] > 0 else "fedavg")).mean()),
    }


@dataclass(frozen=True)
class GainSize:
    """The grid, and how often each."""

    clients: tuple[int, ...] = (6, 30)
    samples: tuple[int, ...] = (30, 100)
    spreads: tuple[float, ...] = (0.0, 0.5, 1.0)
    folds: tuple[int, ...] = (3, 5)
    repeats: int = 400

    def jobs(self) -> Iterator[GainJob]:
        for kind in product(self.clients, self.samples, self.spreads, self.folds):
            yield GainJob(*kind, repeats=self.repeats)
