"""Who gains and who loses by federating, client by client.

Each client has a paired test on its own held-out samples: Student's t on their differences, whose
variance includes that from training to training; where samples are right or wrong, also the exact
sign test on those that one of the two answers right, and the less certain of the two counts. Over
all clients the false discovery rate is held at 5 % (Benjamini and Hochberg 1995): of the clients
that are called, at most one in twenty is expected to be called wrongly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...data.read.ids import ClientId
from .estimate import LEVEL, Held, by_client

CLIENT_SAMPLES = 5  # held-out samples needed to judge a client
GAINS = "gains"
LOSES = "loses"
INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class ClientGain:
    """What federating does to one client."""

    client: ClientId
    samples: int  # held out
    gain: float  # NaN without held-out samples
    half: float  # half the 95 % interval; infinite with too few samples
    verdict: str  # GAINS, LOSES or INCONCLUSIVE

    def as_dict(self) -> dict[str, Any]:
        low, high = self.gain - self.half, self.gain + self.half
        return {
            "client": self.client,
            "samples": self.samples,
            "gain": self.gain,
            "low": low,
            "high": high,
            "verdict": self.verdict,
        }


def client_gains(d: np.ndarray, samples: Held, ids: tuple[ClientId, ...]) -> list[ClientGain]:
    """A line per client, in the order of the federation, from paired differences d[seeds, n]."""
    from scipy.special import bdtr, stdtr, stdtrit
    from scipy.stats import false_discovery_control

    ever_held_out = ~np.isnan(d).all(axis=0)
    owner = samples.owner[ever_held_out]
    each = np.nanmean(d[:, ever_held_out], axis=0) if ever_held_out.any() else np.zeros(0)
    count, mean, variance = by_client(each, owner, samples.clients)
    seeds = np.maximum(_seeds(d, samples), 1)
    trainings = samples.training_variance(d) / seeds
    enough = count >= CLIENT_SAMPLES
    freedom = np.maximum(count - 1, 1)
    error = np.sqrt(variance / np.maximum(count, 1) + trainings)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * stdtr(freedom, -np.abs(mean) / error)
    p = np.where(error > 0, p, np.where(mean == 0, 1.0, 0.0))
    if samples.counted:
        better = np.bincount(owner[each > 0], minlength=samples.clients)
        worse = np.bincount(owner[each < 0], minlength=samples.clients)
        differ = better + worse
        sign_test = np.minimum(1.0, 2 * bdtr(np.minimum(better, worse), differ, 0.5))
        p = np.where(differ > 0, np.maximum(p, sign_test), 1.0)
    called = np.zeros(samples.clients, dtype=bool)
    if enough.any():
        called[enough] = false_discovery_control(p[enough]) <= LEVEL
    half = np.where(enough, stdtrit(freedom, 1 - LEVEL / 2) * error, math.inf)
    return [
        ClientGain(
            ids[k],
            int(count[k]),
            float(mean[k]) if count[k] else math.nan,
            float(half[k]),
            (GAINS if mean[k] > 0 else LOSES) if called[k] else INCONCLUSIVE,
        )
        for k in range(samples.clients)
    ]


def _seeds(d: np.ndarray, samples: Held) -> np.ndarray:
    """Under how many seeds each client had a sample held out."""
    return sum(
        (np.bincount(samples.owner[~np.isnan(row)], minlength=samples.clients) > 0 for row in d),
        start=np.zeros(samples.clients, dtype=np.int64),
    )
