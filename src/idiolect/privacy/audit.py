"""Lower bounds on ε, from how often an attacker guesses right: what no claim may be below.

Canaries are clients that are made to be noticed: each takes part by a fair coin, and gets a score
from all that is released. Whoever holds the mechanism to be (ε, δ)-private says how often guesses
of the coins can be right; guesses that are right more often prove it wrong at this confidence. A
bound below the claim proves nothing: a better attacker may exist.

`one_run_bound` guesses the coins of many canaries in one run (Steinke, Nasr and Jagielski, Privacy
auditing with one (1) training run, NeurIPS 2023). Canaries of several runs may be put together:
runs that share no canary are one mechanism, as private as each. `two_sided_bound` compares many
releases with one client to many without it. `gaussian_bound` makes more of the same releases where
the claim is that of Gaussian noise without sampling: then one pair of error rates speaks of all ε.

>>> rng = np.random.default_rng(0)
>>> included = rng.random(4000) < 0.5
>>> one_run_bound(included + rng.normal(size=4000), included, 1e-5) > 1  # noise 1; ε is 4.38
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .accountant import library

ERROR = 0.05  # how often a bound may be above the true ε
FEWEST = 16  # guesses
SPLIT = 0.3  # of the scores, those by which a threshold is chosen
FEW = 0.1  # of the scores, those by which means are estimated
STEPS = 50  # of bisection
MOST = 50.0  # ε that is looked for
LEAST = 1e-6  # μ


@dataclass(frozen=True)
class Guesses:
    """How many coins were guessed, and how many of them right."""

    canaries: int  # m
    made: int  # r; for the others the attacker abstains
    right: int  # v

    def p_value(self, epsilon: float, delta: float) -> float:
        """The most probable that so many are right under (ε, δ)-privacy (Theorem 3.1).

        >>> round(Guesses(1000, 100, 75).p_value(0.673, 1e-4), 3)
        0.05
        """
        from scipy.stats import binom

        p = 1 / (1 + math.exp(-epsilon))
        tail = float(binom.sf(self.right - 1, self.made, p))
        if not self.right:
            return 1.0
        # P[v > B >= v - i] / i for i = 1 ... v
        below = np.cumsum(binom.pmf(np.arange(self.right - 1, -1, -1), self.made, p))
        alpha = float((below / np.arange(1, self.right + 1)).max())
        return min(tail + 2 * self.canaries * delta * alpha, 1.0)

    def bound(self, delta: float, error: float = ERROR) -> float:
        """The largest ε that so many right guesses rule out; 0 where they rule out none.

        >>> round(Guesses(100_000, 1510, 1439).bound(1e-5), 2)  # Section 7 of the paper
        2.68
        """
        low, high = 0.0, MOST
        if self.p_value(low, delta) > error:
            return 0.0
        for _ in range(STEPS):
            middle = (low + high) / 2
            if self.p_value(middle, delta) <= error:
                low = middle
            else:
                high = middle
        return low


def extreme_guesses(scores: np.ndarray, included: np.ndarray, each: int) -> Guesses:
    """That the `each` highest scores are of canaries that took part, and the lowest of others.

    scores: float64[m]; included: bool[m].

    >>> extreme_guesses(np.array([3.0, 0.0, -2.0, 1.0]), np.array([True, True, False, False]), 1)
    Guesses(canaries=4, made=2, right=2)
    """
    order = np.argsort(scores, kind="stable")
    lowest, highest = included[order[:each]], included[order[len(order) - each :]]
    return Guesses(len(scores), 2 * each, int(highest.sum() + (~lowest).sum()))


def one_run_bound(
    scores: np.ndarray, included: np.ndarray, delta: float, error: float = ERROR
) -> float:
    """A lower bound on ε at δ from canaries, each included by a fair coin of its own.

    How many to guess is not known before, so m, m/2, m/4, ... are all tried, and share the error.
    """
    sizes = [len(scores) // 2]
    while sizes[-1] >= 2 * FEWEST:
        sizes.append(sizes[-1] // 2)
    error = error / len(sizes)
    return max(extreme_guesses(scores, included, n).bound(delta, error) for n in sizes)


@dataclass(frozen=True)
class ErrorRates:
    """Upper confidence bounds on how often an attacker with a threshold is wrong."""

    false_alarm: float  # "took part", although it did not
    miss: float  # "did not", although it did

    @classmethod
    def at(
        cls, threshold: float, present: np.ndarray, absent: np.ndarray, error: float
    ) -> ErrorRates:
        """Of these scores, by Clopper and Pearson; half of the error for each rate."""
        alarms, misses = int((absent > threshold).sum()), int((present <= threshold).sum())
        return cls(_upper(alarms, len(absent), error / 2), _upper(misses, len(present), error / 2))

    def epsilon(self, delta: float) -> float:
        """The ε at δ that such an attacker rules out: P(A) <= e^ε P'(A) + δ both ways."""
        present = (1 - self.miss - delta) / self.false_alarm
        absent = (1 - self.false_alarm - delta) / self.miss
        return math.log(max(present, absent, 1.0))

    @property
    def mu(self) -> float:
        """How far apart two Gaussians are at least that are told apart like this."""
        from scipy.stats import norm

        return float(norm.isf(self.false_alarm) + norm.isf(self.miss))


def _upper(events: int, of: int, error: float) -> float:
    """The largest probability that so few events do not rule out.

    >>> round(_upper(0, 100, 0.05), 4)
    0.0295
    """
    from scipy.stats import beta

    return 1.0 if events >= of else float(beta.ppf(1 - error, events + 1, of - events))


def two_sided_bound(
    present: np.ndarray, absent: np.ndarray, delta: float, error: float = ERROR
) -> float:
    """A lower bound on ε at δ from scores of releases with a client and of others without it.

    Some of the scores choose the threshold, and the others are counted.
    """
    a, b = int(SPLIT * len(present)), int(SPLIT * len(absent))
    candidates = np.quantile(np.concatenate([present[:a], absent[:b]]), np.linspace(0, 1, 101))
    tries = [ErrorRates.at(t, present[:a], absent[:b], error).epsilon(delta) for t in candidates]
    threshold = float(candidates[int(np.argmax(tries))])
    return ErrorRates.at(threshold, present[a:], absent[b:], error).epsilon(delta)


def gaussian_bound(
    present: np.ndarray, absent: np.ndarray, delta: float, error: float = ERROR
) -> float:
    """The same where Gaussian noise without sampling is claimed: much closer to the true ε.

    Two Gaussians are told apart best between their means, estimated from some of the scores.

    >>> rng = np.random.default_rng(0)
    >>> present, absent = rng.normal(1, size=4000), rng.normal(size=4000)
    >>> [round(bound(present, absent, 1e-5), 1) for bound in (two_sided_bound, gaussian_bound)]
    [1.9, 3.7]
    """
    a, b = int(FEW * len(present)), int(FEW * len(absent))
    threshold = float(present[:a].mean() + absent[:b].mean()) / 2
    mu = ErrorRates.at(threshold, present[a:], absent[b:], error).mu
    return float(library().get_epsilon_gaussian(1 / mu, delta)) if mu > LEAST else 0.0
