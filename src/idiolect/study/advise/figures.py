"""Figures that no single sample has (AUC, F1, balanced accuracy), and their gains.

The figure of a candidate is that of all samples held out under a seed, the mean over seeds. The
standard error of the difference of two is a paired bootstrap: both candidates are judged on the
same resamples. With MANY_CLIENTS or more, clients are drawn with replacement; with fewer, samples
within each client (see estimate.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ...host.metrics import EvaluatedSamples, Metric, TargetForm
from ...report.units import Units
from .estimate import (
    HELD_OUT_SAMPLES,
    MANY_CLIENTS,
    Gain,
    beyond_samples,
    held_out_ratio,
    satterthwaite,
)

RESAMPLES = 200
LARGEST = 100  # numbers that a model answers to a sample, where answers are kept


@dataclass(frozen=True)
class Resampled:
    """A figure, higher is better, and what it is on every resample of the bootstrap."""

    by_seed: np.ndarray  # [seeds]
    drawn: np.ndarray  # [RESAMPLES, seeds]


@dataclass(frozen=True)
class MetricFigures:
    """A metric on the held-out samples of some clients."""

    metric: Metric
    form: TargetForm
    units: Units  # what is drawn
    owner: np.ndarray  # int64[n]
    targets: Tensor  # [n, ...]
    clients: int
    repeated: bool  # the same samples under every seed, or folds
    seed: int = 0  # of the bootstrap
    weights: np.ndarray | None = None  # float64[n]: how much each sample counts; None: all alike

    def value(self, answers: np.ndarray, mask: np.ndarray) -> float:
        """Higher is better: answers[seeds, n, ...], of the samples in mask[seeds, n]."""
        values = [
            self._figure(by_seed, np.flatnonzero(row))
            for by_seed, row in zip(answers, mask, strict=True)
        ]
        values = [value for value in values if not math.isnan(value)]
        return float(np.mean(values)) if values else math.nan

    def _figure(self, answers: np.ndarray, at: np.ndarray) -> float:
        """Of the samples at these places, as if they were one client's."""
        if not len(at):
            return math.nan
        place = torch.from_numpy(at)
        owner = torch.zeros(len(at), dtype=torch.int64)
        outputs = torch.from_numpy(answers[at])
        weights = None if self.weights is None else torch.from_numpy(self.weights[at])
        samples = EvaluatedSamples(owner, outputs, self.targets[place], self.form, weights)
        rows = torch.zeros(1, self.metric.width(self.form), dtype=torch.float64)
        counts = torch.zeros(*self.metric.shape(self.form), dtype=self.form.counts_dtype)
        self.metric.add(rows, counts, samples)
        value = self.metric.pooled(rows, counts, samples.masses.sum().unsqueeze(0))
        return value if self.metric.higher else -value

    def resampled(self, answers: np.ndarray, mask: np.ndarray) -> Resampled:
        """The figure of answers[seeds, n, ...], of all samples and of every resample."""
        drawn = [self._by_seed(answers, mask, places) for places in self._resamples]
        return Resampled(self._by_seed(answers, mask), np.array(drawn))

    def gain(self, one: Resampled, other: Resampled, mask: np.ndarray) -> Gain:
        """By how much one is better than another on the same samples, with a standard error."""
        resampled = np.array([_mean(row) for row in one.drawn - other.drawn])
        return self._gain(one.by_seed - other.by_seed, resampled, mask)

    def _by_seed(
        self, answers: np.ndarray, mask: np.ndarray, places: np.ndarray | None = None
    ) -> np.ndarray:
        """The figure under every seed, of all samples or of those at some places."""
        places = np.arange(mask.shape[1]) if places is None else places
        return np.array(
            [
                self._figure(by_seed, places[row[places]])
                for by_seed, row in zip(answers, mask, strict=True)
            ]
        )

    def _gain(self, by_seed: np.ndarray, resampled: np.ndarray, mask: np.ndarray) -> Gain:
        mean = _mean(by_seed)
        held_out = mask.any(0)
        resampled = resampled[~np.isnan(resampled)]
        if math.isnan(mean) or int(held_out.sum()) < HELD_OUT_SAMPLES or len(resampled) < 2:
            return Gain(mean, math.nan, 0)
        present = len(np.unique(self.owner[held_out]))
        of_sample = self.units.of_sample
        units = int(held_out.sum()) if of_sample is None else len(np.unique(of_sample[held_out]))
        freedom = present - 1 if present >= MANY_CLIENTS else units - present
        samples = float(np.var(resampled, ddof=1))
        if (
            not self.repeated and present < MANY_CLIENTS
        ):  # as in estimate.py: the training samples' part
            samples *= 1 + held_out_ratio(mask)
        values = by_seed[~np.isnan(by_seed)]
        trainings = float(np.var(values, ddof=1)) / len(values) if len(values) > 1 else 0.0
        if not self.repeated:  # other samples under every seed: their part is counted already
            trainings = beyond_samples(trainings, samples, len(values))
        parts = ((samples, freedom), (trainings, len(values) - 1))
        return Gain(mean, math.sqrt(samples + trainings), satterthwaite(*parts))

    @cached_property
    def _resamples(self) -> list[np.ndarray]:
        return list(self._draw())

    def _draw(self) -> Iterator[np.ndarray]:
        """Places of samples, of clients or of units within clients, drawn with replacement."""
        present = np.unique(self.owner)
        rng = np.random.default_rng(self.seed)
        if len(present) >= MANY_CLIENTS:
            places = [np.flatnonzero(self.owner == k) for k in present]
            for _ in range(RESAMPLES):
                yield np.concatenate([places[k] for k in rng.integers(0, len(places), len(places))])
            return
        of_sample = self.units.of_sample
        of_sample = np.arange(len(self.owner)) if of_sample is None else of_sample
        order = np.argsort(of_sample, kind="stable")
        samples = np.split(order, np.bincount(of_sample).cumsum()[:-1])
        by_client = [np.flatnonzero(self.units.owner == k) for k in present]
        for _ in range(RESAMPLES):
            drawn = np.concatenate([rng.choice(mine, len(mine)) for mine in by_client])
            yield np.concatenate([samples[unit] for unit in drawn])


def _mean(values: np.ndarray) -> float:
    """Of those that are defined."""
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) else math.nan
