"""Privacy of single samples: noise on every gradient that a client takes (DP-SGD)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from ..task.batches import Batch
from ..task.sample_clipping import SampleClipping
from .accountant import LEAST_NOISE, MOST_NOISE, WITHIN, Accountant
from .noise import Noise, released

WIDTHS = (1.001, 1.02, 1.1, 1.3, 2.0, 4.0, 16.0, 256.0)  # of rates that are counted as one
MOST_GROUPS = 8
ROUNDED = 1 + 2.0**-11  # the norm of a clipped gradient may be this much too large, in float32


@dataclass(frozen=True)
class GradientNoise:
    """Noise of standard deviation σ on sums of clipped gradients, and the grid of its results."""

    sigma: float
    noise: Noise = field(repr=False)

    def __call__(self, sums: Tensor, batch: Batch) -> Tensor:  # [K, d] -> [K, d]
        assert batch.noise_keys is not None
        keys, step = batch.noise_keys
        rows, numbers = sums.shape
        normal = self.noise.normal(rows, numbers, "gradient", step, keys).to(sums.device)
        return released(sums.double(), normal, self.sigma).to(sums.dtype)


def sample_clipping(clip: float, multiplier: float, noise: Noise) -> SampleClipping:
    """What clients do to every gradient."""
    return SampleClipping(clip, GradientNoise(multiplier * clip * ROUNDED, noise))


@dataclass(frozen=True)
class SampleExposure:
    """How often gradients may touch a sample of each client, and with which probability."""

    rates: np.ndarray  # float64[N]: q_i = B / n_i, at most 1
    # int64[N]: gradients that each client takes in the planned rounds; zeros where that is unknown
    planned: np.ndarray
    batch: int  # B

    @classmethod
    def of(cls, sizes: np.ndarray, batch: int, planned: Sequence[int] = ()) -> SampleExposure:
        """By the numbers of training samples; with no plan, or that of the first clients."""
        rates = np.minimum(1.0, batch / np.maximum(sizes, 1))
        counts = np.zeros(len(sizes), dtype=np.int64)
        counts[: len(planned)] = planned[: len(sizes)]
        return cls(rates, counts, batch)

    def grown(self, sizes: np.ndarray) -> SampleExposure:
        """With more clients, which were not planned for."""
        more = SampleExposure.of(sizes, self.batch)
        rates = np.concatenate([self.rates, more.rates])
        return SampleExposure(rates, np.concatenate([self.planned, more.planned]), self.batch)

    def worst(self, noise: float, counts: np.ndarray, delta: float) -> float:
        """ε of the client that has spent most after so many gradients each.

        Clients with similar rates count as one that has the largest rate and the most gradients.
        """
        groups = self._groups(counts)
        bounds = [Accountant(noise, q).at_most(n, delta, n) for q, n in groups]
        worst = 0.0
        for bound, (q, n) in sorted(zip(bounds, groups, strict=True), reverse=True):
            if bound <= worst:  # the bounds are a little too large
                break
            worst = max(worst, Accountant(noise, q).epsilon(n, delta))
        return worst

    def at_most(self, noise: float, counts: np.ndarray, delta: float, last: bool = False) -> float:
        """An upper bound on the same that is quick to have; `last`: for just these counts."""
        groups, planned = self._groups(counts), int(self.planned.max(initial=0))
        return max(
            (Accountant(noise, q).at_most(n, delta, n if last else planned) for q, n in groups),
            default=0.0,
        )

    def _groups(self, counts: np.ndarray) -> list[tuple[float, int]]:
        """Rates, rounded up, and most gradients: those that no other group exceeds in both."""
        for factor in WIDTHS:
            rates = self._rounded(factor)
            front: list[tuple[float, int]] = []
            for q in np.unique(rates)[::-1]:
                most = int(counts[rates == q].max())
                if most > (front[-1][1] if front else 0):
                    front.append((float(q), most))
            if len(front) <= MOST_GROUPS:
                break
        return front

    def _rounded(self, factor: float) -> np.ndarray:
        """Rates up to the next power of a factor; the largest of all where that is beyond it."""
        powers = factor ** np.ceil(np.log(self.rates) / np.log(factor) - 1e-9)
        return np.minimum(powers, self.rates.max(initial=0.0))

    def each(self, noise: float, counts: np.ndarray, delta: float) -> np.ndarray:  # -> float64[N]
        """ε of each client, rounded up, and no more than that of the worst."""
        worst, last = self.worst(noise, counts, delta), int(counts.max(initial=0))
        bounds = [
            Accountant(noise, float(q)).at_most(int(n), delta, last)
            for q, n in zip(self._rounded(WIDTHS[2]), counts, strict=True)
        ]
        return np.minimum(bounds, worst)

    def calibrated(self, epsilon: float, delta: float) -> float:
        """The least noise multiplier with which the planned gradients stay within ε for all."""
        low, high = LEAST_NOISE, 1.0
        while self.at_most(high, self.planned, delta, True) > epsilon and high < MOST_NOISE:
            low, high = high, high * 2
        while high - low > 5 * WITHIN * high:
            middle = (low + high) / 2
            if self.at_most(middle, self.planned, delta, True) <= epsilon:
                high = middle
            else:
                low = middle
        return high
