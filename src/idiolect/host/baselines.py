"""Trivial baselines: what each client reaches by one constant answer, its own.

Where there are classes, its most frequent training class; where targets are real numbers, the mean
of its training targets. The least that a model must beat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..data.federation import Federation
from ..task.losses import Loss
from .lazy_federation import LazyFederation, whole
from .metrics import Metric, Tally, form_of, is_distance
from .metrics.custom import Own
from .scores import Scores, class_shares, majority


def trivial(
    federation: Federation, loss: Loss, metrics: Sequence[Metric] = (), split: str = "test"
) -> Scores | None:
    """Scores of the constant answers; None where neither baseline has a meaning.

    Metrics of the user's own are left out: their functions are about outputs of the model.
    """
    if isinstance(federation, LazyFederation) and split == "test":
        return federation.baseline_with(metrics)
    federation = whole(federation)
    if not isinstance(federation.targets, Tensor):
        return None
    if federation.classes:
        scores = majority(federation, split)
        outputs = _log_shares(federation)
    elif is_distance(loss.name):
        outputs = training_means(federation)
        scores = _of_means(federation, loss, outputs, split)
    else:
        return None
    return replace(scores, metrics=_metrics(federation, metrics, outputs, split))


def per_client(
    federation: Federation, loss: Loss, metrics: Sequence[Metric], figure: str
) -> list[float]:
    """A figure of the baseline for every client, on its test data; [] where there is none."""
    scores = trivial(federation, loss, [m for m in metrics if m.name == figure])
    if scores is None:
        return []
    accuracy, losses = scores.of_clients()
    values = {"accuracy": accuracy, "loss": losses}
    values |= {name: measured.each() for name, measured in scores.metrics.items()}
    return values[figure].tolist() if figure in values else []


def training_means(federation: Federation) -> Tensor:  # -> [N, ...]
    """The mean of each client's training targets; without any, that of all clients."""
    owner, targets = _targets(federation, "train")
    shape = (federation.clients, *targets.shape[1:])
    ones = [1] * (targets.dim() - 1)
    values = targets.double() * federation.weights_of("train").view(-1, *ones)
    sums = torch.zeros(shape, dtype=torch.float64).index_add_(0, owner, values)
    totals = federation.weight_totals("train").view(-1, *ones)
    everyone = sums.sum(0) / (totals.sum() if len(targets) else 1)
    return torch.where(totals > 0, sums / torch.where(totals > 0, totals, 1), everyone)


def _of_means(federation: Federation, loss: Loss, means: Tensor, split: str) -> Scores:
    owner, targets = _targets(federation, split)
    outputs = means[owner]
    if targets.dim() == 1:
        outputs = outputs.unsqueeze(-1)
    each = loss.each(outputs, targets.double()).double()
    if each.dim() > 1:
        each = each.flatten(1).mean(1)
    sums = torch.zeros(federation.clients, dtype=torch.float64)
    sums.index_add_(0, owner, each * federation.weights_of(split))
    clients = torch.arange(federation.clients)
    none = torch.full_like(sums, torch.nan)
    sizes, totals = federation.sizes(split), federation.weight_totals(split)
    sums *= sizes / torch.where(totals > 0, totals, 1)
    weights = None if federation.weights is None else totals
    return Scores(clients, none, sums, sizes, torch.zeros_like(clients), {}, weights)


def _log_shares(federation: Federation) -> Tensor:  # -> float64[N, classes]
    return class_shares(federation).log()


def _metrics(
    federation: Federation, metrics: Sequence[Metric], outputs: Tensor, split: str
) -> dict:
    counted = [m for m in metrics if not isinstance(m, Own)]
    if not counted:
        return {}
    owner, targets = _targets(federation, split)
    everyone = torch.arange(federation.clients)
    form = form_of(federation, Loss())  # the answers are log-probabilities, or values
    tally = Tally(counted, form, federation.clients, everyone)
    answers = outputs[owner]
    if federation.classes:  # the same answer for every target of a sample
        answers = answers.view(len(owner), *[1] * (targets.dim() - 1), answers.shape[-1])
        answers = answers.expand(*targets.shape, -1)
    tally.add(owner, answers, targets, federation.weights_of(split))
    return tally.measured(everyone)


def _targets(federation: Federation, split: str) -> tuple[Tensor, Tensor]:
    offsets = federation.offsets[split]
    targets = federation.targets[int(offsets[0]) : int(offsets[-1])].cpu()
    clients = torch.arange(federation.clients)
    return torch.repeat_interleave(clients, federation.sizes(split)), targets
