"""Mini-batches for a whole cohort at once: one index matrix, one gather, no Python per client or sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..data.federation import Federation

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
    noise_keys: tuple[np.ndarray, int] | None = (
        None  # streams of the model's own randomness (dropout), and the step
    )

    def noise(self, row: int) -> int:
        """A seed for this row's dropout at this step: from the client's own stream."""
        assert self.noise_keys is not None
        key, step = self.noise_keys
        return int(streams.bits(key[row : row + 1], step, 1)[0, 0] >> np.uint64(1))

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
        validate: Callable[[Tensor], Tensor] | None = None,
    ):
        self.data, self.batch, self.batching, self.dtype = data, batch, batching, dtype
        self.starts = data.offsets["train"][clients].numpy()
        self.sizes = data.sizes("train")[clients].numpy()
        self.rows = len(clients)
        self.tally = torch.zeros(self.rows, dtype=torch.int64)
        self.seed, self.round, self.purpose, self.names = (
            seed,
            round,
            purpose,
            names[clients.numpy()],
        )
        self._validate = validate
        self.key = self.keys(purpose)
        self.noise_key = self.keys(f"{purpose} noise")
        self.step = 0
        self._ahead: Tensor | None = None
        self._share = torch.empty(0)
        self._full: Batch | None = None
        self._epoch = np.full(self.rows, -1)
        self._order = np.zeros((self.rows, 0), dtype=np.int64)

    def validate(self, x: Tensor) -> Tensor:  # x[K, d] -> float64[K]
        """The error of each row's model on that client's own validation data (the loss for a regression); 0 where it has none."""
        assert self._validate is not None, "this host offers no validation data"
        return self._validate(x)

    def keys(self, purpose: str) -> np.ndarray:  # -> uint64[K]
        """Streams of this round for another purpose, one a client."""
        return streams.keys(self.seed, purpose, self.round, self.names)

    def coins(self, purpose: str, count: int) -> np.ndarray:  # -> float64[count] in [0, 1)
        """Random numbers of this round that all clients and the server share: nothing has to be sent for them."""
        return streams.uniform(streams.keys(self.seed, purpose, self.round), count)[0]

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
            batch = self._with_replacement()
        self.step += 1
        return replace(batch, noise_keys=(self.noise_key, self.step))

    def _with_replacement(self) -> Batch:
        at = self.step % _AHEAD
        if self._ahead is None or at == 0:
            words = streams.bits(self.key, (self.step - at) * self.batch, _AHEAD * self.batch)
            index = (
                streams.below(words, self.sizes[:, None])
                + np.where(self.sizes > 0, self.starts, 0)[:, None]
            )
            self._ahead = (
                torch.from_numpy(index)
                .view(self.rows, _AHEAD, self.batch)
                .to(self.data.inputs.device)
            )
            share = (self.sizes > 0)[:, None] / np.full((1, self.batch), float(self.batch))
            self._share = torch.from_numpy(share).to(
                device=self.data.inputs.device, dtype=self.dtype
            )
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
                key = streams.mix(self.key[new] + epoch[new].astype(np.uint64))
            words = streams.bits(key, 0, longest) >> np.uint64(1)
            words[np.arange(longest) >= self.sizes[new, None]] = np.uint64(
                2**63
            )  # past the client's data: last
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
        """Positions in each client's data, and which of them count."""
        index = torch.from_numpy(np.where(exists, self.starts[:, None] + place, 0))
        weights = torch.from_numpy(exists / np.maximum(exists.sum(1, keepdims=True), 1))
        device = self.data.inputs.device
        return self._take(index.to(device), weights.to(device=device, dtype=self.dtype))

    def _take(self, index: Tensor, weights: Tensor) -> Batch:  # index[K, B]
        inputs, targets, flat = self.data.inputs, self.data.targets, index.flatten()
        return Batch(
            inputs.index_select(0, flat).view(*index.shape, *inputs.shape[1:]),
            targets.index_select(0, flat).view(*index.shape, *targets.shape[1:]),
            weights,
            self.tally,
        )
