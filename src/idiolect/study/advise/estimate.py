"""Gains of one candidate over another, with intervals; who gains; and what to deploy.

The unit is a held-out sample's paired difference d[s, j] = value of one candidate minus value of
the other, under seed s, where a value is 1 or 0 (accuracy) or minus the loss. The gain is its mean
over all held-out samples. Its variance has three parts:

- clients: with MANY_CLIENTS or more, the variance over clients of their mean differences, weighed
  by samples, treating clients as a random sample. With fewer, the variance over the samples within
  these clients: an interval over a dozen clients of unlike size says next to nothing, and the gain
  is then about these clients only.
- trainings: the variance over seeds of the gain. Folds differ in their samples too: there it is
  what exceeds the samples' part, and nothing where the samples alone explain the excess (chi-square
  at NOTICED), since a few folds say too little to tell the two apart.
- training samples: the gain is that of the procedure, trained on such samples, not of the models of
  these folds. Folds share training samples, so that their spread does not show this part (Bengio
  and Grandvalet 2004). Over clients it is in the variance already. With fewer clients the samples'
  part is multiplied by 1 + n2/n1, held-out over training samples of a fold: the ratio of Nadeau and
  Bengio (2003), who multiply the variance between folds by it.

Degrees of freedom are Satterthwaite's for their sum. Where samples are right or wrong, the
variance is that with one more sample that the first candidate alone has right, and one that the
other has: a few samples on which the two agree do not show that they always do. Fewer
than HELD_OUT_SAMPLES show nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...data.read.ids import ClientId
from ...report.units import Units
from ...report.verdicts import ClientGain, by_client, judged_clients, pooled

MANY_CLIENTS = 20  # clients needed for an interval over clients
HELD_OUT_SAMPLES = 20  # needed for a confidence interval
LEVEL = 0.05  # of all intervals: 95 %
NOTICED = 0.9  # how sure it must be that folds differ by more than their samples


@dataclass(frozen=True)
class Gain:
    """A mean difference, positive where the first candidate is better."""

    mean: float
    error: float  # its standard error
    freedom: float  # degrees of freedom; 0 without a standard error
    level: float = LEVEL

    @property
    def half(self) -> float:
        """Half the width of the interval."""
        return quantile(1 - self.level / 2, self.freedom) * self.error if self.freedom else math.inf

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    def above(self, bound: float) -> float:
        """The one-sided p-value of "the gain is at most `bound`"."""
        return self._refuted(bound - self.mean)

    def below(self, bound: float) -> float:
        """The one-sided p-value of "the gain is at least `bound`"."""
        return self._refuted(self.mean - bound)

    def _refuted(self, distance: float) -> float:
        if not self.freedom:
            return 1.0
        if not self.error:
            return float(distance >= 0)
        return cumulative(distance / self.error, self.freedom)


@dataclass(frozen=True)
class HeldOutSamples:
    """Whose the held-out samples are, and whether each is held out under every seed."""

    owner: np.ndarray  # int64[n]
    clients: int
    repeated: bool  # the same samples under every seed, or folds
    counted: bool = False  # whether samples are right or wrong, or have a loss
    # of weighted samples: as how many of one weight a sample says in the mean of all, and those of
    # each client together (Kish 1965)
    evidence: float = 1.0
    effective: np.ndarray | None = None  # float64[clients]

    def gain(self, d: np.ndarray, level: float = LEVEL) -> Gain:  # d[seeds, n]
        """The mean of paired differences; NaN where a sample was not held out."""
        ever_held_out = ~np.isnan(d).all(axis=0)
        owner = self.owner[ever_held_out]
        each = _mean(d[:, ever_held_out])  # over seeds
        mean = float(each.mean()) if len(each) else math.nan
        if self.evidence * len(each) < HELD_OUT_SAMPLES:
            return Gain(mean, math.nan, 0, level)
        count, of_client, spread = by_client(each, owner, self.clients)
        present = count > 0
        weight = count[present] / count.sum()
        m = int(present.sum())
        if m >= MANY_CLIENTS:
            clients = m / (m - 1) * float((weight**2 * (of_client[present] - mean) ** 2).sum())
            freedom = m - 1
        else:
            within = pooled(count, spread)
            clients = float((weight**2 * within[present] / count[present]).sum())
            if not self.repeated:
                clients *= 1 + held_out_ratio(~np.isnan(d))
            freedom = self._freedom(int(count.sum()), m)
        trainings, repeats = self._trainings(d)
        floor = 2 / (len(each) + 2) ** 2 if self.counted else 0.0
        error = math.sqrt(clients + trainings + floor)
        return Gain(mean, error, satterthwaite((clients, freedom), (trainings, repeats)), level)

    def joint_level(self, differences: Sequence[np.ndarray]) -> float:
        """The level of each candidate's interval with which all of them hold together at LEVEL.

        All are compared with the same Local on the same samples, so that their gains move together,
        and LEVEL over their number (Bonferroni) would allow for more than there is. The largest of
        their t-values is drawn from a multivariate t with the correlations of the differences over
        clients, or over samples where clients are few.
        """
        if len(differences) < 2:
            return LEVEL
        ever_held_out = ~np.any([np.isnan(d).all(axis=0) for d in differences], axis=0)
        each = np.array([_mean(d[:, ever_held_out]) for d in differences])  # [candidates, n]
        count, _, _ = by_client(each[0], self.owner[ever_held_out], self.clients)
        m = int((count > 0).sum())
        freedom = m - 1
        if m >= MANY_CLIENTS:
            means = [by_client(row, self.owner[ever_held_out], self.clients)[1] for row in each]
            each = np.array(means)[:, count > 0]
        else:
            freedom = self._freedom(int(count.sum()), m)
        if freedom < 1 or not np.isfinite(each).all() or (each.std(axis=1) == 0).any():
            return LEVEL / len(differences)
        return _joint_level(np.corrcoef(each), freedom)

    def _freedom(self, samples: int, clients: int) -> int:
        """Degrees of freedom of the variance within so many clients."""
        if self.evidence == 1.0:
            return samples - clients
        return max(1, int(self.evidence * samples) - clients)

    def _trainings(self, d: np.ndarray) -> tuple[float, int]:
        """The variance of the gain from training to training, and its degrees of freedom."""
        means, samples = [], []
        for row in d:
            held_out = ~np.isnan(row)
            if not held_out.any():
                continue
            count, _, spread = by_client(row[held_out], self.owner[held_out], self.clients)
            means.append(row[held_out].mean())
            within = pooled(count, spread)
            share = count / count.sum()
            samples.append(float((share**2 * within / np.maximum(count, 1)).sum()))
        if len(means) < 2:
            return 0.0, 0
        between = float(np.var(means, ddof=1))
        if not self.repeated:  # other samples under every seed: their part is counted already
            between = beyond_samples(between, float(np.mean(samples)), len(means))
        return between / len(means), len(means) - 1

    def training_variance(self, d: np.ndarray) -> float:
        """The variance of a client's mean difference from training to training, over all clients.

        Estimated for all clients together: a few seeds say too little about each.
        """
        means = np.full((len(d), self.clients), math.nan)
        samples = np.full((len(d), self.clients), math.nan)
        for s, row in enumerate(d):
            held_out = ~np.isnan(row)
            count, of_client, spread = by_client(row[held_out], self.owner[held_out], self.clients)
            means[s] = np.where(count > 0, of_client, math.nan)
            samples[s] = np.where(count > 0, pooled(count, spread) / np.maximum(count, 1), math.nan)
        several = (~np.isnan(means)).sum(0) > 1
        if not several.any():
            return 0.0
        between = np.nanvar(means[:, several], axis=0, ddof=1)
        if not self.repeated:
            between = between - np.nanmean(samples[:, several], axis=0)
        return max(0.0, float(between.mean()))


def kish(weights: np.ndarray, owner: np.ndarray, clients: int) -> np.ndarray:  # -> [clients]
    """As how many samples of one weight those of each client say (Kish 1965).

    >>> kish(np.array([1.0, 3.0, 5.0, 5.0]), np.array([0, 0, 1, 1]), 2).tolist()
    [1.6, 2.0]
    """
    total, squares = (np.bincount(owner, w, minlength=clients) for w in (weights, weights**2))
    return total**2 / np.where(squares > 0, squares, 1.0)


def held_out_ratio(held_out: np.ndarray) -> float:  # bool[seeds, n]
    """Held-out over training samples of a fold, n2/n1: 1/2 of three folds.

    >>> held_out_ratio(np.eye(3, dtype=bool)), held_out_ratio(np.eye(5, dtype=bool))
    (0.5, 0.25)
    """
    test_samples = float(held_out.sum())
    return test_samples / max(held_out.size - test_samples, 1.0)


def beyond_samples(between: float, samples: float, seeds: int) -> float:
    """The variance between folds that the samples in them do not explain.

    >>> beyond_samples(2.0, 1.0, 3), beyond_samples(9.0, 1.0, 3)
    (0.0, 8.0)
    """
    from scipy.special import chdtri

    noticed = between > samples * chdtri(seeds - 1, 1 - NOTICED) / (seeds - 1)
    return between - samples if noticed else 0.0


def satterthwaite(*parts: tuple[float, int]) -> float:
    """Degrees of freedom of a sum of variances that have some each."""
    total = sum(variance for variance, _ in parts)
    estimated = [(variance, freedom) for variance, freedom in parts if freedom > 0]
    if not estimated or any(variance > 0 and freedom <= 0 for variance, freedom in parts):
        return 0.0
    if not total:
        return float(estimated[0][1])
    return float(total**2 / sum(variance**2 / freedom for variance, freedom in estimated))


def _mean(d: np.ndarray) -> np.ndarray:
    """The mean over seeds, of those under which a sample was held out."""
    held_out = ~np.isnan(d)
    return np.where(held_out, d, 0).sum(0) / held_out.sum(0)


def _joint_level(correlation: np.ndarray, freedom: int, draws: int = 200_000) -> float:
    """Two-sided level of each of some correlated t-values at which one in 20 sets has any beyond.

    >>> alone, alike = np.eye(3), np.ones((3, 3))
    >>> round(_joint_level(alone, 1000), 2), round(_joint_level(alike, 1000), 2)
    (0.02, 0.05)
    """
    rng = np.random.default_rng(0)
    normal = rng.multivariate_normal(np.zeros(len(correlation)), correlation, draws)
    t = np.abs(normal).max(1) / np.sqrt(rng.chisquare(freedom, draws) / freedom)
    beyond = 2 * cumulative(-float(np.quantile(t, 1 - LEVEL)), freedom)
    return min(LEVEL, max(beyond, LEVEL / len(correlation)))


def quantile(p: float, freedom: float) -> float:
    """Of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, p))


def cumulative(x: float, freedom: float) -> float:
    """Of Student's t."""
    from scipy.special import stdtr

    return float(stdtr(freedom, x))


# -- who gains and who loses by federating, client by client ---------------------------------------
def client_gains(
    d: np.ndarray,
    samples: HeldOutSamples,
    ids: tuple[ClientId, ...],
    group: np.ndarray | None = None,
) -> list[ClientGain]:
    """A line per client, in the order of the federation, from paired differences d[seeds, n].

    With the `group` of each sample, intervals count groups.
    """
    ever_held_out = ~np.isnan(d).all(axis=0)
    each = _mean(d[:, ever_held_out])
    seeds = np.maximum(_seeds(d, samples), 1)
    units = Units.of(samples.owner, group)
    of_units = replace(samples, owner=units.owner)
    trainings = of_units.training_variance(units.values_by_client(d)) / seeds
    owner = samples.owner[ever_held_out]
    groups = None if group is None else group[ever_held_out]
    return judged_clients(each, owner, ids, samples.counted, trainings, samples.effective, groups)


def _seeds(d: np.ndarray, samples: HeldOutSamples) -> np.ndarray:
    """Under how many seeds each client had a sample held out."""
    return sum(
        (np.bincount(samples.owner[~np.isnan(row)], minlength=samples.clients) > 0 for row in d),
        start=np.zeros(samples.clients, dtype=np.int64),
    )


# -- what to deploy --------------------------------------------------------------------------------
# Every candidate that federates is compared with Local. `tie` is the smallest gain worth
# federating for.
#
# 1. One or more gain clearly, and at least `tie`: federate. Clearly means that the interval lies
#    above 0; the intervals of all candidates hold together (`joint_level`), because the best of
#    several is selected. Which one is weighed in this order: gain, bytes, simplicity. Of those
#    that are better than Local at 5 % (one-sided, each by itself), all within `tie` of the largest
#    gain are as good; of these the one that sends fewest bytes per round, of those that send the
#    same the simplest: one model for all, then the others in the order of the table.
# 2. Clearly none gains as much as `tie`: learn alone. Clearly means that for each candidate by
#    itself a gain of `tie` is refuted at 5 %, one-sided. All must be refuted, so their number does
#    not help.
# 3. Otherwise the data do not decide: undecided.
#
# It also reports the alternative of Chen, Zheng, Long and Su: FedAvg or Local, whichever is clearly
# better at 5 %, or too close to call.
LOCAL = "local"
UNDECIDED = "undecided"
TOO_CLOSE = "too close to call"


@dataclass(frozen=True)
class Compared:
    """A candidate that federates, against Local."""

    label: str
    gain: Gain  # over Local; its interval holds together with those of the others
    bytes: float  # per round, both directions
    personal: bool = True  # one model per client, or one for all


@dataclass(frozen=True)
class Decision:
    """The choice, and how sure it is."""

    choice: str  # a candidate's label, "local" or "undecided"
    p: float  # p-value of the deciding comparison
    hopes: tuple[str, ...] = ()  # where undecided: the candidates that may gain


def decide(compared: Sequence[Compared], tie: float) -> Decision:
    """The rule above; `tie` in the units of the gains."""
    clear = [c for c in compared if c.gain.low > 0 and c.gain.mean >= tie]
    if clear:
        better = [c for c in compared if c.gain.mean >= tie and c.gain.above(0.0) <= LEVEL]
        most = max(c.gain.mean for c in better)
        choice = min(
            (c for c in better if c.gain.mean >= most - tie), key=lambda c: (c.bytes, c.personal)
        )
        surest = min(clear, key=lambda c: c.gain.above(0.0))
        together = LEVEL / surest.gain.level  # the equivalent number of independent comparisons
        return Decision(choice.label, min(1.0, 2 * together * surest.gain.above(0.0)))
    hopes = tuple(c.label for c in compared if not c.gain.below(tie) <= LEVEL)
    if hopes:
        return Decision(UNDECIDED, 1.0, hopes)
    return Decision(LOCAL, max((c.gain.below(tie) for c in compared), default=1.0))


def alternative(fedavg: Gain) -> str:
    """FedAvg or Local, or too close to call, from FedAvg's gain over Local."""
    if fedavg.low > 0:
        return "fedavg"
    return LOCAL if fedavg.high < 0 else TOO_CLOSE
