"""A federation: one tensor for the whole data set, clients as index ranges of it.

Rows are ordered by split, then by client, so that the training, validation and test data of all
clients are three slices and one client's part is a range: the client at position k trains on
`inputs[offsets["train"][k] : offsets["train"][k + 1]]`. Nothing is stored per client or per sample
in Python.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..core.knobs import SettingError, build, nearest
from ..core.text import plural, shown
from ..core.types import Sequences, Tree, first, leaves, length, map_tree
from .prepare import Preparation
from .read.arrays import from_arrays
from .read.datasets import read_datasets
from .read.ids import ClientId, plain_id, unknown_client
from .redraw import DataDraw, no_seed
from .splits import SPLITS, offsets_of
from .subgroups import Subgroups


@dataclass(frozen=True)
class Federation:
    """The data of N clients.

    Make one with `from_arrays`, `from_frame`, `from_datasets`, `from_folder` or
    `idiolect.data.load`. A client has an id, which the user gave it (a whole number or text), and a
    position from 0 to N - 1, its place in everything that has one entry per client.
    """

    inputs: Tree  # [n, ...] features (floating) or tokens (integers); a tensor, tuple or dict
    targets: Tree  # [n] or [n, ...]: class numbers (int64) or real values (floating)
    offsets: dict[str, Tensor]  # split -> int64[N + 1], positions in `inputs`
    ids: tuple[ClientId, ...]  # of N clients, in order of position
    classes: int  # number of classes; 0 for regression
    name: str = "arrays"
    class_names: tuple[Any, ...] = ()  # the user's label of each class; () = the numbers themselves
    preparation: Preparation | None = None  # how raw rows of a table become inputs
    sequences: Sequences | None = None  # which inputs are padded, and how long each sample is
    special: tuple[int, ...] = ()  # classes that are no words: padding, unknown, begin, end
    # int64[n]: samples of one number belong together (one patient), on one side of every split
    groups: Tensor | None = None
    # float64[n], > 0: how much each sample counts (how many people a row of a survey stands for)
    weights: Tensor | None = None
    weight_name: str = ""  # what the user calls them: the column of a table
    subgroups: tuple[Subgroups, ...] = ()  # what figures are given for, a label per sample
    # int64[n]: the place of each sample in time, equal for one moment; folds are cut by it
    times: Tensor | None = None
    # inputs [n, ...] without targets that the server and all clients have; None = there are none
    public: Tree | None = None
    published: bool = False  # whether they were taken from the clients' training data
    # what their seed draws, of data that `idiolect.data.load` made; a changed copy has none
    draw: DataDraw | None = field(default=None, init=False, compare=False, repr=False)

    def __str__(self) -> str:
        from .describe import describe

        return describe(self)

    def __repr__(self) -> str:
        name = shown(self.name, 40)
        size = f"{plural(self.clients, 'client')}, {plural(self.samples, 'sample')}"
        return f"Federation({name!r}, {size}; print() shows more)"

    @property
    def clients(self) -> int:
        """N, the number of clients."""
        return len(self.ids)

    @property
    def samples(self) -> int:
        """The number of samples of all clients and splits."""
        return length(self.targets)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample, where it is one tensor."""
        if not isinstance(self.inputs, Tensor):
            raise SettingError(
                "data: a sample must be one tensor for a built-in model, got several; "
                "give your own model"
            )
        return tuple(self.inputs.shape[1:])

    @property
    def names(self) -> tuple[str, ...]:
        """The ids as text: for tables, random streams and the fingerprint."""
        return tuple(str(i) for i in self.ids)

    def position(self, client_id: ClientId) -> int:
        """The position of a client by its id; the exact text of a whole number is accepted too.

        >>> f = Federation.from_arrays(np.eye(4), [0, 1, 0, 1], [7, 7, 13, 13], valid=0, test=0.5)
        >>> f.position(13), f.position("13")
        (1, 1)
        >>> f.position(12)
        Traceback (most recent call last):
            ...
        idiolect.core.knobs.SettingError: client: 12 is unknown; clients are numbered 7 to 13, \
the nearest is 13
        """
        key = plain_id(client_id)
        if key not in self._positions:
            raise unknown_client(key, self.ids)
        return self._positions[key]

    @cached_property
    def _positions(self) -> dict[ClientId, int]:
        by_text: dict[ClientId, int] = {name: k for k, name in enumerate(self.names)}
        return by_text | {i: k for k, i in enumerate(self.ids)}

    def sizes(self, split: str) -> Tensor:  # -> int64[N]
        """Samples per client."""
        return self.offsets[split].diff()

    def groups_of(self, split: str) -> Tensor:  # -> int64[samples of the split]
        """Which samples of a split belong together, in the order of `inputs`: a number for each.

        Those of one number are of one patient, say, and no independent evidence. Without groups
        every sample is its own.

        >>> f = Federation.from_arrays(
        ...     np.eye(4), [0, 1, 0, 1], list("aaaa"), group=["p", "q", "p", "q"], valid=0, test=0.5
        ... )
        >>> f.groups_of("train").tolist(), f.groups_of("test").tolist()
        ([0, 0], [1, 1])
        """
        if split not in SPLITS:
            raise nearest(split, SPLITS, "split")
        low, high = int(self.offsets[split][0]), int(self.offsets[split][-1])
        return torch.arange(low, high) if self.groups is None else self.groups[low:high]

    def group_counts(self, split: str) -> Tensor:  # -> int64[N]
        """How many groups each client has in a split: samples, where there are no groups."""
        if self.groups is None:
            return self.sizes(split)
        owner = torch.arange(self.clients).repeat_interleave(self.sizes(split))
        pairs = torch.stack([owner, self.groups_of(split)]).unique(dim=1)[0]
        return torch.bincount(pairs, minlength=self.clients)

    def weights_of(self, split: str) -> Tensor:  # -> float64[samples of the split]
        """How much each sample of a split counts, in the order of `inputs`; 1 without weights.

        >>> f = Federation.from_arrays(
        ...     np.eye(4), [0, 1, 0, 1], list("aabb"), weight=[1, 3, 5, 5], valid=0, test=0
        ... )
        >>> f.weights_of("train").tolist(), f.weight_totals("train").tolist()
        ([1.0, 3.0, 5.0, 5.0], [4.0, 10.0])
        """
        if split not in SPLITS:
            raise nearest(split, SPLITS, "split")
        low, high = int(self.offsets[split][0]), int(self.offsets[split][-1])
        if self.weights is None:
            return torch.ones(high - low, dtype=torch.float64)
        return self.weights[low:high]

    def weight_totals(self, split: str) -> Tensor:  # -> float64[N]
        """What the samples of each client weigh together: their number, without weights."""
        if self.weights is None:
            return self.sizes(split).double()
        return self._sums(self.weights_of(split), split)

    def effective_sizes(self, split: str) -> Tensor:  # -> float64[N]
        """As how many samples of one weight each client's say: (sum w)^2 / sum w^2 (Kish 1965).

        >>> f = Federation.from_arrays(
        ...     np.eye(4), [0, 1, 0, 1], list("aabb"), weight=[1, 3, 5, 5], valid=0, test=0
        ... )
        >>> f.effective_sizes("train").tolist()
        [1.6, 2.0]
        """
        if self.weights is None:
            return self.sizes(split).double()
        squares = self._sums(self.weights_of(split).square(), split)
        return self.weight_totals(split).square() / torch.where(squares > 0, squares, 1)

    def _sums(self, values: Tensor, split: str) -> Tensor:  # [samples of the split] -> [N]
        owner = torch.arange(self.clients).repeat_interleave(self.sizes(split))
        return torch.zeros(self.clients, dtype=torch.float64).index_add_(0, owner, values)

    @cached_property
    def training_shares(self) -> Tensor | None:  # -> float64[n]
        """The weight of each training sample over the mean of its client's; None without weights.

        Samples of other splits have 1.
        """
        if self.weights is None:
            return None
        shares = torch.ones(self.samples, dtype=torch.float64)
        low, high = int(self.offsets["train"][0]), int(self.offsets["train"][-1])
        sizes = self.sizes("train")
        mean = (self.weight_totals("train") / sizes.clamp(min=1)).repeat_interleave(sizes)
        shares[low:high] = self.weights_of("train") / mean
        device = first(self.inputs).device
        return shares.to(device, torch.float32 if device.type == "mps" else torch.float64)

    def part(self, position: int, split: str) -> tuple[Tree, Tree]:
        """The data of the client at a position: (inputs, targets)."""
        if not 0 <= position < self.clients:
            raise self._no_position("position", position)
        low = int(self.offsets[split][position])
        high = int(self.offsets[split][position + 1])
        return (
            map_tree(lambda t: t[low:high], self.inputs),
            map_tree(lambda t: t[low:high], self.targets),
        )

    def of(self, positions: Sequence[int] | np.ndarray | Tensor) -> Federation:
        """The data of the clients at some positions, in that order.

        All positions in order give this federation itself; otherwise the samples are copied.

        >>> f = Federation.from_arrays(np.eye(4), [0, 1, 0, 1], ["a", "b", "c", "d"])
        >>> f.of([3, 1]).ids, f.of([3, 1]).targets.tolist()
        (('d', 'b'), [1, 1])
        """
        index = self._check_positions(positions)
        if index.tolist() == list(range(self.clients)):
            return self
        rows, sizes = {}, {}
        for split in SPLITS:
            lows = self.offsets[split][:-1][index]
            sizes[split] = self.sizes(split)[index]
            ends = sizes[split].cumsum(0)
            # sample j of the split is sample j - (ends - sizes)[k] of its client k
            shift = lows - (ends - sizes[split])
            rows[split] = torch.arange(int(ends[-1])) + shift.repeat_interleave(sizes[split])
        ids = tuple(self.ids[k] for k in index.tolist())
        return self._select(rows, sizes, ids)

    def without(self, split: str) -> Federation:
        """The same clients without their samples of one split, such as "test".

        Test samples are the last rows, so that leaving them out copies nothing.

        >>> f = Federation.from_arrays(np.eye(4), [0, 1, 0, 1], list("aabb"), valid=0, test=0.5)
        >>> f.without("test").samples, f.without("test").sizes("test").tolist()
        (2, [0, 0])
        """
        if split not in SPLITS:
            raise nearest(split, SPLITS, "split")
        rows = {s: torch.arange(int(self.offsets[s][0]), int(self.offsets[s][-1])) for s in SPLITS}
        sizes = {s: self.sizes(s) for s in SPLITS}
        rest = self._select(
            rows | {split: rows[split][:0]}, sizes | {split: torch.zeros_like(sizes[split])}
        )
        if self.draw is None:
            return rest
        return rest.with_draw(self.draw.then(lambda federation: federation.without(split)))

    def with_draw(self, draw: DataDraw) -> Self:
        """The same data, with what is known of their seed."""
        copy = replace(self)
        object.__setattr__(copy, "draw", draw)  # not a parameter: changed copies must not have it
        return copy

    def redrawn(self, seed: int) -> Federation:
        """The same data set under another seed of its own: another partition, or another split.

        For data of `idiolect.data.load`, by a name or a function with an option `seed`, as they
        were loaded, or with fewer samples (`capped`): a copy that was changed otherwise cannot be
        drawn again.

        >>> from . import load
        >>> one = load("digits", clients=5, seed=0)
        >>> one.redrawn(1).fingerprint() == load("digits", clients=5, seed=1).fingerprint()
        True
        """
        if self.draw is None:
            raise no_seed(self.name)
        return self if seed == self.draw.seed else self.draw.under(seed)

    def capped(self, most: Mapping[str, int], seed: int = 0) -> Federation:
        """At most `most[split]` samples of each client in the splits named, drawn at random.

        Samples stay in their split and in their order; another seed draws others. A client that
        has fewer keeps what it has. Drawn again (`redrawn`), the data are capped alike.

        >>> from . import load
        >>> few = load("synthetic", clients=3).capped({"train": 10, "valid": 2})
        >>> few.sizes("train").tolist(), few.sizes("valid").tolist()
        ([10, 10, 10], [2, 2, 2])
        """
        for split, count in most.items():
            if split not in SPLITS or count < 1:
                raise SettingError(
                    f"most must give a number >= 1 for {', '.join(SPLITS)}, got {split!r}: {count}"
                )
        generator = torch.Generator().manual_seed(seed)
        rows, sizes = {}, {}
        for split in SPLITS:
            offsets = self.offsets[split]
            low, count = int(offsets[0]), int(offsets[-1] - offsets[0])
            rows[split], sizes[split] = torch.arange(low, low + count), self.sizes(split)
            if split not in most:
                continue
            client = torch.repeat_interleave(torch.arange(self.clients), sizes[split])
            # by client, and within a client at random: the first `most` of each are drawn
            order = torch.randperm(count, generator=generator)
            order = order[client[order].argsort(stable=True)]
            within = torch.arange(count) - (offsets[:-1] - low)[client]
            rows[split] = low + order[within < most[split]].sort().values
            sizes[split] = sizes[split].clamp(max=most[split])
        few = self._select(rows, sizes)
        if self.draw is None:
            return few
        return few.with_draw(self.draw.then(lambda federation: federation.capped(most, seed)))

    @property
    def public_samples(self) -> int:
        """How many public inputs there are."""
        return 0 if self.public is None else length(self.public)

    def with_public(self, inputs: Any) -> Federation:
        """The same data, with inputs [n, ...] that the server and all clients have.

        In the form of the clients' own inputs; for methods that exchange what models say of them
        (`fedmd`). They are part of the run: others make another run.

        >>> f = Federation.from_arrays(np.eye(4), [0, 1, 0, 1], list("aabb"))
        >>> f.with_public(np.ones((3, 4))).public_samples
        3
        """
        tensors = [torch.as_tensor(t) for t in pytree.tree_leaves(inputs)]
        forms = [(tuple(t.shape[1:]), t.is_floating_point()) for t in tensors]
        wanted = [(tuple(t.shape[1:]), t.is_floating_point()) for t in leaves(self.inputs)]
        counts = {len(t) if t.dim() else 0 for t in tensors}
        if forms != wanted or len(counts) != 1 or not min(counts):
            raise SettingError(
                "public must be one or more inputs in the form of the clients', "
                f"{[shape for shape, _ in wanted]}, got {[tuple(t.shape) for t in tensors]}"
            )
        if not all(bool(t.isfinite().all()) for t in tensors):
            raise SettingError("public must be finite numbers, got NaN or infinity")
        places = iter(tensors)
        public = map_tree(lambda t: next(places).to(t.dtype), self.inputs)
        return replace(self, public=public, published=False)

    def publish(self, count: int, seed: int = 0) -> Federation:
        """The same data, with `count` training samples of the clients as public inputs.

        They are drawn at random and taken out of the clients' data, so that nothing counts twice;
        every client keeps a sample. Their targets are dropped. What is published is no longer
        private: the server and all clients have it.

        >>> from . import load
        >>> f = load("synthetic", clients=3, samples=60).publish(20)
        >>> f.public_samples, int(f.sizes("train").sum())
        (20, 94)
        """
        trained = self.sizes("train")
        most = int((trained - 1).clamp(min=0).sum())
        if self.public is not None:
            raise SettingError("public: these data have public inputs already")
        if self.sequences is not None:
            raise SettingError("public must be left out for padded sequences, which have lengths")
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= most:
            raise SettingError(
                f"public must be a whole number from 1 to {most:,}, all training samples but one "
                f"of each client, got {count!r}"
            )
        offsets = self.offsets["train"]
        low, total = int(offsets[0]), int(offsets[-1] - offsets[0])
        order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
        client = torch.repeat_interleave(torch.arange(self.clients), trained)
        # the first of each client in this order stays; of the others the first `count` go
        by_client = order[client[order].argsort(stable=True)]
        stays = torch.zeros(total, dtype=torch.bool)
        stays[by_client[(offsets[:-1] - low)[trained > 0]]] = True
        published = order[~stays[order]][:count].sort().values
        keeps = torch.ones(total, dtype=torch.bool)
        keeps[published] = False
        rows, sizes = {}, {}
        for split in SPLITS:
            start, end = int(self.offsets[split][0]), int(self.offsets[split][-1])
            rows[split], sizes[split] = torch.arange(start, end), self.sizes(split)
        rows["train"] = rows["train"][keeps]
        sizes["train"] = torch.bincount(client[keeps], minlength=self.clients)
        public = map_tree(lambda t: t[low + published.to(t.device)].clone(), self.inputs)
        return replace(self._select(rows, sizes), public=public, published=True)

    def _select(
        self,
        rows: Mapping[str, Tensor],
        sizes: Mapping[str, Tensor],
        ids: tuple[ClientId, ...] | None = None,
    ) -> Federation:
        """The samples at some rows of each split, client by client, `sizes` of them each."""
        index = torch.cat([rows[split] for split in SPLITS])
        leading = torch.equal(index, torch.arange(len(index)))

        def take(t: Tensor) -> Tensor:
            return t[: len(index)] if leading else t[index.to(t.device)]

        return replace(
            self,
            inputs=map_tree(take, self.inputs),
            targets=map_tree(take, self.targets),
            sequences=self.sequences and self.sequences.of(index),
            groups=None if self.groups is None else take(self.groups),
            weights=None if self.weights is None else take(self.weights),
            subgroups=tuple(column.map(take) for column in self.subgroups),
            times=None if self.times is None else take(self.times),
            offsets=offsets_of(sizes),
            ids=self.ids if ids is None else ids,
        )

    def _check_positions(self, positions: Sequence[int] | np.ndarray | Tensor) -> Tensor:
        array = np.asarray(positions)
        if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
            raise SettingError("positions must be a list of one or more whole numbers")
        outside = array[(array < 0) | (array >= self.clients)]
        if len(outside):
            raise self._no_position("positions", outside[0])
        if len(np.unique(array)) < len(array):
            raise SettingError("positions must name each client once, got one of them twice")
        return torch.from_numpy(array.astype(np.int64))

    def _no_position(self, name: str, position: int) -> SettingError:
        return SettingError(
            f"{name} must be from 0 to {self.clients - 1}, got {position} "
            "(`position(client_id)` finds the position of a client)"
        )

    def to(self, device: str | torch.device, dtype: torch.dtype) -> Federation:
        """The same data on a device; floating inputs and targets in `dtype`, integers unchanged."""

        def move(t: Tensor) -> Tensor:
            return t.to(device=device, dtype=dtype if t.is_floating_point() else t.dtype)

        public = None if self.public is None else map_tree(move, self.public)
        moved = {"inputs": map_tree(move, self.inputs), "targets": map_tree(move, self.targets)}
        return replace(self, **moved, public=public)

    def fingerprint(self) -> str:
        """SHA-256 over data, ranges and names: what a resumed run checks.

        It takes a second for large data, and is cached until a tensor is changed in place.
        """
        tensors = (
            *leaves(self.inputs),
            *leaves(self.targets),
            *(self.offsets[s] for s in SPLITS),
            *(() if self.weights is None else (self.weights,)),
            *(() if self.public is None else leaves(self.public)),
        )
        if any(t.is_inference() for t in tensors):  # torch does not count their changes
            return self._hash(tensors)
        # a copy, here or in another process, counts its changes from 0
        state = (os.getpid(), id(self), *(t._version for t in tensors))
        cached = self.__dict__.get("_fingerprint")
        if cached is None or cached[0] != state:
            cached = self.__dict__["_fingerprint"] = (state, self._hash(tensors))
        return cached[1]

    def _hash(self, tensors: Iterable[Tensor]) -> str:
        digest = hashlib.sha256()
        for t in tensors:
            digest.update(f"{t.dtype}{tuple(t.shape)}".encode())
            if t.numel():
                digest.update(t.detach().cpu().contiguous().view(torch.uint8).numpy().data)
        digest.update("\0".join(self.names).encode())
        return digest.hexdigest()

    def class_counts(self, split: str = "train") -> Tensor:  # -> int64[N, classes]
        """Who has what: samples per client and class."""
        cell, _ = self._class_cells(split)
        counts = torch.bincount(cell, minlength=self.clients * self.classes)
        return counts.view(self.clients, self.classes)

    def class_totals(self, split: str = "train") -> Tensor:  # -> float64[N, classes]
        """What the samples of each client and class weigh together; their number without weights.

        >>> f = Federation.from_arrays(
        ...     np.eye(3), [0, 1, 1], list("aaa"), weight=[1, 2, 4], valid=0, test=0
        ... )
        >>> f.class_totals().tolist()
        [[1.0, 6.0]]
        """
        cell, sample = self._class_cells(split)
        totals = torch.bincount(
            cell, self.weights_of(split)[sample], minlength=self.clients * self.classes
        )
        return totals.view(self.clients, self.classes)

    def _class_cells(self, split: str) -> tuple[Tensor, Tensor]:
        """client * classes + class of every target that counts, and its sample: int64[m] each."""
        if not self.classes:
            raise SettingError(f"class counts need classes, got the regression data {self.name!r}")
        offsets = self.offsets[split]
        labels = self.targets[int(offsets[0]) : int(offsets[-1])]
        labels = labels.flatten(1) if labels.dim() > 1 else labels.unsqueeze(1)
        client = torch.repeat_interleave(torch.arange(self.clients), self.sizes(split))
        cell = client.unsqueeze(1).expand_as(labels) * self.classes + labels.cpu()
        sample = torch.arange(len(labels)).unsqueeze(1).expand_as(labels)
        counts = labels.cpu() >= 0  # targets of -100 do not
        return cell[counts], sample[counts]

    def majority_hits(self, split: str = "test") -> Tensor:  # -> float64[N]
        """Samples that each client gets right by always answering its majority class.

        That is the most frequent class of its training samples. By what samples weigh, both.
        """
        majority = self.class_totals("train").argmax(1, keepdim=True)
        return self.class_totals(split).gather(1, majority).squeeze(1)

    from_arrays = classmethod(from_arrays)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        client: str | int,
        target: str | int,
        name: str = "table",
        preparation: Preparation | None = None,
        class_names: Sequence[Any] | None = None,
        **options: Any,
    ) -> Federation:
        """From a data frame of pandas or polars, or a pyarrow table: one row per sample.

        `client`, `target` and `split` name columns. All others are features, or those named in
        `features`; `drop` leaves some out. Identifiers, row numbers and constant columns that are
        not named in `features` are dropped. What is assumed is said in a line on stderr.

        - `kind` says what the target is: "classes", "values" (a regression) or "auto", by what it
          holds. Classes are numbered in sorted order; `class_names` has the labels.
        - `missing`: "refuse", "drop" (the sample), "mean", "median", "zero", or one of these with
          "+flag", a feature that says whether the value is missing.
        - `scale`: numbers are scaled by mean and variance of the training rows of all clients
          ("federated": by sums that clients send, counted in bytes), of each "client", or "none".
        - Text, booleans and categories become a feature of 0 or 1 per category, `max_categories`
          of a column at most. `dates`: "refuse", "drop" or "days" (since 1970-01-01).
        - `group` names a column whose values (patients) stay on one side of every split; `time` a
          column by which each client's last rows test; `weight` a column of how much each row
          counts, in training and in figures. None of them is a feature.
        - `subgroup` names columns (sex, region) of at most 20 values: a run gives its figures for
          each value. They stay features unless `drop` names them.
        - `valid`, `test`, `seed`: as in `from_arrays`.
        - `preparation` and `class_names` of another federation read new data as those were read.

        >>> import pandas as pd
        >>> frame = pd.DataFrame({"site": ["x", "x", "y"], "age": [40, 50, 60]})
        >>> frame["ill"] = ["no", "yes", "no"]
        >>> f = Federation.from_frame(frame, client="site", target="ill", valid=0, test=0)
        >>> f.ids, f.class_names, f.targets.tolist()
        (('x', 'y'), ('no', 'yes'), [0, 1, 0])
        >>> f.preparation.apply(pd.DataFrame({"age": [50]})).tolist()
        [[0.0]]
        """
        from .read.tables import TableOptions, read_table

        columns = {"client": client, "target": target}
        columns |= {role: options.pop(role, None) for role in ("split", "group", "time", "weight")}
        options |= {role: "" if column is None else str(column) for role, column in columns.items()}
        labels = None if class_names is None else tuple(class_names)
        settings = build(TableOptions, options, "from_frame")
        return read_table(frame, settings, name, preparation, labels)

    @classmethod
    def from_datasets(
        cls,
        datasets: Iterable[Any] | dict[Any, Any],
        *,
        inputs: str | Sequence[str] | None = None,
        target: str | None = None,
        sample: Callable[[Any], tuple[Any, Any]] | None = None,
        **options: Any,
    ) -> Federation:
        """From one data set per client, in a dict (its keys are the client ids) or in a list.

        A data set is a torch `Dataset` or any list of samples, a Hugging Face `Dataset`, or a pair
        of arrays (inputs, targets). Its samples are pairs (input, target) or dicts, of tensors,
        arrays, numbers, text labels or PIL images. Each client may have its own division:
        {"train": ..., "valid": ..., "test": ...}, (train, test) or (train, valid, test); what is
        missing is drawn from the training samples. A partitioner of flwr-datasets stands for the
        list of its partitions.

        - `inputs`, `target`: the keys (columns) of samples that are dicts. Without them the target
          is guessed (label, labels, target, targets or y), and everything else is input.
        - `sample`: a function from any other sample to (input, target).
        - the other options are those of `from_arrays`.

        The clients of a list are called by the texts "00000", "00001", ... (as text, they sort like
        numbers).

        >>> pairs = [(torch.ones(2), "cat"), (torch.zeros(2), "dog")]
        >>> f = Federation.from_datasets({"Aachen": pairs, "Bonn": pairs}, valid=0, test=0)
        >>> f.ids, f.class_names, f.targets.tolist()
        (('Aachen', 'Bonn'), ('cat', 'dog'), [0, 1, 0, 1])
        """
        return cls.from_arrays(**read_datasets(datasets, inputs, target, sample, options))

    @classmethod
    def from_texts(
        cls,
        texts: Any,
        tokenizer: Callable[..., Any],
        *,
        length: int = 128,
        end: int | None = None,
        vocabulary: int = 0,
        user: str = "user",
        text: str = "text",
        prompt: str = "prompt",
        response: str = "response",
        **options: Any,
    ) -> Federation:
        """From what users wrote, for a language model: predict the next token.

        `texts` are rows (dicts, a data set of Hugging Face), a file of JSON lines, a folder of
        USER.txt or USER/*.txt, or a dict of texts by user. A row has `user` and `text`, or `user`,
        `prompt` and `response`: the keys are called so unless named. `tokenizer` is any function
        from a text to token numbers, such as a tokenizer of transformers.

        - Texts of a user are one stream, cut into windows of `length` tokens; a prompt with its
          response is one sample of at most `length`, whose prompt is not predicted (-100).
        - `end`: the token after every text; a tokenizer's own (`eos_token_id`) where it has one.
        - `vocabulary`: how many tokens there are; else what the tokenizer says, or the largest.
        - the other options are those of `from_arrays`. Without `split`, `group` or `time` the last
          texts of each user test.

        >>> f = Federation.from_texts({"Ann": "to be", "Bob": ["or", "not"]}, str.encode, length=4)
        >>> f.ids, f.inputs["input_ids"].shape, bytes(f.targets[0].tolist())
        (('Ann', 'Bob'), torch.Size([2, 4]), b'o be')
        """
        from .read.language import TextColumns, read_texts

        columns = TextColumns(user, text, prompt, response)
        return cls.from_arrays(
            **read_texts(texts, tokenizer, columns, length, end, vocabulary, options)
        )

    @classmethod
    def from_folder(cls, path: str | Path, **options: Any) -> Federation:
        """From a folder of pictures: `client/class/file`, or `class/file` dealt to clients.

        `layout` names the levels of folders, of client, split and class; "auto" goes by their
        number. Without a level of clients, the pictures are dealt to `clients` clients by
        `partition` ("iid", "classes", "dirichlet" or "quantity"; its options, such as `alpha`, are
        accepted as well, and so are `valid`, `test` and `seed`). All pictures must have one size,
        or `size` resizes them to size x size pixels. `colour` is "grey", "rgb" or "auto": grey if
        all are. Class names are kept.
        """
        from .read.folders import Folder

        return build(Folder, {"path": str(path), **options}, "from_folder").load()


@dataclass(frozen=True)
class Census(Federation):
    """Who takes part and what a sample looks like: a federation of blank samples without memory.

    It is enough to build a server, a model and a run; training on it teaches nothing.

    >>> sizes = {"train": [3, 2], "valid": [0, 0], "test": [1, 1]}
    >>> census = Census.of_sizes(["north", "south"], sizes, classes=2, shape=(4,))
    >>> census.sizes("train").tolist(), census.shape, census.samples
    ([3, 2], (4,), 7)
    """

    @classmethod
    def of_sizes(
        cls,
        ids: Sequence[ClientId],
        sizes: Mapping[str, Sequence[int] | Tensor],  # split -> samples of each client
        classes: int,
        shape: tuple[int, ...] = (0,),  # of one sample
        dtype: torch.dtype = torch.float32,
        name: str = "census",
    ) -> Census:
        """Of these clients."""
        offsets = offsets_of({s: torch.as_tensor(sizes[s], dtype=torch.int64) for s in SPLITS})
        total = int(offsets[SPLITS[-1]][-1])
        inputs = torch.zeros((), dtype=dtype).expand(total, *shape)
        kind = torch.int64 if classes else torch.float32
        targets = torch.zeros((), dtype=kind).expand(total)
        return cls(inputs, targets, offsets, tuple(ids), classes, name)

    @classmethod
    def of_data(cls, data: Federation, **more: Any) -> Self:
        """Of the clients of these data, which are not kept; `more` are fields of a subclass."""
        return cls(
            map_tree(lambda t: blank(t, len(t)), data.inputs),
            map_tree(lambda t: blank(t, len(t)), data.targets),
            data.offsets,
            data.ids,
            data.classes,
            data.name,
            data.class_names,
            data.preparation,
            special=data.special,
            weights=data.weights,  # eight bytes per sample; a run's own process sums them
            weight_name=data.weight_name,
            subgroups=tuple(column.map(lambda t: blank(t, len(t))) for column in data.subgroups),
            public=data.public,  # the server has them too
            published=data.published,
            **more,
        )

    def _select(
        self,
        rows: Mapping[str, Tensor],
        sizes: Mapping[str, Tensor],
        ids: tuple[ClientId, ...] | None = None,
    ) -> Self:
        index = torch.cat([rows[split] for split in SPLITS])
        total = len(index)
        return replace(
            self,
            weights=None if self.weights is None else self.weights[index],
            inputs=map_tree(lambda t: blank(t, total), self.inputs),
            targets=map_tree(lambda t: blank(t, total), self.targets),
            subgroups=tuple(column.map(lambda t: blank(t, total)) for column in self.subgroups),
            offsets=offsets_of(sizes),
            ids=self.ids if ids is None else ids,
        )

    def to(self, device: str | torch.device, dtype: torch.dtype) -> Self:
        def move(t: Tensor) -> Tensor:
            kind = dtype if t.is_floating_point() else t.dtype
            return torch.zeros((), dtype=kind, device=device).expand(t.shape)

        return replace(
            self, inputs=map_tree(move, self.inputs), targets=map_tree(move, self.targets)
        )

    def fingerprint(self) -> str:
        """SHA-256 over names, numbers of samples and the form of one."""
        forms = "".join(f"{t.dtype}{tuple(t.shape[1:])}" for t in leaves(self.inputs))
        digest = hashlib.sha256(f"{forms}{self.classes}".encode())
        for split in SPLITS:
            digest.update(self.offsets[split].numpy().tobytes())
        digest.update("\0".join(self.names).encode())
        return digest.hexdigest()


def blank(t: Tensor, samples: int) -> Tensor:
    """`samples` zeros of the form of these samples, which take no memory."""
    return torch.zeros((), dtype=t.dtype, device=t.device).expand(samples, *t.shape[1:])
