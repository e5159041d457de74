"""Mini-batches for a whole cohort at once: one index matrix, one gather, no Python per client or sample."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from . import streams
from .data.federation import Federation

BATCHING = ("replace", "epochs", "full")
_AHEAD = 16  # steps whose indices are drawn together; the numbers do not depend on it


@dataclass(frozen=True)
class Batch:
    """One mini-batch for each row. Rows of `weights` sum to 1, or to 0 for a client with no data."""

    inputs: Tensor  # [K, B, ...]
    targets: Tensor  # [K, B, ...]
    weights: Tensor  # [K, B]: 1 / (number of samples drawn), 0 where a row has fewer than B
    tally: Tensor  # int64[K]: gradient evaluations so far; Task.grad adds to it, so none goes uncounted
    active: Tensor | None = None  # bool[K]: rows still at work; None = all
    noise: np.ndarray | None = None  # uint64[K]: keys for the model's own randomness (dropout)

    def only(self, active: Tensor) -> Batch:
        """The same batch for the rows that are still at work; the others' gradients are not asked for."""
        return replace(self, active=active if self.active is None else self.active & active)


class Batches:
    """Draws for K clients in one round. `draw()` gives every row a fresh mini-batch from its own stream.

    batching: "replace" (uniform, with replacement), "epochs" (without: a new order every pass, the last batch of a pass may
    be smaller) or "full" (all the training data of the client, every time).
    """

    def __init__(
        self,
        data: Federation,
        clients: Tensor,
        *,
        seed: int,
        round: int,
        names: np.ndarray,
        batch: int,
        batching: str,
        dtype: torch.dtype = torch.float32,
        purpose: str = "batch",
    ):
        self.data, self.batch, self.batching, self.dtype = data, batch, batching, dtype
        self.starts = data.offsets["train"][clients].numpy()
        self.sizes = data.sizes("train")[clients].numpy()
        self.rows = len(clients)
        self.tally = torch.zeros(self.rows, dtype=torch.int64)
        self.key = streams.keys(seed, purpose, round, names[clients.numpy()])
        self.noise_key = streams.keys(seed, f"{purpose} noise", round, names[clients.numpy()])
        self.step = 0
        self._ahead: np.ndarray | None = None
        self._full: Batch | None = None
        self._epoch = np.full(self.rows, -1)
        self._order = np.zeros((self.rows, 0), dtype=np.int64)

    def steps(self, steps: int, epochs: int) -> Tensor:  # -> int64[K]
        """How many steps each row takes: `steps`, or, where `epochs` > 0, that many passes over its own data."""
        if not epochs:
            return torch.full((self.rows,), steps)
        a_pass = 1 if self.batching == "full" else -(-self.sizes // self.batch)
        return torch.as_tensor(np.broadcast_to(epochs * np.maximum(a_pass, 0), (self.rows,)).copy())

    def draw(self) -> Batch:
        """A fresh mini-batch for every row."""
        if self.batching == "full":
            self._full = self._full or self._all()
            batch = self._full
        elif self.batching == "epochs":
            batch = self._gather(*self._next_in_order())
        else:
            batch = self._gather(self._with_replacement(), np.broadcast_to(self.sizes[:, None] > 0, (self.rows, self.batch)))
        self.step += 1
        return replace(batch, noise=streams.bits(self.noise_key, self.step, 1)[:, 0])

    def _with_replacement(self) -> np.ndarray:
        at = self.step % _AHEAD
        if self._ahead is None or at == 0:
            words = streams.bits(self.key, (self.step - at) * self.batch, _AHEAD * self.batch)
            self._ahead = streams.below(words, self.sizes[:, None]).reshape(self.rows, _AHEAD, self.batch)
        return self._ahead[:, at]

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
                key = streams.mix(self.key[new] + epoch[new].astype(np.uint64))
            words = streams.bits(key, 0, longest) >> np.uint64(1)
            words[np.arange(longest) >= self.sizes[new, None]] = np.uint64(2**63)  # past the client's data: last
            self._order[new] = words.argsort(axis=1, kind="stable")
            self._epoch = epoch
        place = at[:, None] * self.batch + np.arange(self.batch)
        exists = place < self.sizes[:, None]
        return np.take_along_axis(self._order, np.where(exists, place, 0), axis=1), exists

    def _all(self) -> Batch:
        place = np.arange(max(int(self.sizes.max(initial=0)), 1))
        exists = place < self.sizes[:, None]
        return self._gather(np.where(exists, place, 0), exists)

    def _gather(self, place: np.ndarray, exists: np.ndarray) -> Batch:
        inputs, targets = self.data.inputs, self.data.targets
        start = np.minimum(self.starts, len(inputs) - 1)  # an empty client at the very end
        index = torch.from_numpy(np.where(exists, start[:, None] + place, 0)).to(inputs.device)
        shape, flat = index.shape, index.flatten()
        weights = torch.from_numpy(exists / np.maximum(exists.sum(1, keepdims=True), 1))
        return Batch(
            inputs.index_select(0, flat).view(*shape, *inputs.shape[1:]),
            targets.index_select(0, flat).view(*shape, *targets.shape[1:]),
            weights.to(device=inputs.device, dtype=self.dtype),
            self.tally,
        )
