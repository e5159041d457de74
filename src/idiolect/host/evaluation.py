"""Models on their own clients' data, many clients at once.

One shared model is an ordinary forward pass over the split's slice of the data. Personal models are
run as rows: clients of like size are padded to a common length and go through the kernel together.
The length follows from a client's own size alone, so that its scores have the same bits whoever
else is evaluated with it. What is padded is prepared once and kept while it is small; equal clients
side by side are not copied at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..core.draws import keyed_draws
from ..core.tensors import TILE, padded_lengths, tiles
from ..core.types import Personal, State, Tree, first, leaves, map_tree
from ..data.federation import Federation
from ..task.losses import SampleScores, joined
from ..task.task import Task
from .metrics import EvaluatedSamples, TargetForm
from .metrics.metric import plain, prediction

_KEEP = 512 << 20  # bytes of padded data kept between rounds
_PIECE = 341 * TILE  # samples that a forward pass of one model takes at once
_LEAST = 6 * TILE  # a shorter pass is filled up: matrix products of few rows round differently
_AT_ONCE = 65536  # samples that go through the kernel together, over all rows
_NUMBERS = 1 << 24  # of the outputs that are held together; a language model has many per sample


@dataclass(frozen=True)
class ScoreSums:
    """Accuracy and loss of every row of a host, times its samples.

    Where samples have weights, these are weighed means, times the number of samples all the same.
    """

    hits: Tensor  # float64[N]
    loss: Tensor  # float64[N]


class Counting(Protocol):
    """What else counts outputs as they come: metrics, or scores of single samples."""

    def add(
        self, owner: Tensor, outputs: Tree, targets: Tree, weights: Tensor | None = None
    ) -> None:
        """A piece of the samples of all clients, in their order."""

    def add_padded(
        self,
        rows: Tensor,
        outputs: Tree,
        targets: Tree,
        exists: Tensor,
        weights: Tensor | None = None,
    ) -> None:
        """All samples of the clients at these rows: [K, longest, ...], of which some exist."""


class Evaluator:
    """Scores of models on one split of a host's data. Clients are rows of the host.

    `one_by_one`: a client's scores are computed from its own samples alone, so that their last bits
    do not depend on who else is there.
    """

    def __init__(
        self,
        task: Task,
        data: Federation,
        split: str,
        one_by_one: bool = False,
        predict: Callable[[State, Tree], Tree] | None = None,  # where it is not one model
    ):
        self.task = task
        self.predict = predict
        self.one_by_one = one_by_one or task.behaviour.client_by_client
        self.data = data
        self.offsets = data.offsets[split]
        self.sizes = data.sizes(split)
        self.low = int(self.offsets[0])
        self.high = int(self.offsets[-1])
        self._at_once = samples_at_once(data)
        self._plans: dict[bytes, list[Tensor]] = {}
        self._weights = None if data.weights is None else data.weights_of(split)
        # float64[N]: what a sample of each client weighs in the mean; 1 without weights
        self.mean_weights = data.weight_totals(split) / self.sizes.clamp(min=1)
        self._ready: dict[bytes, tuple[Tree, Tree, Tensor]] = {}
        self._kept = 0
        self._owner = torch.repeat_interleave(torch.arange(data.clients), self.sizes)

    def blank(self) -> ScoreSums:
        """Zeros for every row."""
        n = self.data.clients
        return ScoreSums(torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.float64))

    def shared(self, w: Tensor, tally: Counting | None = None) -> ScoreSums:
        """One model w[d] for all clients."""
        sums, weights = self.blank(), self.blank()
        if self.one_by_one:
            rows = torch.arange(self.data.clients)
            self.personal(w.expand(len(rows), -1), rows, sums, tally)
            return sums
        for a, b in self._pieces():
            inputs = map_tree(lambda t, a=a, b=b: _filled(t[a:b]), self.data.inputs)
            outputs = self.task.outputs_of_one(w, inputs)
            outputs = map_tree(lambda t, n=b - a: t[:n], outputs)
            targets = map_tree(lambda t, a=a, b=b: t[a:b], self.data.targets)
            part = slice(a - self.low, b - self.low)
            mass = None if self._weights is None else self._weights[part]
            each = _weighed(scores(self.task, outputs, targets), mass)
            owner = self._owner[part]
            sums.hits.index_add_(0, owner, each.hits * each.hit_weights)
            sums.loss.index_add_(0, owner, each.loss * each.loss_weights)
            weights.hits.index_add_(0, owner, each.hit_weights)
            weights.loss.index_add_(0, owner, each.loss_weights)
            if tally is not None:
                tally.add(owner, outputs, targets, mass)
        return ScoreSums(
            sums.hits * per_weight(self.sizes, weights.hits),
            sums.loss * per_weight(self.sizes, weights.loss),
        )

    def _pieces(self) -> list[tuple[int, int]]:
        """The split's samples in passes of whole tiles, and what is left."""
        parts = tiles(self.high - self.low)
        piece = max(_LEAST, min(_PIECE, self._at_once - self._at_once % TILE))
        cuts = [(a, min(a + piece, p.stop)) for p in parts for a in range(p.start, p.stop, piece)]
        return [(self.low + a, self.low + b) for a, b in cuts]

    def personal(
        self, models: Personal, rows: Tensor, into: ScoreSums, tally: Counting | None = None
    ) -> None:
        """Models x[K, d] of these rows, or what they predict with; scores are written `into`."""
        for group in self._groups(rows):
            inputs, targets, exists = self._padded(rows[group])
            mass = self._padded_weights(rows[group], exists)
            outputs = self._outputs(models, group, inputs)
            each = _weighed(padded_scores(self.task, outputs, targets, exists), mass)
            into.hits[rows[group]] = _row_sums(each.hits, each.hit_weights, exists)
            into.loss[rows[group]] = _row_sums(each.loss, each.loss_weights, exists)
            if tally is not None:
                tally.add_padded(rows[group], outputs, targets, exists, mass)

    def _outputs(self, models: Personal, group: Tensor, inputs: Tree) -> Tree:
        if isinstance(models, Tensor):
            return self.task.outputs(_rows_of(models, group), inputs)
        assert self.predict is not None
        return self.predict({n: _rows_of(t, group) for n, t in models.items()}, inputs)

    def _groups(self, rows: Tensor) -> list[Tensor]:
        """Positions in `rows`, in groups of one padded length. Found once per cohort."""
        key = rows.numpy().tobytes()
        if key not in self._plans:
            if len(self._plans) >= 64:  # ever new cohorts: forget the old ones
                self._plans.clear()
                self._ready.clear()
                self._kept = 0
            self._plans[key] = self._plan(padded_lengths(self.sizes[rows].numpy()))
        return self._plans[key]

    def _plan(self, lengths: np.ndarray) -> list[Tensor]:
        groups: list[Tensor] = []
        for length in np.unique(lengths[lengths > 0]):
            alike = torch.from_numpy(np.flatnonzero(lengths == length))
            groups += alike.split(1 if self.one_by_one else max(1, self._at_once // int(length)))
        return groups

    def _padded_weights(self, rows: Tensor, exists: Tensor) -> Tensor | None:
        """What each sample weighs, in the form of `exists`: [K, longest]; None without weights."""
        if self._weights is None:
            return None
        place = torch.where(exists, torch.arange(exists.shape[1]), 0)
        return self._weights[(self.offsets[rows] - self.low).unsqueeze(1) + place]

    def _padded(self, rows: Tensor) -> tuple[Tree, Tree, Tensor]:
        """Inputs, targets and which of them exist: [K, longest, ...]."""
        key = rows.numpy().tobytes()
        if key in self._ready:
            return self._ready[key]
        sizes = self.sizes[rows]
        starts = self.offsets[rows]
        place = torch.arange(int(padded_lengths(sizes.numpy()).max()))
        exists = place < sizes.unsqueeze(1)
        steps = starts.diff() if len(starts) > 1 else sizes
        evenly_spaced = bool((steps == steps[0]).all()) and int(steps[0]) > 0
        data = self.data
        if evenly_spaced and bool(exists.all()):
            # equal clients side by side, whose rows need no filling: views, no copy
            span = (int(starts[0]), int(steps[0]), len(rows), len(place))
            inputs = map_tree(lambda t: windows(t, *span), data.inputs)
            targets = map_tree(lambda t: windows(t, *span), data.targets)
        else:
            index = starts.unsqueeze(1) + torch.where(exists, place, 0)  # filled by their own
            at = index.flatten().to(first(data.inputs).device)

            def chosen(t: Tensor) -> Tensor:
                return t.index_select(0, at).unflatten(0, index.shape)

            inputs = map_tree(chosen, data.inputs)
            targets = map_tree(chosen, data.targets)
            self._kept += sum(t.numel() * t.element_size() for t in leaves(inputs))
        group = (inputs, targets, exists)
        if self._kept <= _KEEP:
            self._ready[key] = group
        return group


def scores(task: Task, outputs: Tree, targets: Tree) -> SampleScores:
    """Hits and loss of each of n samples, on the CPU."""
    return _map_scores(lambda t: t.cpu(), task.criterion.scores(outputs, targets))


def padded_scores(task: Task, outputs: Tree, targets: Tree, exists: Tensor) -> SampleScores:
    """Scores of samples [K, longest, ...], of which some exist; the others' mean nothing.

    A loss that compares samples, or draws random numbers, is shown the real samples of one client
    at a time.
    """
    if not task.behaviour.client_by_client:
        each = scores(task, joined(outputs), joined(targets))
        return _map_scores(lambda t: t.view(exists.shape), each)
    filled = SampleScores(*torch.zeros(4, *exists.shape, dtype=torch.float64))
    for k, n in enumerate(exists.sum(1).tolist()):
        mine = (map_tree(lambda t, k=k, n=n: t[k][:n], tree) for tree in (outputs, targets))
        with keyed_draws(0, enabled=task.behaviour.draws_in_use):
            each = scores(task, *mine)
        for name, values in vars(each).items():
            getattr(filled, name)[k, :n] = values
    return filled


def _map_scores(function: Callable[[Tensor], Tensor], each: SampleScores) -> SampleScores:
    return SampleScores(**{name: function(t) for name, t in vars(each).items()})


def _weighed(each: SampleScores, mass: Tensor | None) -> SampleScores:
    """The same, each sample counting as often as it weighs."""
    if mass is None:
        return each
    return replace(each, hit_weights=each.hit_weights * mass, loss_weights=each.loss_weights * mass)


def per_weight(samples: Tensor, weights: Tensor) -> Tensor:
    """What makes a weighed sum a mean times the samples; 0 where nothing counts."""
    return torch.where(weights > 0, samples / weights, 0)


def _row_sums(values: Tensor, weights: Tensor, exists: Tensor) -> Tensor:
    """The mean of each row [K, longest] by its weights, times its samples: [K]."""
    sums = torch.where(exists, values * weights, 0).sum(1)
    return sums * per_weight(exists.sum(1), torch.where(exists, weights, 0).sum(1))


def _filled(t: Tensor) -> Tensor:
    """A short pass filled up with its first sample."""
    return t if len(t) >= _LEAST else torch.cat([t, t[:1].expand(_LEAST - len(t), *t.shape[1:])])


def _rows_of(x: Tensor, group: Tensor) -> Tensor:
    """x[group]; without a copy where these are neighbours."""
    first = int(group[0])
    if int(group[-1]) - first == len(group) - 1:  # they are increasing
        return x[first : first + len(group)].contiguous()
    return x[group.to(x.device)]


def windows(t: Tensor, first: int, step: int, count: int, length: int) -> Tensor:
    """`count` views of `length` samples each, a view every `step` samples: [count, length, ...].

    >>> windows(torch.arange(8), first=1, step=2, count=3, length=3).tolist()
    [[1, 2, 3], [3, 4, 5], [5, 6, 7]]
    """
    strides = (step * t.stride(0), *t.stride())
    at = t.storage_offset() + first * t.stride(0)
    return t.as_strided((count, length, *t.shape[1:]), strides, at)


def samples_at_once(data: Federation) -> int:
    """How many samples' outputs are held together: a score per target and class."""
    targets = first(data.targets)
    numbers = max(1, targets.shape[1:].numel()) * max(1, data.classes)
    return max(1, min(_AT_ONCE, _NUMBERS // numbers))


class SamplePlaces:
    """Where in a split the samples stand that an `Evaluator` shows."""

    def __init__(self, data: Federation, split: str):
        self.starts = data.offsets[split][:-1] - data.offsets[split][0]
        self._next = 0

    def following(self, count: int) -> Tensor:  # -> int64[count]
        """Of the next samples of the split, in their order."""
        at = torch.arange(self._next, self._next + count)
        self._next += count
        return at

    def padded(self, rows: Tensor, length: int) -> Tensor:  # -> int64[K, length]
        """Of the samples of the clients at these rows; beyond a client's last they mean nothing."""
        return self.starts[rows].unsqueeze(1) + torch.arange(length)


class EachSample:
    """Hits and loss of every sample of a split, as an `Evaluator` comes by them."""

    def __init__(self, task: Task, data: Federation, split: str):
        self.task = task
        self.places = SamplePlaces(data, split)
        self.sizes = data.sizes(split)
        self.weights = data.weights_of(split)
        self.totals = data.weight_totals(split)
        blank = torch.full((4, int(self.sizes.sum())), torch.nan, dtype=torch.float64)
        self._each = SampleScores(*blank)

    def add(
        self, owner: Tensor, outputs: Tree, targets: Tree, weights: Tensor | None = None
    ) -> None:
        """The next samples of the split, in their order."""
        self._write(self.places.following(len(owner)), scores(self.task, outputs, targets))

    def add_padded(
        self,
        rows: Tensor,
        outputs: Tree,
        targets: Tree,
        exists: Tensor,
        weights: Tensor | None = None,
    ) -> None:
        """All samples of the clients at these rows: [K, longest, ...], of which some exist."""
        at = self.places.padded(rows, exists.shape[1])
        each = padded_scores(self.task, outputs, targets, exists)
        self._write(at[exists], _map_scores(lambda t: t[exists], each))

    def _write(self, at: Tensor, each: SampleScores) -> None:
        for name, values in vars(each).items():
            getattr(self._each, name)[at] = values

    def means(self) -> tuple[Tensor, Tensor]:
        """Hits and loss, scaled so that the mean of a client's samples is its figure.

        Where samples have weights, the mean by these (see report/verdicts.py, `weighed_terms`).
        """
        (hits, hit_weights), (loss, loss_weights) = self.weighed()
        return hits * hit_weights, loss * loss_weights

    def weighed(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Hits with their weights, and losses with theirs: of a client, they add up to its samples.

        Its figure is the weighed mean.
        """
        each = self._each
        return (
            (each.hits, self._scale(each.hit_weights)),
            (each.loss, self._scale(each.loss_weights)),
        )

    def _scale(self, weights: Tensor) -> Tensor:
        owner = torch.repeat_interleave(torch.arange(len(self.sizes)), self.sizes)
        sums = torch.zeros(len(self.sizes), dtype=torch.float64)
        sums.index_add_(0, owner, weights * self.weights)
        return weights * per_weight(self.totals, sums)[owner]


class EachOutput:
    """What models answer to every sample of a split, as an `Evaluator` comes by it."""

    def __init__(self, data: Federation, split: str, form: TargetForm):
        self.form = form
        self.places = SamplePlaces(data, split)
        self.owner = torch.repeat_interleave(torch.arange(data.clients), data.sizes(split))
        self.weights = None if data.weights is None else data.weights_of(split)
        low, high = int(data.offsets[split][0]), int(data.offsets[split][-1])
        self.targets = map_tree(lambda t: plain(t[low:high]), data.targets)
        self._outputs: Tensor | None = None  # made once the shape of an answer is known

    def add(
        self, owner: Tensor, outputs: Tree, targets: Tree, weights: Tensor | None = None
    ) -> None:
        """The next samples of the split, in their order."""
        self._write(self.places.following(len(owner)), plain(prediction(outputs)))

    def add_padded(
        self,
        rows: Tensor,
        outputs: Tree,
        targets: Tree,
        exists: Tensor,
        weights: Tensor | None = None,
    ) -> None:
        """All samples of the clients at these rows: [K, longest, ...], of which some exist."""
        at = self.places.padded(rows, exists.shape[1])
        self._write(at[exists], plain(prediction(outputs))[exists])

    def _write(self, at: Tensor, outputs: Tensor) -> None:
        if self._outputs is None:
            self._outputs = torch.full(
                (len(self.owner), *outputs.shape[1:]), torch.nan, dtype=outputs.dtype
            )
        self._outputs[at] = outputs

    def samples(self) -> EvaluatedSamples:
        """All of them."""
        outputs = torch.zeros(0) if self._outputs is None else self._outputs
        return EvaluatedSamples(self.owner, outputs, self.targets, self.form, self.weights)
