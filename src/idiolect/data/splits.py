"""Training, validation and test samples: drawn at random per client, or as the user says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.knobs import SettingError

SPLITS = ("train", "valid", "test")


def draw_split(client: np.ndarray, valid: float, test: float, seed: int) -> np.ndarray:
    """A split for each sample; 0, 1 and 2 stand for train, valid and test.

    Each client's n samples are shuffled: the first round(test n) are for testing, then round(valid
    rest) of the rest for validation; at least one sample trains.

    >>> np.bincount(draw_split(np.zeros(315, dtype=int), 0.2, 0.2, seed=0)).tolist()
    [202, 50, 63]
    """
    # clients together, shuffled within each
    order = np.lexsort((np.random.default_rng(seed).random(len(client)), client))
    sizes = np.bincount(client)
    rank = np.empty(len(client), dtype=np.int64)
    rank[order] = np.arange(len(client)) - np.repeat(sizes.cumsum() - sizes, sizes)
    tests = np.minimum(np.rint(test * sizes).astype(np.int64), sizes - 1)
    valids = np.minimum(np.rint(valid * (sizes - tests)).astype(np.int64), sizes - tests - 1)
    return np.where(rank < tests[client], 2, np.where(rank < (tests + valids)[client], 1, 0))


def read_split(split: Sequence[str] | np.ndarray, n: int) -> np.ndarray:
    """The user's "train", "valid" and "test" as 0, 1 and 2."""
    names = np.asarray(split).astype(str)
    if len(names) != n:
        raise SettingError(f"split: {len(names)} entries for {n} samples")
    unknown = sorted(set(names.tolist()) - set(SPLITS))
    if unknown:
        raise SettingError(f"split: {unknown[0]!r} is unknown; known: {', '.join(SPLITS)}")
    return np.select([names == s for s in SPLITS], range(3))
