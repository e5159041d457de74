"""How well clients are served: what a host counts, and the figures made of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import torch
from torch import Tensor

from ..data.federation import Federation
from .metrics import Metric, MetricCounts, Tally, TargetForm

COLLAPSE_LOSS = 1e6  # models with a mean test loss above this, or not finite, have collapsed


@dataclass(frozen=True)
class Scores:
    """What was counted on one split, per client. Scores of several hosts merge."""

    wire_ids: Tensor  # int64[n], increasing
    hits: Tensor  # float64[n]: accuracy times samples; NaN for a regression
    loss: Tensor  # float64[n]: mean loss times samples
    samples: Tensor  # int64[n]
    gradients: Tensor  # int64[n]: evaluations spent on personalisation before use
    metrics: dict[str, MetricCounts] = field(default_factory=dict)  # by name, those asked for
    # float64[n]: what the samples of each client weigh together, by which clients are pooled; None
    # where they weigh 1 each
    weights: Tensor | None = None

    def of_clients(self) -> tuple[Tensor, Tensor]:
        """(accuracy, loss) of each client; NaN for a client without samples."""
        n = torch.where(self.samples > 0, self.samples, torch.nan)
        return self.hits / n, self.loss / n

    def only(self, wire_ids: Tensor) -> Scores:
        """The scores of some clients; without metrics, which are counted for those asked for."""
        keep = torch.isin(self.wire_ids, wire_ids)
        if bool(keep.all()):
            return self
        wire_ids, hits, loss, samples, gradients, *weights = (t[keep] for t in self._fields())
        return Scores(wire_ids, hits, loss, samples, gradients, {}, *weights)

    @classmethod
    def blank(cls, wire_ids: Tensor, metrics: Sequence[Metric], form: TargetForm) -> Scores:
        """Scores of these clients on no sample."""
        clients = len(wire_ids)
        zeros = torch.zeros(clients, dtype=torch.int64)
        hits = zeros.double() if form.classes else torch.full((clients,), torch.nan).double()
        measured = {}
        if metrics:
            measured = Tally(metrics, form, clients, zeros[:0]).measured(torch.arange(clients))
        weights = zeros.double() if form.weighted else None
        return cls(wire_ids, hits, zeros.double(), zeros, zeros, measured, weights)

    @staticmethod
    def merge(scores: Sequence[Scores]) -> Scores:
        """The scores of several hosts as one."""
        if len(scores) == 1:
            return scores[0]
        together = [
            torch.cat(tensors) for tensors in zip(*(s._fields() for s in scores), strict=True)
        ]
        order = together[0].argsort()
        metrics = {
            name: MetricCounts.merge([s.metrics[name] for s in scores], order)
            for name in scores[0].metrics
        }
        wire_ids, hits, loss, samples, gradients, *weights = (t[order] for t in together)
        return Scores(wire_ids, hits, loss, samples, gradients, metrics, *weights)

    def _fields(self) -> tuple[Tensor, ...]:
        """What there is of each client, its metrics apart."""
        weights = () if self.weights is None else (self.weights,)
        return self.wire_ids, self.hits, self.loss, self.samples, self.gradients, *weights

    @property
    def masses(self) -> Tensor:  # -> float64[n]
        """How much each client counts in a figure of all: by its samples, or what they weigh."""
        return self.samples.double() if self.weights is None else self.weights


def summarise(scores: Scores) -> dict[str, float]:
    """The papers' figures: pooled over samples, their population variance over clients, and more.

    Where samples have weights, they are pooled by these.

    >>> hits, loss = torch.tensor([1.0, 3.0]), torch.tensor([4.0, 0.0])
    >>> s = Scores(torch.arange(2), hits, loss, torch.tensor([2, 3]), torch.zeros(2))
    >>> {k: round(v, 3) for k, v in summarise(s).items() if k in ("accuracy", "accuracy_worst10")}
    {'accuracy': 0.8, 'accuracy_worst10': 0.5}
    """
    keep = scores.samples > 0
    masses = scores.masses
    per_sample = masses / scores.samples.clamp(min=1)
    out: dict[str, float] = {}
    for name, sums, worst_is_high in (
        ("accuracy", scores.hits, False),
        ("loss", scores.loss, True),
    ):
        each = (sums / scores.samples)[keep].double()
        figures = dict.fromkeys(("", "_variance", "_clients", "_worst10"), math.nan)
        if len(each):
            worst = each.sort(descending=worst_is_high).values[: math.ceil(0.1 * len(each))]
            figures[""] = float((sums * per_sample)[keep].sum()) / float(masses[keep].sum())
            figures["_variance"] = float(each.var(correction=0))
            figures["_clients"] = float(each.mean())
            figures["_worst10"] = float(worst.mean())
        out |= {f"{name}{end}": value for end, value in figures.items()}
    for measured in scores.metrics.values():
        out |= _figures(measured, masses)
    return out


ENDS = ("", "_variance", "_clients", "_worst10", "_undefined")  # of the figures of a metric


def _figures(measured: MetricCounts, masses: Tensor) -> dict[str, float]:
    """A metric as `summarise` has accuracy; and how many clients with samples have no value."""
    name = measured.metric.name
    each = measured.each()[masses > 0]
    defined_values = each[~each.isnan()]
    values = [math.nan] * 4
    if len(defined_values):
        worst = defined_values.sort(descending=not measured.metric.higher).values
        values = [
            measured.metric.pooled(measured.rows, measured.counts, masses),
            float(defined_values.var(correction=0)),
            float(defined_values.mean()),
            float(worst[: math.ceil(0.1 * len(defined_values))].mean()),
        ]
    values.append(float(len(each) - len(defined_values)))
    return {f"{name}{end}": value for end, value in zip(ENDS, values, strict=True)}


def majority(federation: Federation, split: str = "test") -> Scores:
    """Each client predicts its own most frequent training class: the least to beat.

    The loss is that of the constant distribution of the client's training classes, smoothed by
    adding one.
    """
    shares = class_shares(federation)
    totals = federation.class_totals(split)
    masses = totals.sum(1)
    samples = federation.class_counts(split).sum(1)
    clients = torch.arange(federation.clients)
    per_mass = samples / torch.where(masses > 0, masses, 1)
    hits = federation.majority_hits(split) * per_mass
    loss = -(totals * shares.log()).sum(1) * per_mass
    weights = None if federation.weights is None else masses
    return Scores(clients, hits, loss, samples, torch.zeros_like(clients), {}, weights)


def class_shares(federation: Federation) -> Tensor:  # -> float64[N, classes]
    """How much of each client's training samples is of each class, smoothed by adding one sample.

    One of the client's mean weight: what weights are counted in makes no difference.
    """
    totals = federation.class_totals("train")
    if federation.weights is not None:
        weights = federation.weight_totals("train")
        sizes = federation.sizes("train")
        totals = totals * (sizes / torch.where(sizes > 0, weights, 1)).unsqueeze(1)
    return (totals + 1) / (totals + 1).sum(1, keepdim=True)


def interval(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % interval of the mean over seeds (Student's t); None for one seed.

    >>> round(interval([1.0, 2.0, 3.0]), 3)
    2.484
    """
    from scipy.special import stdtrit

    n = len(values)
    if n < 2 or any(math.isnan(v) for v in values):
        return None
    mean = sum(values) / n
    sd = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    return float(stdtrit(n - 1, 0.975)) * sd / math.sqrt(n)


Z = NormalDist().inv_cdf(0.975)  # of an interval at 95 %


def wilson(hits: float, samples: float, z: float = Z) -> tuple[float, float]:
    """The 95 % interval of a proportion (Wilson 1927); (NaN, NaN) without a sample.

    `hits` need not be whole: it may be a mean over seeds; nor need `samples`: it may be what groups
    of them, or samples with weights, are worth, with Student's quantile for `z`. scipy's
    `binomtest` has the same,
    of whole numbers, in a call that takes far longer: a record has thousands of intervals.

    >>> low, high = wilson(8, 10)
    >>> round(low, 3), round(high, 3)
    (0.49, 0.943)
    """
    if not samples or math.isnan(hits):
        return math.nan, math.nan
    centre = (hits + z**2 / 2) / (samples + z**2)
    half = z / (samples + z**2) * math.sqrt(hits * (samples - hits) / samples + z**2 / 4)
    return max(0.0, centre - half), min(1.0, centre + half)


def paired_difference(
    values: Sequence[float], others: Sequence[float]
) -> tuple[float, float | None]:
    """The mean difference between runs with the same seeds, and half its 95 % interval.

    >>> mean, half = paired_difference([0.5, 0.6, 0.7], [0.4, 0.5, 0.6])
    >>> round(mean, 6), round(half, 6)
    (0.1, 0.0)
    """
    differences = [a - b for a, b in zip(values, others, strict=True)]
    return sum(differences) / len(differences), interval(differences)
