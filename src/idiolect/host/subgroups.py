"""What a host counts of subgroups of samples: sums, from which figures and intervals are made.

No sample leaves a host. For accuracy and loss it gives, for each client and subgroup, sums and sums
of products over units of independent evidence: samples, or groups of them such as patients. For
metrics it gives what it gives for clients (see metrics/metric.py), of all samples of a subgroup and
of each of BLOCKS random blocks of units, so that a figure can be made without each of them in turn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core import streams
from ..core.types import State, Tree, map_tree, prefixed, under
from ..data.federation import Federation
from ..data.subgroups import Subgroups
from ..task.task import Task
from .evaluation import EachSample, SamplePlaces
from .metrics import Metric, Tally, TargetForm, form_of
from .metrics.custom import Own

BLOCKS = 20
MOST_NUMBERS = 1 << 25  # that the blocks of a column may take; beyond, metrics have no interval
MOMENTS = 9  # per figure, client and subgroup: see `_moments`
FIGURES = ("accuracy", "loss")
SUMS = ("samples", "units", "alone", "moments")  # of clients: fields of ColumnCounts


@dataclass(frozen=True)
class ColumnCounts:
    """What was counted of one column, for n clients. Place S stands for all its S subgroups."""

    samples: Tensor  # int64[n, S + 1]
    units: Tensor  # int64[n, S + 1]: units with a sample in the subgroup
    alone: Tensor  # int64[n, S + 1]: units with all their samples in it
    moments: Tensor  # float64[n, figures, S + 1, MOMENTS]
    rows: State  # metric -> float64[S, 1 or 1 + BLOCKS, n, width]: of all samples, of each block
    counts: State  # metric -> int64[S, 1 or 1 + BLOCKS, ...]; float64 where samples have weights

    def tensors(self) -> State:
        """All of them, by name: for the wire."""
        plain = {name: getattr(self, name) for name in SUMS}
        return plain | prefixed(self.rows, "rows.") | prefixed(self.counts, "counts.")

    @classmethod
    def of_tensors(cls, tensors: State, metrics: Sequence[Metric]) -> ColumnCounts:
        """The inverse, of unknown origin: ValueError for what no host counts."""
        names = [m.name for m in metrics]
        rows, counts = under(tensors, "rows."), under(tensors, "counts.")
        plain = {name: t for name, t in tensors.items() if name in SUMS}
        if sorted(plain) != sorted(SUMS) or {*rows} != {*names} or {*counts} != {*names}:
            raise ValueError("subgroups: some figures are missing, or others came")
        return cls(**plain, rows=rows, counts=counts)


@dataclass(frozen=True)
class SubgroupScores:
    """What was counted of every column of subgroups, on test data. Those of several hosts merge."""

    wire_ids: Tensor  # int64[n], increasing
    columns: dict[str, ColumnCounts]

    @staticmethod
    def merge(parts: Sequence[SubgroupScores]) -> SubgroupScores:
        """The scores of several hosts as one."""
        if len(parts) == 1:
            return parts[0]
        wire_ids = torch.cat([part.wire_ids for part in parts])
        order = wire_ids.argsort()
        columns = {}
        for name in parts[0].columns:
            each = [part.columns[name] for part in parts]
            tensors = {key: torch.cat([getattr(one, key) for one in each])[order] for key in SUMS}
            rows = {
                m: torch.cat([one.rows[m] for one in each], 2)[:, :, order] for m in each[0].rows
            }
            counts = {m: sum_of([one.counts[m] for one in each]) for m in each[0].counts}
            columns[name] = ColumnCounts(**tensors, rows=rows, counts=counts)
        return SubgroupScores(wire_ids[order], columns)


def sum_of(parts: Sequence[Tensor]) -> Tensor:
    """Counts of several hosts, added up."""
    return torch.stack(list(parts)).sum(0)


class SubgroupTally:
    """Counts outputs by subgroup, as an `Evaluator` comes by them."""

    def __init__(
        self,
        task: Task,
        data: Federation,
        metrics: Sequence[Metric],
        wanted: Tensor,  # rows of the clients that are asked for
    ):
        split = "test"
        self.data = data
        self.wanted = wanted
        self.each = EachSample(task, data, split)
        self.places = SamplePlaces(data, split)
        low, high = int(data.offsets[split][0]), int(data.offsets[split][-1])
        self.columns = [column.map(lambda t: t[low:high].cpu()) for column in data.subgroups]
        self.owner = torch.arange(data.clients).repeat_interleave(data.sizes(split))
        self.unit, self.unit_owner = _units(data, split, self.owner)
        form = form_of(data, task.criterion)
        lenient = [m.lenient() if isinstance(m, Own) else m for m in metrics]
        block = _blocks(data, self.owner, self.unit) if metrics else torch.zeros(0)
        self.tallies = [
            _ColumnTally(column, lenient, form, data.clients, wanted, block)
            for column in self.columns
            if metrics
        ]

    def add(
        self, owner: Tensor, outputs: Tree, targets: Tree, weights: Tensor | None = None
    ) -> None:
        """The next samples of the split, in their order."""
        self.each.add(owner, outputs, targets, weights)
        at = self.places.following(len(owner))
        for column in self.tallies:
            column.add(at, owner, outputs, targets, weights)

    def add_padded(
        self,
        rows: Tensor,
        outputs: Tree,
        targets: Tree,
        exists: Tensor,
        weights: Tensor | None = None,
    ) -> None:
        """All samples of the clients at these rows: [K, longest, ...], of which some exist."""
        self.each.add_padded(rows, outputs, targets, exists, weights)
        at = self.places.padded(rows, exists.shape[1])
        for column in self.tallies:
            column.add_padded(at, rows, outputs, targets, exists, weights)

    def scores(self, wire_ids: Tensor) -> SubgroupScores:
        """What was counted of the clients that are asked for, whose wire ids these are."""
        columns = {}
        for at, column in enumerate(self.columns):
            rows, counts = self.tallies[at].measured(self.wanted) if self.tallies else ({}, {})
            sums = self._sums(column)
            of_clients = {name: torch.from_numpy(a)[self.wanted] for name, a in sums.items()}
            columns[column.name] = ColumnCounts(**of_clients, rows=rows, counts=counts)
        return SubgroupScores(wire_ids, columns)

    def _sums(self, column: Subgroups) -> dict[str, np.ndarray]:
        """Samples, units and moments of every client, in each subgroup and in all of them."""
        places = len(column.labels) + 1
        unit, codes = self.unit, column.codes.numpy()
        cell, of_sample = np.unique(unit * places + codes, return_inverse=True)
        cell_unit, code = cell // places, cell % places
        everything = np.arange(len(self.unit_owner))  # a unit as a whole is in place S
        size = np.bincount(unit, minlength=len(everything))
        in_cell = np.bincount(of_sample, minlength=len(cell))
        units = np.concatenate([cell_unit, everything])
        at = self.unit_owner[units] * places
        at += np.concatenate([code, np.full(len(everything), places - 1)])
        shape = (self.data.clients, places)

        def summed(values: np.ndarray | None) -> np.ndarray:
            return np.bincount(at, values, minlength=math.prod(shape)).reshape(shape)

        weighed = zip(FIGURES, self.each.weighed(), strict=True)
        figures = [pair for name, pair in weighed if self.data.classes or name == "loss"]
        moments = []
        for values, weights in figures:
            u = (weights * self.each.weights).numpy()
            t = np.where(u > 0, u * values.numpy(), 0.0)
            whole = [np.bincount(unit, x, minlength=len(everything)) for x in (t, u)]
            parts = [np.bincount(of_sample, x, minlength=len(cell)) for x in (t, u)]
            products = _products(
                np.concatenate([parts[0], whole[0]]),
                np.concatenate([parts[1], whole[1]]),
                whole[0][units],
                whole[1][units],
            )
            moments.append(np.stack([summed(x) for x in products], -1))
        sizes = np.concatenate([in_cell, size])
        return {
            "samples": summed(sizes).astype(np.int64),
            "units": summed(None),
            "alone": summed(sizes == size[units]).astype(np.int64),
            "moments": np.stack(moments, 1),
        }


def _products(
    t: np.ndarray, u: np.ndarray, unit_t: np.ndarray, unit_u: np.ndarray
) -> list[np.ndarray]:
    """The MOMENTS of units: weighed values and weights, in a subgroup and in the unit as a whole.

    Sums over units of T, U, T², TU, U², and of T and U times those of the whole unit.
    """
    own = [t, u, t * t, t * u, u * u]
    return [*own, t * unit_t, t * unit_u, u * unit_t, u * unit_u]


class _ColumnTally:
    """Metrics of every subgroup of a column: of all its samples, and of each block of them."""

    def __init__(
        self,
        column: Subgroups,
        metrics: Sequence[Metric],
        form: TargetForm,
        clients: int,
        wanted: Tensor,
        block: Tensor,
    ):
        self.codes = column.codes
        self.block = block
        self.metrics = metrics
        # "pooled" is of samples: it can be made of any of them
        of_samples = [m for m in metrics if m.over == "samples"]
        numbers = sum(math.prod(m.shape(form)) + clients * m.width(form) for m in of_samples)
        in_blocks = BLOCKS * len(column.labels) * numbers <= MOST_NUMBERS
        blocks = BLOCKS if of_samples and in_blocks else 0
        self.tallies = [
            [
                Tally(metrics if place == 0 else of_samples, form, clients, wanted)
                for place in range(1 + blocks)
            ]
            for _ in column.labels
        ]

    def add(
        self, at: Tensor, owner: Tensor, outputs: Tree, targets: Tree, weights: Tensor | None
    ) -> None:
        for tally, mask in self._masks(at):
            place = mask.nonzero().squeeze(1)
            if not len(place):
                continue
            those_outputs, those_targets = (
                map_tree(lambda t, place=place: t[place.to(t.device)], tree)
                for tree in (outputs, targets)
            )
            those_weights = None if weights is None else weights[place]
            tally.add(owner[place], those_outputs, those_targets, those_weights)

    def add_padded(
        self,
        at: Tensor,
        rows: Tensor,
        outputs: Tree,
        targets: Tree,
        exists: Tensor,
        weights: Tensor | None,
    ) -> None:
        for tally, mask in self._masks(at.clamp(max=len(self.codes) - 1)):
            if bool((mask & exists).any()):
                tally.add_padded(rows, outputs, targets, mask & exists, weights)

    def _masks(self, at: Tensor) -> list[tuple[Tally, Tensor]]:
        """Every tally, and which of the samples at these places it counts."""
        codes, block = self.codes[at], self.block[at]
        return [
            (tally, (codes == code) & (block == place - 1) if place else codes == code)
            for code, places in enumerate(self.tallies)
            for place, tally in enumerate(places)
        ]

    def measured(self, wanted: Tensor) -> tuple[State, State]:
        """Rows and counts of every metric, as `ColumnCounts` has them."""
        measured = [[tally.measured(wanted) for tally in places] for places in self.tallies]
        rows, counts = {}, {}
        for metric in self.metrics:
            name = metric.name
            by_code = [[m[name] for m in places if name in m] for places in measured]
            rows[name] = torch.stack([torch.stack([m.rows for m in p]) for p in by_code])
            counts[name] = torch.stack([torch.stack([m.counts for m in p]) for p in by_code])
        return rows, counts


def _units(data: Federation, split: str, owner: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The unit of each sample of a split, and the client of each unit.

    A unit is a sample, or the samples of one group at one client.
    """
    if data.groups is None:
        return np.arange(len(owner)), owner.numpy()
    pairs = np.stack([owner.numpy(), data.groups_of(split).cpu().numpy()])
    units, of_sample = np.unique(pairs, axis=1, return_inverse=True)
    return of_sample.reshape(-1), units[0]


def _blocks(data: Federation, owner: Tensor, unit: np.ndarray) -> Tensor:  # -> int64[n]
    """The block of each test sample, drawn at random: the same at whichever host it is.

    A group is in one block, of several clients too.
    """
    if data.groups is not None:
        numbers = data.groups_of("test").cpu().numpy().astype(np.uint64)
    else:
        keys = streams.name_keys(data.names)[owner.numpy()]
        first = (data.offsets["test"][:-1] - data.offsets["test"][0])[owner].numpy()
        numbers = keys + (unit - first).astype(np.uint64)
    return torch.from_numpy((streams.mix(numbers) % np.uint64(BLOCKS)).astype(np.int64))


def check_counts(
    columns: Mapping[str, ColumnCounts],
    subgroups: Sequence[Subgroups],
    clients: int,
    metrics: Sequence[Metric],
    form: TargetForm,
) -> None:
    """ValueError for counts of another shape than these columns and metrics have."""
    if list(columns) != [column.name for column in subgroups]:
        raise ValueError("subgroups: they must be of the columns that were asked for")
    figures = len(FIGURES) if form.classes else 1
    for column in subgroups:
        counted = columns[column.name]
        labels = len(column.labels)
        per_place = (clients, labels + 1)
        shapes = [tuple(t.shape) for t in (counted.samples, counted.units, counted.alone)]
        shape = (clients, figures, labels + 1, MOMENTS)
        if set(shapes) != {per_place} or tuple(counted.moments.shape) != shape:
            raise ValueError(f"subgroups: the sums of {column.name!r} have another shape")
        for m in metrics:
            rows, counts = counted.rows[m.name], counted.counts[m.name]
            places = rows.shape[1] if rows.dim() == 4 else 0
            wanted_rows = (labels, places, clients, m.width(form))
            wanted_counts = (labels, places, *m.shape(form))
            if places not in (1, 1 + BLOCKS) or tuple(rows.shape) != wanted_rows:
                raise ValueError(f"subgroups: the metric {m.name} has another shape")
            if tuple(counts.shape) != wanted_counts:
                raise ValueError(f"subgroups: the metric {m.name} has another shape")
