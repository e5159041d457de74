"""What the code of a client may see in a round: its data, the round, random numbers, validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.knobs import SettingError
from ..core.streams import Keys
from ..core.types import Personal, Sequences, State, Tree, first, map_tree
from .augment import Augmentation
from .batches import Batch, Batches
from .client_optimizer import Optimise


class Samples(Protocol):
    """Data of some clients: a row of the cohort is a range of them (see idiolect.Federation)."""

    @property
    def inputs(self) -> Tree: ...

    @property
    def targets(self) -> Tree: ...

    @property
    def sequences(self) -> Sequences | None: ...

    @property
    def offsets(self) -> dict[str, Tensor]: ...

    @property
    def training_shares(self) -> Tensor | None: ...


class Here:
    """The context of `Method.update` and `Method.personal`, for K clients at once.

    rows: how many clients; samples: how many training samples each of them has; round: the round
    (the version of the server's model); `draw` a fresh mini-batch for each, `draws` so far;
    `steps` how many of them a client takes; `keys` a random stream for each;
    `coins` random numbers that all clients share; `validate` the error of a model for each;
    `optimise` the optimisers of the clients, None for plain steps; `exchange` the name of the
    exchange, where a round has several; `count` adds to what the method
    declares as `counted`.
    """

    optimise: Optimise | None = None
    exchange: str = ""  # which exchange of the round it is, for methods with several

    def __init__(
        self,
        data: Samples,
        rows: Tensor,  # int64[K]: which clients of `data`
        *,
        clients: Keys,  # uint64[K]: their names as stream keys
        seed: int,
        round: int,
        batch: int,
        batching: str,
        dtype: torch.dtype = torch.float32,
        purpose: str = "batch",
        # (what clients predict with, whether the loss is asked for) -> float64[K]
        validate: Callable[[Personal, bool], Tensor] | None = None,
        turns: np.ndarray | None = None,  # int64[K]: keys of their draws in place of the round
        augment: Augmentation | None = None,  # of the samples of every mini-batch
        gradients_only: bool = False,  # data act by mini-batches for gradients, and not otherwise
    ):
        self.rows = len(rows)
        self._gradients_only = gradients_only
        self.draws = 0  # mini-batches drawn so far
        self.round = round
        self._turns = round if turns is None else turns
        self._seed = seed
        self._clients = clients
        self._validate = validate
        self._purpose = purpose
        self._augments = bool(augment)
        self._restarts = 0
        self.counts: dict[str, Tensor] = {}  # int64[K] each: see `count`
        # running statistics [K, m] of each model that a client trains; {} where a model has none
        self.statistics: dict[str, Tensor] = {}
        offsets = data.offsets["train"]
        self._batches = Batches(
            data.inputs,
            data.targets,
            offsets[rows].numpy(),
            offsets.diff()[rows].numpy(),
            **self._streams(purpose),
            batch=batch,
            batching=batching,
            dtype=dtype,
            sequences=data.sequences,
            shares=data.training_shares,
            augment=augment,
        )

    def draw(self, model: str = "w") -> Batch:
        """A fresh mini-batch for every row, for the gradient of one of the models it trains."""
        batch = self._batches.draw()
        self.draws += 1
        if self.statistics:
            return replace(batch, statistics=self.statistics, model=model)
        return batch

    def batch_of(self, inputs: Tree, step: int, purpose: str, model: str = "w") -> Batch:
        """A mini-batch of other inputs than the clients' own, such as public ones: [K, B, ...].

        For gradients of a term alone (`Term(..., loss=0.0)`): its targets are blank. They count as
        gradients of the clients. `step` numbers the mini-batches of a `purpose`.
        """
        count = first(inputs).shape[1]

        def blank(t: Tensor) -> Tensor:
            return t.new_zeros(self.rows, count, *t.shape[1:])

        weights = self._batches.share_of(count)
        noise = (self.keys(f"{purpose} noise"), step + 1)
        targets = map_tree(blank, self._batches.targets)
        statistics = self.statistics or None
        return Batch(
            inputs, targets, weights, self.tally, None, noise, statistics=statistics, model=model
        )

    def training_samples(self) -> Batch:
        """All training samples of every row, filled up to the longest."""
        self._refuse("all training samples at once")
        return self._batches.all()

    def of_training_samples(self, compute: Callable[[Tensor, Batch], State]) -> State:
        """Rows computed from all training samples, clients of like size together.

        `compute(rows, batch)` is given the positions of some rows and their samples, and returns a
        tensor for each name with a line for each of them. Clients without samples have zeros, and
        lines of unlike lengths are filled up with zeros.
        """
        self._refuse("all training samples at once")
        groups = [(rows, compute(rows, batch)) for rows, batch in self._batches.groups()]
        if not groups:  # nobody here has samples: zeros in the form that they would have
            blank = compute(torch.arange(self.rows), self.training_samples())
            return {name: torch.zeros_like(t) for name, t in blank.items()}
        out: State = {}
        for name, like in groups[0][1].items():
            shape = torch.tensor([group[name].shape[1:] for _, group in groups]).amax(0).tolist()
            out[name] = like.new_zeros(self.rows, *shape)
            for rows, group in groups:
                filled = like.new_zeros(len(rows), *shape)
                filled[tuple(map(slice, group[name].shape))] = group[name]
                out[name][rows.to(like.device)] = filled
        return out

    def _refuse(self, what: str) -> None:
        if self._gradients_only:
            raise SettingError(
                f"sample clipping: {what} cannot be used while it is on: a sample would act by "
                "another way than the clipped and accounted gradient"
            )

    @property
    def samples(self) -> Tensor:  # int64[K]
        """How many training samples each client has."""
        return torch.from_numpy(self._batches.sizes.copy())

    def restart(self) -> None:
        """Another stream of mini-batches for every row, once rows have taken unlike numbers.

        What a client draws next must not depend on how many the others drew.
        """
        self._restarts += 1
        purpose = f"{self._purpose} {self._restarts}"
        self._batches.restart(**self._streams(purpose))

    def _streams(self, purpose: str) -> dict[str, Keys]:
        """Of the draws of samples, of the model's own randomness, and of the augmentation."""
        keys = {"keys": self.keys(purpose), "noise_keys": self.keys(f"{purpose} noise")}
        if self._augments:
            keys["augment_keys"] = self.keys(f"{purpose} augment")
        return keys

    def complete(self, x: Tensor, model: str = "w") -> Tensor:  # x[K, d] -> [K, d + m]
        """Models with their running statistics; as they are where a model has none."""
        if not self.statistics:
            return x
        return torch.cat([x, self.statistics[model].expand(len(x), -1)], dim=-1)

    @property
    def tally(self) -> Tensor:  # int64[K]
        """Gradient evaluations so far."""
        return self._batches.tally

    def count(self, name: str, rows: Tensor | int) -> None:  # rows: [K], or the same for all
        """Add whole numbers to one of the method's `counted`, for each row."""
        if name not in self.counts:
            self.counts[name] = torch.zeros(self.rows, dtype=torch.int64)
        self.counts[name] += rows.cpu() if isinstance(rows, Tensor) else rows

    def steps(self, steps: int, epochs: int) -> Tensor:  # -> int64[K]
        """How many steps each row takes: `steps`, or those of `epochs` > 0 passes over its data."""
        if not epochs:
            return torch.full((self.rows,), steps)
        a_pass = np.maximum(self._batches.steps_per_pass(), 0)
        return torch.as_tensor(np.broadcast_to(epochs * a_pass, (self.rows,)).copy())

    def keys(self, purpose: str) -> Keys:  # -> uint64[K]
        """Streams of this round for a purpose, one per client."""
        return streams.keys(self._seed, purpose, self._turns, self._clients)

    def coins(self, purpose: str, count: int) -> np.ndarray:  # -> float64[count] in [0, 1)
        """Random numbers of this round that all clients and the server share: nothing is sent."""
        return streams.uniform(streams.keys(self._seed, purpose, self.round), count)[0]

    def validate(
        self, x: Personal, model: str = "w", loss: bool = False
    ) -> Tensor:  # x[K, d] -> float64[K]
        """The error of each row's model on that client's own validation data; 0 where it has none.

        For a regression, and with `loss`, the loss. `model` says which of the models that a client
        trains it is. Rows that `Method.predict` takes are validated as they are.
        """
        self._refuse("validation data")
        if self._validate is None:
            raise SettingError("data: this host offers no validation data")
        return self._validate(self.complete(x, model) if isinstance(x, Tensor) else x, loss)
