"""Which clients gain, which lose, and of which the data cannot tell: one rule for all tables.

A client has the paired differences of its own samples: how much better the one candidate does on
each than the other. Its interval at 95 %:

- samples that are right or wrong: that of Bonett and Price (2012) for paired proportions, which
  adds one sample that the one candidate alone has right, and one that the other has. Five samples
  on which both agree leave ± 0.4, not ± 0.
- groups of samples, such as the rows of one patient: a group is one sample, and has the mean of its
  own, weighed by their number (see units.py). The same intervals are made of these: five copies of
  a row under one group say as much as the row.
- losses: Student's t with a variance shrunk towards that within all clients, as if there were
  PRIOR more samples that have it (the moderated t of Smyth 2004, with fixed degrees). A few samples
  without the rare outcome do not show how much the loss varies.

The variance from training to training is added to both. Verdicts: a p-value of each client with
CLIENT_SAMPLES or more (the t statistic of its interval; of hits also the exact sign test, and the
less certain counts) and over all clients the false discovery rate at 5 % (Benjamini and Hochberg
1995): of the clients that are called, at most one in twenty is expected to be called wrongly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..data.read.ids import ClientId
from .units import Units

LEVEL = 0.05
TINY = np.finfo(np.float64).tiny
CLIENT_SAMPLES = 5  # needed to judge a client
PRIOR = 4  # degrees of freedom that the variance within all clients has in that of each
GAINS = "gains"
LOSES = "loses"
CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class ClientGain:
    """What one candidate does for one client, against another."""

    client: ClientId
    samples: int  # that it is judged by, whatever the groups
    gain: float  # NaN without samples
    low: float  # of the 95 % interval; infinite with too few samples
    high: float
    verdict: str  # GAINS, LOSES or CANNOT_TELL
    groups: int | None = None  # that these samples are of; None where each is by itself

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def judged_clients(
    each: np.ndarray,  # [n]: a paired difference per sample
    owner: np.ndarray,  # int64[n]: the position of its client
    ids: Sequence[ClientId],
    counted: bool,
    trainings: np.ndarray | float = 0.0,  # variance of each client's mean from training to training
    effective: np.ndarray | None = None,  # of weighted samples: as how many those of a client say
    group: np.ndarray | None = None,  # int64[n]: samples of one number are no independent evidence
) -> list[ClientGain]:
    """A line per client, in the order of `ids`; `counted`: samples are right or wrong.

    >>> each = np.array([1.0] * 12 + [0.0] * 8 + [0.0] * 5)
    >>> owner = np.repeat([0, 1], [20, 5])
    >>> [(c.client, c.verdict, round(c.high, 2)) for c in judged_clients(each, owner, "ab", True)]
    [('a', 'gains', 0.79), ('b', 'cannot tell', 0.4)]
    """
    from scipy.special import ndtr, ndtri, stdtr, stdtrit

    clients = len(ids)
    samples = np.bincount(owner, minlength=clients)
    units = Units.of(owner, group)
    sums = units.sums(each)
    each, owner = units.values_by_client(each[None])[0], units.owner
    count, mean, variance = by_client(each, owner, clients)
    evidence = count if effective is None else np.minimum(count, effective)
    enough = evidence >= CLIENT_SAMPLES
    if counted:
        squares = np.bincount(owner, each**2, minlength=clients)
        n = count + 2
        centre = count * mean / n
        error = np.sqrt(((squares + 2) / n - centre**2) / n + trainings)
        quantile = ndtri(1 - LEVEL / 2)
        p = np.maximum(2 * ndtr(-np.abs(centre) / error), _sign_test(sums, owner, clients))
    else:
        within, freedom = moderated(count, variance, evidence)
        centre = mean
        error = np.sqrt(within / np.maximum(count, 1) + trainings)
        quantile = stdtrit(freedom, 1 - LEVEL / 2)
        with np.errstate(divide="ignore", invalid="ignore"):
            p = 2 * stdtr(freedom, -np.abs(mean) / error)
        p = np.where(error > 0, p, np.where(mean == 0, 1.0, 0.0))
    called = np.zeros(clients, dtype=bool)
    called[enough] = discoveries(p[enough])
    half = np.where(enough, quantile * error, math.inf)
    return [
        ClientGain(
            ids[k],
            int(samples[k]),
            float(mean[k]) if count[k] else math.nan,
            float(centre[k] - half[k]),
            float(centre[k] + half[k]),
            (GAINS if mean[k] > 0 else LOSES) if called[k] else CANNOT_TELL,
            None if group is None else int(count[k]),
        )
        for k in range(clients)
    ]


def weighed_terms(
    each: np.ndarray,  # [..., n]: values of samples; NaN where there is none
    weights: np.ndarray,  # float64[n]
    owner: np.ndarray | None = None,  # int64[n]: the mean of each owner; None: of all samples
) -> np.ndarray:  # -> [..., n]
    """Terms whose plain mean is the weighed mean m, and whose variance is that of the jackknife.

    They are its pseudo-values, moved to have the mean m: m + (n - 1) w (x - m) / (W - w) with W the
    sum of the weights. A sample that outweighs all others is judged by how far m lies from what
    these say without it, so that it is no more evidence than one sample. Of values by seed, a
    sample counts by its mean.

    >>> terms = weighed_terms(np.array([1.0, 0.0, 0.0]), np.array([2.0, 1.0, 1.0]))
    >>> float(terms.mean()), terms.round(3).tolist()
    (0.5, [1.389, 0.056, 0.056])
    """
    owner = np.zeros(len(weights), dtype=np.int64) if owner is None else owner
    present = ~np.isnan(each)
    seeds = present.reshape(-1, len(weights)).sum(0)
    sums = np.where(present, each, 0.0).reshape(-1, len(weights)).sum(0)
    shares = np.where(seeds > 0, weights, 0.0)
    count, total = (np.bincount(owner, values)[owner] for values in (seeds > 0, shares))
    mean = np.bincount(owner, shares * sums / np.maximum(seeds, 1))[owner] / np.maximum(total, TINY)
    lever = (count - 1) * shares / np.maximum(total - shares, TINY)
    lever = np.where(count > 1, lever, 0.0)
    moved = np.where(seeds > 0, lever * (sums / np.maximum(seeds, 1) - mean), 0.0)
    shift = np.bincount(owner, moved)[owner] / np.maximum(count, 1)
    return mean + lever * (each - mean) - shift


def discoveries(p: np.ndarray) -> np.ndarray:  # -> bool
    """Which p-values are called at a false discovery rate of LEVEL (Benjamini and Hochberg 1995).

    As `scipy.stats.false_discovery_control`, which takes a second to load.

    >>> discoveries(np.array([0.01, 0.5, 0.024, 0.04])).tolist()
    [True, False, True, False]
    """
    ordered = np.sort(p)
    passing = np.flatnonzero(ordered <= LEVEL * np.arange(1, len(p) + 1) / max(len(p), 1))
    return p <= ordered[passing[-1]] if len(passing) else np.zeros(len(p), dtype=bool)


def _sign_test(each: np.ndarray, owner: np.ndarray, clients: int) -> np.ndarray:
    """Two-sided p-values of the exact sign test on units that one of the two has right."""
    from scipy.special import bdtr

    better = np.bincount(owner[each > 0], minlength=clients)
    worse = np.bincount(owner[each < 0], minlength=clients)
    differ = better + worse
    p = np.minimum(1.0, 2 * bdtr(np.minimum(better, worse), np.maximum(differ, 1), 0.5))
    return np.where(differ > 0, p, 1.0)


def by_client(
    values: np.ndarray, owner: np.ndarray, clients: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples, mean and variance (unbiased; 0 of a single one) of each client's values."""
    count = np.bincount(owner, minlength=clients)
    safe = np.maximum(count, 1)
    mean = np.bincount(owner, values, minlength=clients) / safe
    squares = np.bincount(owner, (values - mean[owner]) ** 2, minlength=clients)
    return count, mean, squares / np.maximum(count - 1, 1)


def moderated(
    count: np.ndarray, variance: np.ndarray, evidence: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Variances shrunk towards that of all clients, and their degrees of freedom.

    `evidence` is as how many units those of a client say, where they weigh unlike.
    """
    own = np.maximum((count if evidence is None else evidence) - 1, 0)
    freedom = own + PRIOR
    return (PRIOR * everyones(count, variance) + own * variance) / freedom, freedom


def everyones(count: np.ndarray, variance: np.ndarray) -> float:
    """The variance within clients, of all of them together."""
    freedom = np.maximum(count - 1, 0)
    return float((freedom * variance).sum() / max(freedom.sum(), 1))


def pooled(count: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """The variance within each client; of one that has a single sample, that of all clients."""
    return np.where(count > 1, variance, everyones(count, variance))
