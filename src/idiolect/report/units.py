"""What is independent evidence: samples, or groups of them, such as the rows of one patient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Units:
    """Held-out samples, or groups of them."""

    owner: np.ndarray  # int64[units]: the client of each
    of_sample: np.ndarray | None = None  # int64[n]; None where each sample is one

    @classmethod
    def of(cls, owner: np.ndarray, group: np.ndarray | None) -> Units:
        """From the client and the group of each sample; a group counts apart in each client."""
        if group is None:
            return cls(owner)
        pairs, of_sample = np.unique(np.stack([owner, group]), axis=1, return_inverse=True)
        return cls(pairs[0], of_sample.reshape(-1))

    def sums(self, each: np.ndarray) -> np.ndarray:  # [n] -> [units]
        """What the samples of each unit add up to."""
        if self.of_sample is None:
            return each
        return np.bincount(self.of_sample, each, minlength=len(self.owner))

    def values(self, d: np.ndarray) -> np.ndarray:  # [seeds, n] -> [seeds, units]
        """Paired differences of units, with the mean of all samples.

        A unit has the sum of its samples' deviations from that mean, as in a cluster-robust
        variance: five copies of a sample say as much as one.

        >>> units = Units.of(np.array([0, 0, 0]), np.array([7, 7, 9]))
        >>> units.values(np.array([[0.5, 0.5, 0.2]])).round(3)
        array([[0.533, 0.267]])
        """
        if self.of_sample is None:
            return d
        held_out = ~np.isnan(d)
        mean = d[held_out].mean() if held_out.any() else 0.0
        scale = len(self.owner) / len(self.of_sample)
        return self._deviations(d, np.full(len(self.owner), mean), np.full(len(self.owner), scale))

    def values_by_client(self, d: np.ndarray) -> np.ndarray:  # [seeds, n] -> [seeds, units]
        """The same with the mean of each client's samples: groups weigh by their size within it.

        >>> units = Units.of(np.array([0, 0, 0, 1]), np.array([7, 7, 9, 9]))
        >>> units.values_by_client(np.array([[0.5, 0.5, 0.2, 3.0]])).round(3)
        array([[0.533, 0.267, 3.   ]])
        """
        if self.of_sample is None:
            return d
        of_client = self.owner[self.of_sample]
        rows = []
        for values in d:
            here = ~np.isnan(values)
            units = np.unique(self.of_sample[here])
            length = int(self.owner.max(initial=-1)) + 1
            count = np.maximum(np.bincount(of_client[here], minlength=length), 1)
            mean = np.bincount(of_client[here], values[here], minlength=length) / count
            scale = np.bincount(self.owner[units], minlength=length) / count
            rows.append(self._deviations(values[None], mean[self.owner], scale[self.owner])[0])
        return np.array(rows)

    def _deviations(self, d: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """mean + scale * (sum of a unit's deviations from it); NaN without a sample."""
        assert self.of_sample is not None
        out = np.full((len(d), len(self.owner)), math.nan)
        for row, values in zip(out, d, strict=True):
            here = ~np.isnan(values)
            of_unit = self.of_sample[here]
            sums = np.bincount(of_unit, values[here] - mean[of_unit], minlength=len(self.owner))
            row[np.unique(of_unit)] = (mean + scale * sums)[np.unique(of_unit)]
        return out
