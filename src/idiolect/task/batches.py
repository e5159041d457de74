"""Mini-batches for a whole cohort at once.

One index matrix and one gather per step: no Python per client or per sample.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.streams import Keys
from ..core.tensors import padded_lengths
from ..core.types import Sequences, Tree, first, map_tree
from .augment import Augmentation

BATCHING = ("replace", "epochs", "full", "poisson")
_AHEAD = 16  # steps whose indices are drawn together; the numbers do not depend on it


@dataclass(frozen=True)
class Batch:
    """One mini-batch per row. Rows of `weights` sum to 1, or to 0 for a client without data.

    With weights of samples, or a random number of samples ("poisson"), they sum to 1 in the mean
    over mini-batches, so that a gradient is an
    unbiased one of the client's loss, Σ w_i l_i / Σ w_i. A row with fewer than B samples is filled
    up at its end, by samples of the same client.
    """

    inputs: Tree  # [K, B, ...]
    targets: Tree  # [K, B, ...]
    # [K, B]: 1 / (number of samples drawn), times the sample's weight over the mean weight of the
    # client's training samples; 0 where a row has fewer than B
    weights: Tensor
    tally: (
        Tensor  # int64[K]: gradient evaluations so far; Task.grad adds to it: none goes uncounted
    )
    active: Tensor | None = None  # bool[K]: rows still at work; None = all
    noise_keys: tuple[Keys, int] | None = (
        None  # streams of the model's own randomness, and the step
    )
    # running statistics [K, m] of the models at work, by name: a gradient writes into them
    statistics: dict[str, Tensor] | None = None
    model: str = "w"  # whose gradient is asked for
    sequences: Sequences | None = None  # lengths of padded samples
    # [K]: how many samples were expected, where the number drawn is random; None = as many as drawn
    expected: Tensor | None = None
    uneven: bool = False  # samples have weights of their own
    # int64[1]: gradients with clipped samples that this draw was used for; None = not a draw
    uses: Tensor | None = None

    @property
    def running(self) -> Tensor | None:
        """The running statistics of the model whose gradient is asked for."""
        return None if self.statistics is None else self.statistics.get(self.model)

    def of(self, model: str) -> Batch:
        """The same batch for another of the models that a client trains."""
        return replace(self, model=model) if self.statistics else self

    def expected_samples(self) -> Tensor:  # -> [K]
        """How many samples a row has in expectation, 1 for rows without data.

        A function of the client's number of samples and of the settings, not of what was drawn.
        """
        drawn = (self.weights > 0).sum(1).to(self.weights.dtype)
        return (drawn if self.expected is None else self.expected).clamp(min=1)

    def real_samples(self) -> list[int]:
        """How many samples of each row do not just fill it up."""
        return (self.weights > 0).sum(1).tolist()

    def rows_of(self, *trees: Tree) -> list[tuple[Tree, ...]]:
        """Trees [K, B, ...] row by row, cut to the samples that do not just fill it up."""
        return [
            tuple(map_tree(lambda t, k=k, n=n: t[k][:n], tree) for tree in trees)
            for k, n in enumerate(self.real_samples())
        ]

    def noise(self, row: int) -> int:
        """A seed for this row's dropout at this step: from the client's own stream."""
        assert self.noise_keys is not None
        key, step = self.noise_keys
        return int(streams.bits(key[row : row + 1], step, 1)[0, 0] >> np.uint64(1))

    def only(self, active: Tensor) -> Batch:
        """The same batch for the rows still at work; no gradient is asked for the others."""
        return replace(self, active=active if self.active is None else self.active & active)


class Batches:
    """Mini-batches of K clients. `draw()` gives every row a fresh one from its own stream.

    batching: "replace" (uniform, with replacement), "epochs" (without: a new order every pass, the
    last batch of a pass may be smaller), "full" (all training data of the client, every time) or
    "poisson" (every sample joins by itself, with probability batch / number of samples, at most 1:
    the sampling that amplifies differential privacy; a mini-batch may be empty).
    """

    def __init__(
        self,
        inputs: Tree,  # [n, ...] of all clients
        targets: Tree,  # [n, ...]
        starts: np.ndarray,  # int64[K]: where each row's samples begin
        sizes: np.ndarray,  # int64[K]: how many there are
        *,
        keys: Keys,  # uint64[K]: a stream per row
        noise_keys: Keys,  # uint64[K]: a stream per row for the model's own randomness
        batch: int,
        batching: str,
        dtype: torch.dtype,
        sequences: Sequences | None = None,  # lengths of padded samples
        shares: Tensor | None = None,  # [n]: `Federation.training_shares`; None = all alike
        augment: Augmentation | None = None,  # of the samples of every mini-batch
        augment_keys: Keys | None = None,  # uint64[K]: a stream per row for it
    ):
        self.sequences = sequences
        self.inputs = inputs
        self.targets = targets
        self.device = first(inputs).device
        self.starts = starts
        self.sizes = sizes
        self.batch = batch
        self.batching = batching
        self.dtype = dtype
        self.rows = len(starts)
        empty = np.flatnonzero(sizes == 0)
        self._empty = torch.from_numpy(empty).to(self.device) if len(empty) else None
        self.tally = torch.zeros(self.rows, dtype=torch.int64)
        self._shares = shares
        self._share = torch.empty(0)
        self._full: Batch | None = None
        self._order = np.zeros((self.rows, 0), dtype=np.int64)
        self._augment = augment
        self.restart(keys, noise_keys, augment_keys)

    def restart(self, keys: Keys, noise_keys: Keys, augment_keys: Keys | None = None) -> None:
        """Go on with the first mini-batch of other streams, one per row."""
        self.step = 0
        self._keys = keys
        self._noise_keys = noise_keys
        self._augment_keys = augment_keys
        self._ahead: Tensor | None = None
        self._epoch = np.full(self.rows, -1)

    def draw(self) -> Batch:
        """A fresh mini-batch for every row."""
        if self.batching == "full":
            self._full = self._full or self.all()
            batch = replace(self._full, noise_keys=self._noise())
        elif self.batching == "epochs":
            batch = self._gather(*self._next_in_order())
        elif self.batching == "poisson":
            batch = self._each_by_itself()
        else:
            batch = self._with_replacement()
        if self._augment_keys is not None and self._augment:
            inputs = self._augment.apply(first(batch.inputs), self._augment_keys, self.step)
            batch = replace(batch, inputs=inputs)
        self.step += 1
        return batch

    def _noise(self) -> tuple[Keys, int]:
        """The streams of the model's own randomness at the step that is being drawn."""
        return self._noise_keys, self.step + 1

    def steps_per_pass(self) -> np.ndarray | int:  # -> int64[K]
        """How many mini-batches one pass over a row's own data takes."""
        return 1 if self.batching == "full" else -(-self.sizes // self.batch)

    def _with_replacement(self) -> Batch:
        at = self.step % _AHEAD
        if self._ahead is None or at == 0:
            first = (self.step - at) * self.batch
            words = streams.bits(self._keys, first, _AHEAD * self.batch)
            starts = np.where(self.sizes > 0, self.starts, 0)[:, None]
            index = streams.below(words, self.sizes[:, None]) + starts
            ahead = torch.from_numpy(index).view(self.rows, _AHEAD, self.batch)
            self._ahead = ahead.to(self.device)
            share = (self.sizes > 0)[:, None] / np.full((1, self.batch), float(self.batch))
            self._share = torch.from_numpy(share).to(device=self.device, dtype=self.dtype)
        return self._take(self._ahead[:, at], self._share)

    def _next_in_order(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions step*B ... of each row's current pass, and which of them exist."""
        longest = int(self.sizes.max(initial=1))
        a_pass = np.maximum(-(-self.sizes // self.batch), 1)
        epoch, at = np.divmod(self.step, a_pass)
        new = epoch != self._epoch
        if new.any():
            if not self._order.size:
                self._order = np.zeros((self.rows, longest), dtype=np.int64)
            with np.errstate(over="ignore"):
                key = streams.mix(self._keys[new] + epoch[new].astype(np.uint64))
            words = streams.bits(key, 0, longest) >> np.uint64(1)
            beyond = np.arange(longest) >= self.sizes[new, None]
            words[beyond] = np.uint64(2**63)  # past the client's data: last
            self._order[new] = words.argsort(axis=1, kind="stable")
            self._epoch = epoch
        place = at[:, None] * self.batch + np.arange(self.batch)
        exists = place < self.sizes[:, None]
        return np.take_along_axis(self._order, np.where(exists, place, 0), axis=1), exists

    def _each_by_itself(self) -> Batch:
        """Every sample with probability q_i = min(1, batch / n_i), whoever else joins."""
        rate = np.minimum(1.0, self.batch / np.maximum(self.sizes, 1))[:, None]
        longest = int(self.sizes.max(initial=0))
        with np.errstate(over="ignore"):
            key = streams.mix(self._keys + np.uint64(self.step))
        joins = streams.uniform(key, longest) < rate
        joins &= np.arange(longest) < self.sizes[:, None]
        counts = joins.sum(1)
        rows, samples = joins.nonzero()  # row by row, in order
        place = np.zeros((self.rows, max(int(counts.max(initial=0)), 1)), dtype=np.int64)
        place[rows, np.arange(len(rows)) - np.repeat(counts.cumsum() - counts, counts)] = samples
        exists = np.arange(place.shape[1]) < counts[:, None]
        expected = np.minimum(self.batch, self.sizes)
        batch = self._gather(place, exists, drawn=np.maximum(expected, 1)[:, None])
        uses = torch.zeros(1, dtype=torch.int64)
        return replace(batch, expected=torch.from_numpy(expected).to(batch.weights), uses=uses)

    def all(self) -> Batch:
        """All training data of every row."""
        place = np.arange(max(int(self.sizes.max(initial=0)), 1))
        exists = place < self.sizes[:, None]
        return self._gather(np.where(exists, place, 0), exists)

    def share_of(self, count: int) -> Tensor:  # -> [K, count]
        """Weights of mini-batches of so many samples that all count alike."""
        return torch.full((self.rows, count), 1 / count, dtype=self.dtype, device=self.device)

    def groups(self) -> Iterator[tuple[Tensor, Batch]]:
        """All training data of the rows that have any, those of like size together: no gradients.

        Positions of the rows, and their samples, filled up to a length that follows from each row's
        own size: what is computed of them has the same bits whoever else is there.
        """
        lengths = padded_lengths(self.sizes)
        for length in np.unique(lengths[lengths > 0]):
            rows = np.flatnonzero(lengths == length)
            place = np.arange(length)
            exists = place < self.sizes[rows, None]
            yield torch.from_numpy(rows), self._gather(np.where(exists, place, 0), exists, rows)

    def _gather(
        self,
        place: np.ndarray,
        exists: np.ndarray,
        rows: np.ndarray | None = None,
        drawn: np.ndarray | None = None,  # [K, 1]: what a sample's weight is 1 over; None = counted
    ) -> Batch:
        """Positions in each client's data, and which of them count; of all rows or of some."""
        if drawn is None:
            drawn = np.maximum(exists.sum(1, keepdims=True), 1)
        starts = np.where(self.sizes > 0, self.starts, 0)
        index = torch.from_numpy((starts if rows is None else starts[rows])[:, None] + place)
        weights = torch.from_numpy(exists / drawn)
        weights = weights.to(device=self.device, dtype=self.dtype)
        return self._take(index.to(self.device), weights, rows)

    def _take(self, index: Tensor, weights: Tensor, rows: np.ndarray | None = None) -> Batch:
        """Samples index[K, B] of all rows; or of some that have data, for no gradients."""
        flat = index.flatten()
        if self._shares is not None:
            weights = weights * self._shares.index_select(0, flat).view(index.shape).to(weights)

        def chosen(t: Tensor) -> Tensor:
            samples = t.index_select(0, flat).view(*index.shape, *t.shape[1:])
            if rows is None and self._empty is not None:  # nobody's data, not another client's
                samples[self._empty] = 0
            return samples

        inputs = map_tree(chosen, self.inputs)
        targets = map_tree(chosen, self.targets)
        sequences = self.sequences and self.sequences.of(index.cpu())
        if rows is not None:
            return Batch(inputs, targets, weights, self.tally[rows], sequences=sequences)
        uneven = self._shares is not None
        return Batch(
            *(inputs, targets, weights, self.tally, None, self._noise()),
            sequences=sequences,
            uneven=uneven,
        )
