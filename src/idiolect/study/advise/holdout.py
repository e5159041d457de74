"""Which samples are held out to judge candidates by. Test data are cut off before anything else.

Either the federation's own validation samples, or folds: each client's training and validation
samples in one random order, of which seed s holds out every fifth, another fifth under each seed. A
client of n < 5 samples has n folds, and one of a single sample keeps it for training.

The held-out samples of each client fall into two halves, A and B. What is chosen (a step size) is
chosen on one half and judged on the other, so that no sample judges what was chosen by it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ...core import streams
from ...core.knobs import SettingError
from ...core.types import first, map_tree
from ...data.federation import Federation

FOLDS = 5
GIVEN = "given"
IN_FOLDS = "folds"


def _rows(federation: Federation, index: Tensor) -> Federation:
    """The same clients, with these rows only; the offsets are the caller's to set."""
    at = index.to(first(federation.inputs).device)
    whole = torch.equal(index, torch.arange(len(index)))

    def chosen(t: Tensor) -> Tensor:
        return t[: len(index)] if whole else t[at]  # no copy of the first rows

    return replace(
        federation,
        inputs=map_tree(chosen, federation.inputs),
        targets=map_tree(chosen, federation.targets),
        sequences=federation.sequences and federation.sequences.of(index),
    )


@dataclass(frozen=True)
class Holdout:
    """The samples that may be held out, and who holds them out when."""

    data: Federation  # without test samples
    kind: str  # GIVEN or IN_FOLDS
    owner: np.ndarray  # int64[n]: the position of each sample's client
    half: np.ndarray  # bool[n]: whether it belongs to half B
    _order: np.ndarray  # int64[n]: the row of `data` that each sample is
    _fold: np.ndarray  # int64[n]: in which fold it is
    _folds: np.ndarray  # int64[clients]: how many folds each client has

    @classmethod
    def of(cls, federation: Federation, kind: str, seed: int) -> Holdout:
        """Of a federation: `kind` is "given", "folds", or "auto" for what it has."""
        # a preparation sends one message before the first round, which is no cost of the rounds
        data = replace(federation.without("test"), preparation=None)
        has = bool(data.sizes("valid").any())
        if kind == GIVEN and not has:
            raise SettingError(
                "validation must be 'folds' where no client has validation samples, got 'given'"
            )
        if kind == "auto":
            kind = GIVEN if has else IN_FOLDS
        splits = ("valid",) if kind == GIVEN else ("train", "valid")
        clients = np.arange(data.clients)
        sizes = {s: data.sizes(s).numpy() for s in splits}
        owner = np.concatenate([np.repeat(clients, sizes[s]) for s in splits])
        low = int(data.offsets[splits[0]][0])
        rows = low + np.arange(len(owner))
        order = np.lexsort((rows, owner))  # together by client
        owner, rows = owner[order], rows[order]
        count = np.bincount(owner, minlength=data.clients)
        folds = np.minimum(FOLDS, count) if kind == IN_FOLDS else np.ones_like(count)
        rank = _ranks(data, owner, count, seed)
        fold = rank % np.maximum(folds, 1)[owner]
        half = (rank // np.maximum(folds, 1)[owner] + owner) % 2 == 1
        return cls(data, kind, owner, half, rows, fold, folds)

    @property
    def samples(self) -> int:
        return len(self.owner)

    def held(self, seed: int) -> np.ndarray:  # -> int64
        """Which samples are held out under a seed, counted from 0."""
        if self.kind == GIVEN:
            return np.arange(self.samples)
        folds = self._folds[self.owner]
        return np.flatnonzero((self._fold == seed % np.maximum(folds, 1)) & (folds > 1))

    def mask(self, seeds: int) -> np.ndarray:  # -> bool[seeds, n]
        """Which samples are held out under each of some seeds."""
        mask = np.zeros((seeds, self.samples), dtype=bool)
        for seed in range(seeds):
            mask[seed, self.held(seed)] = True
        return mask

    def under(self, seed: int) -> tuple[Federation, np.ndarray]:
        """The federation whose validation samples are held out under a seed, counted from 0.

        And which samples they are, in the order in which the federation has them.
        """
        if self.kind == GIVEN:
            return self.data, np.arange(self.samples)
        held_out = self.mask(seed + 1)[seed]
        at = np.concatenate([np.flatnonzero(~held_out), np.flatnonzero(held_out)])
        subset = _rows(self.data, torch.from_numpy(self._order[at]))
        offsets = {}
        start = 0
        for split, mask in (("train", ~held_out), ("valid", held_out)):
            sizes = np.bincount(self.owner[mask], minlength=self.data.clients)
            ends = start + np.concatenate([[0], sizes.cumsum()])
            offsets[split] = torch.from_numpy(ends)
            start = int(ends[-1])
        offsets["test"] = torch.full((self.data.clients + 1,), start)
        return replace(subset, offsets=offsets), np.flatnonzero(held_out)

    def halves(self, seed: int) -> Federation:
        """Twice as many clients: each one's training samples in two random halves.

        Clients 2 k and 2 k + 1 are the halves of client k. For models that share no sample.
        """
        data = self.data
        sizes = data.sizes("train").numpy()
        owner = np.repeat(np.arange(data.clients), sizes)
        rank = _ranks(data, owner, sizes, seed, "halves")
        new = 2 * owner + rank % 2
        order = np.argsort(new, kind="stable")
        subset = _rows(data, torch.from_numpy(order))
        ends = np.concatenate([[0], np.bincount(new, minlength=2 * data.clients).cumsum()])
        none = torch.full((len(ends),), int(ends[-1]))
        offsets = {"train": torch.from_numpy(ends), "valid": none, "test": none}
        return replace(subset, offsets=offsets, ids=tuple(range(2 * data.clients)), name="halves")


def _ranks(
    data: Federation, owner: np.ndarray, count: np.ndarray, seed: int, purpose: str = "folds"
) -> np.ndarray:
    """The place of each sample in a random order of its client's; samples are together by client.

    A client's order does not depend on other clients.
    """
    keys = streams.keys(seed, f"advise {purpose}", 0, streams.name_keys(data.names))
    place = np.arange(len(owner)) - np.repeat(count.cumsum() - count, count)
    with np.errstate(over="ignore"):
        drawn = streams.mix(keys[owner] + place.astype(np.uint64))
    order = np.lexsort((drawn, owner))
    rank = np.empty(len(owner), dtype=np.int64)
    rank[order] = place
    return rank
