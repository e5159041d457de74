"""Which clients gain, which lose, and of which the data cannot tell: one rule for all tables.

A client has the paired differences of its own samples: how much better the one candidate does on
each than the other. Its interval at 95 %:

- samples that are right or wrong: that of Bonett and Price (2012) for paired proportions, which
  adds one sample that the one candidate alone has right, and one that the other has. Five samples
  on which both agree leave ± 0.4, not ± 0.
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

LEVEL = 0.05
CLIENT_SAMPLES = 5  # needed to judge a client
PRIOR = 4  # degrees of freedom that the variance within all clients has in that of each
GAINS = "gains"
LOSES = "loses"
CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class ClientGain:
    """What one candidate does for one client, against another."""

    client: ClientId
    samples: int  # that it is judged by
    gain: float  # NaN without samples
    low: float  # of the 95 % interval; infinite with too few samples
    high: float
    verdict: str  # GAINS, LOSES or CANNOT_TELL

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def judged_clients(
    each: np.ndarray,  # [n]: a paired difference per sample
    owner: np.ndarray,  # int64[n]: the position of its client
    ids: Sequence[ClientId],
    counted: bool,
    trainings: np.ndarray | float = 0.0,  # variance of each client's mean from training to training
) -> list[ClientGain]:
    """A line per client, in the order of `ids`; `counted`: samples are right or wrong.

    >>> each = np.array([1.0] * 12 + [0.0] * 8 + [0.0] * 5)
    >>> owner = np.repeat([0, 1], [20, 5])
    >>> [(c.client, c.verdict, round(c.high, 2)) for c in judged_clients(each, owner, "ab", True)]
    [('a', 'gains', 0.79), ('b', 'cannot tell', 0.4)]
    """
    from scipy.special import ndtr, ndtri, stdtr, stdtrit

    clients = len(ids)
    count, mean, variance = by_client(each, owner, clients)
    enough = count >= CLIENT_SAMPLES
    if counted:
        squares = np.bincount(owner, each**2, minlength=clients)
        n = count + 2
        centre = count * mean / n
        error = np.sqrt(((squares + 2) / n - centre**2) / n + trainings)
        quantile = ndtri(1 - LEVEL / 2)
        p = np.maximum(2 * ndtr(-np.abs(centre) / error), _sign_test(each, owner, clients))
    else:
        freedom = np.maximum(count - 1, 0) + PRIOR
        within = PRIOR * everyones(count, variance) + np.maximum(count - 1, 0) * variance
        within = within / freedom
        centre = mean
        error = np.sqrt(within / np.maximum(count, 1) + trainings)
        quantile = stdtrit(freedom, 1 - LEVEL / 2)
        with np.errstate(divide="ignore", invalid="ignore"):
            p = 2 * stdtr(freedom, -np.abs(mean) / error)
        p = np.where(error > 0, p, np.where(mean == 0, 1.0, 0.0))
    called = np.zeros(clients, dtype=bool)
    called[enough] = _discoveries(p[enough])
    half = np.where(enough, quantile * error, math.inf)
    return [
        ClientGain(
            ids[k],
            int(count[k]),
            float(mean[k]) if count[k] else math.nan,
            float(centre[k] - half[k]),
            float(centre[k] + half[k]),
            (GAINS if mean[k] > 0 else LOSES) if called[k] else CANNOT_TELL,
        )
        for k in range(clients)
    ]


def _discoveries(p: np.ndarray) -> np.ndarray:  # -> bool
    """Which p-values are called at a false discovery rate of LEVEL (Benjamini and Hochberg 1995).

    As `scipy.stats.false_discovery_control`, which takes a second to load.

    >>> _discoveries(np.array([0.01, 0.5, 0.024, 0.04])).tolist()
    [True, False, True, False]
    """
    ordered = np.sort(p)
    passing = np.flatnonzero(ordered <= LEVEL * np.arange(1, len(p) + 1) / max(len(p), 1))
    return p <= ordered[passing[-1]] if len(passing) else np.zeros(len(p), dtype=bool)


def _sign_test(each: np.ndarray, owner: np.ndarray, clients: int) -> np.ndarray:
    """Two-sided p-values of the exact sign test on samples that one of the two has right."""
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


def everyones(count: np.ndarray, variance: np.ndarray) -> float:
    """The variance within clients, of all of them together."""
    freedom = np.maximum(count - 1, 0)
    return float((freedom * variance).sum() / max(freedom.sum(), 1))


def pooled(count: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """The variance within each client; of one that has a single sample, that of all clients."""
    return np.where(count > 1, variance, everyones(count, variance))
