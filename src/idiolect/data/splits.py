"""Training, validation and test samples: drawn at random per client, or as the user says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import Knobs, SettingError, knob
from ..core.text import note
from .read.ids import read_ids

SPLITS = ("train", "valid", "test")
ALIASES = {"validation": "valid", "val": "valid"}  # as other libraries call them


def offsets_of(sizes: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Where each client's samples begin, split by split, and where the last of them end."""
    offsets = {}
    start = 0
    for split in SPLITS:
        offsets[split] = torch.cat([torch.zeros(1, dtype=torch.int64), sizes[split].cumsum(0)])
        offsets[split] += start
        start = int(offsets[split][-1])
    return offsets


@dataclass(frozen=True)
class Shares(Knobs):
    """How much of each client's data validates and tests."""

    valid: float = knob(0.2, "share of the training samples kept for validation", low=0, below=1)
    test: float = knob(0.2, "share of each client's samples kept for testing", low=0, below=1)
    seed: int = knob(0, "seed of the split", low=0)

    def shares(self) -> dict[str, Any]:
        """The same as options of `Federation.from_arrays`."""
        return {"valid": self.valid, "test": self.test, "seed": self.seed}


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
    if names.ndim != 1:
        raise SettingError(f"split must be one entry per sample, got shape {names.shape}")
    for alias, name in ALIASES.items():
        names = np.where(names == alias, name, names)
    if len(names) != n:
        raise SettingError(f"split: {len(names)} entries for {n} samples")
    unknown = sorted(set(names.tolist()) - set(SPLITS))
    if unknown:
        raise SettingError(f"split: {unknown[0]!r} is unknown; known: {', '.join(SPLITS)}")
    return np.select([names == s for s in SPLITS], range(3))


def complete_split(
    split: Sequence[str] | np.ndarray, clients: Any, valid: float, test: float, seed: int
) -> np.ndarray:  # -> text[n]
    """The split of each sample by name; a split that nobody has is drawn from training samples.

    `clients` has the client id of each sample.
    """
    part = read_split(split, len(split))
    shares = {
        name: share
        for name, share in (("valid", valid), ("test", test))
        if share and SPLITS.index(name) not in part
    }
    if shares:
        words = " and ".join(f"{share:.0%} for {name}" for name, share in shares.items())
        note(f"split: there is no {' or '.join(shares)} part; of the training samples {words}")
        train = np.flatnonzero(part == 0)
        _, who = np.unique(read_ids(clients)[1][train], return_inverse=True)
        part[train] = draw_split(who, shares.get("valid", 0.0), shares.get("test", 0.0), seed)
    return np.array(SPLITS)[part]
