"""Built-in metrics of ranked scores: areas under curves, exact for each client."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .averaging import ClassAverage
from .catalogue import built_in
from .metric import EvaluatedSamples, TargetForm

STEP = 0.01
STEPS = 4001
TINY = np.finfo(np.float64).tiny


class RankingArea(ClassAverage):
    """An area under a curve over thresholds; pooled from scores in steps of log-odds.

    Of more than two classes each against the rest; the mean is over the classes that the client
    has.
    """

    weighs = True

    def refusal(self, form: TargetForm) -> str:
        one = "all samples are of one class" if form.classes == 1 else ""
        return super().refusal(form) or one

    def width(self, form: TargetForm) -> int:
        return 2  # the value, and whether any score was not a number

    def shape(self, form: TargetForm) -> Sequence[int]:
        return (self._curves(form.classes), 2, STEPS)

    def _curves(self, classes: int) -> int:
        one = self.of_one_class(classes) or (classes == 2 and self.two_sided)
        return 1 if one else classes

    def add(self, rows: Tensor, counts: Tensor, samples: EvaluatedSamples) -> None:
        owner = samples.owners
        logs = samples.log_probabilities
        scores = _log_odds(logs) if len(counts) > 1 else _log_odds_of(logs, self.positive_index)
        broken = scores.isnan().any(1)
        rows[samples.owner.unique(), 0] = torch.nan
        rows[owner[broken], 1] = 1.0
        sound = rows[owner, 1] == 0
        owner, scores, labels = owner[sound], scores[sound], samples.labels[sound]
        mass = samples.target_masses[sound]
        clients = len(rows)
        owners, values, support = [], [], []
        for at, curve in enumerate(scores.unbind(1)):
            positive = labels == (at if len(counts) > 1 else self.positive_index)
            step = ((curve / STEP).round() + STEPS // 2).clamp(0, STEPS - 1).long()
            cell = positive * STEPS + step
            counts[at] += torch.bincount(cell, mass, 2 * STEPS).view(2, STEPS).to(counts)
            owners.append(np.arange(clients))
            ranked = (owner.numpy(), curve.numpy(), positive.numpy(), clients, mass.numpy())
            values.append(self.by_client(*ranked))
            support.append(np.bincount(owner[positive].numpy(), mass[positive].numpy(), clients))
        joined = [np.concatenate(parts) for parts in (owners, values, support)]
        each = torch.from_numpy(self.mean_by_client(joined[0], joined[1], joined[2], clients))
        rows[~each.isnan(), 0] = each[~each.isnan()]

    def pooled(self, rows: Tensor, counts: Tensor, masses: Tensor) -> float:
        if bool((rows[:, 1] > 0).any()):
            return float("nan")
        support = counts[:, 1].sum(1).numpy()
        values = np.full(len(counts), np.nan)
        for at, curve in enumerate(counts):
            if self.defined(curve):
                values[at] = self.area(*curve.double().numpy())
        return float(self.mean_by_client(np.zeros(len(counts), dtype=int), values, support, 1)[0])

    def defined(self, curve: Tensor) -> bool:
        """Whether counts [negative or positive, step] have an area."""
        raise NotImplementedError

    def area(self, negative: np.ndarray, positive: np.ndarray) -> float:
        """The area of samples of which there are so many in each step, from low scores to high."""
        raise NotImplementedError

    def by_client(
        self,
        owner: np.ndarray,
        score: np.ndarray,
        positive: np.ndarray,
        clients: int,
        mass: np.ndarray,
    ) -> np.ndarray:  # -> float64[clients]
        """The exact area of each client; NaN where it has none."""
        raise NotImplementedError


def _log_odds(logs: Tensor) -> Tensor:
    """log p - log(1 - p) of every class: float64[m, classes]."""
    if logs.shape[1] == 2:
        return torch.cat([_log_odds_of(logs, 0), _log_odds_of(logs, 1)], 1)
    return logs - (-torch.expm1(logs)).log()


def _log_odds_of(logs: Tensor, index: int) -> Tensor:
    """log p - log(1 - p) of one class of two: float64[m, 1]."""
    return logs[:, index : index + 1] - logs[:, 1 - index : 2 - index]


@built_in
class Auc(RankingArea):
    """The area under the ROC curve: how often a positive sample ranks above a negative one.

    A client whose samples are all of one class has no value.
    """

    kind = "auc"
    two_sided = True
    undefined = "all test samples of one class"

    def defined(self, curve: Tensor) -> bool:
        return bool((curve.sum(1) > 0).all())

    def area(self, negative: np.ndarray, positive: np.ndarray) -> float:
        below = negative.cumsum() - negative / 2  # of one step, half
        return float((positive * below).sum() / (positive.sum() * negative.sum()))

    def by_client(
        self,
        owner: np.ndarray,
        score: np.ndarray,
        positive: np.ndarray,
        clients: int,
        mass: np.ndarray,
    ) -> np.ndarray:
        return roc_areas(owner, score, positive, clients, mass)


@built_in
class PrAuc(RankingArea):
    """Average precision: the area under the precision-recall curve, as a sum over its steps.

    As scikit-learn's `average_precision_score`. A client without a positive sample has no value.
    """

    kind = "pr_auc"
    undefined = "no test sample of the positive class"

    def defined(self, curve: Tensor) -> bool:
        return bool(curve[1].sum() > 0)

    def area(self, negative: np.ndarray, positive: np.ndarray) -> float:
        hits, alarms = positive[::-1].cumsum(), negative[::-1].cumsum()  # at or above each step
        precision = hits / np.maximum(hits + alarms, 1)
        return float((positive[::-1] * precision).sum() / positive.sum())

    def by_client(
        self,
        owner: np.ndarray,
        score: np.ndarray,
        positive: np.ndarray,
        clients: int,
        mass: np.ndarray,
    ) -> np.ndarray:
        return average_precisions(owner, score, positive, clients, mass)


def roc_areas(
    owner: np.ndarray,
    score: np.ndarray,
    positive: np.ndarray,
    clients: int,
    mass: np.ndarray | None = None,
) -> np.ndarray:  # -> float64[clients]
    """The area of each client, exact: how often a positive sample has the higher score, ties half.

    By what the samples weigh, where `mass` is given. scikit-learn's `roc_auc_score` has the same
    value, in a call of milliseconds per client.

    >>> roc_areas(np.array([0, 0, 0, 1]), np.array([0.1, 0.4, 0.4, 1.0]), np.array([0, 1, 0, 1]), 2)
    array([0.75,  nan])
    """
    order = np.lexsort((score, owner))
    owner, score, positive = owner[order], score[order], positive[order].astype(bool)
    mass = _relative(mass, owner, clients, order)
    new = np.ones(len(score), dtype=bool)  # begins a run of equal scores of one client
    new[1:] = (score[1:] != score[:-1]) | (owner[1:] != owner[:-1])
    run = new.cumsum() - 1
    negative = np.where(positive, 0.0, mass)
    losses = np.bincount(owner, negative, minlength=clients)
    wins = np.bincount(owner[positive], mass[positive], minlength=clients)
    before = losses.cumsum() - losses  # negative samples of the clients before
    tied = np.bincount(run, negative)
    # negative samples of the same client with a lower score, and half of those with the same
    below = (tied.cumsum() - tied / 2)[run] - before[owner]
    total = np.bincount(owner[positive], (mass * below)[positive], minlength=clients)
    both = (np.bincount(owner[positive], minlength=clients) > 0) & (losses > 0)
    return total / np.where(both, wins * losses, np.nan)


def average_precisions(
    owner: np.ndarray,
    score: np.ndarray,
    positive: np.ndarray,
    clients: int,
    mass: np.ndarray | None = None,
) -> np.ndarray:  # -> float64[clients]
    """The average precision of each client, exact: equal scores are one threshold.

    By what the samples weigh, where `mass` is given.

    >>> client, score = np.array([0, 0, 0, 1]), np.array([0.1, 0.4, 0.4, 1.0])
    >>> average_precisions(client, score, np.array([0, 1, 0, 0]), 2)
    array([0.5, nan])
    """
    order = np.lexsort((-score, owner))
    owner, score, positive = owner[order], score[order], positive[order].astype(bool)
    mass = _relative(mass, owner, clients, order)
    last = np.ones(len(score), dtype=bool)  # ends a run of equal scores of one client
    last[:-1] = (score[1:] != score[:-1]) | (owner[1:] != owner[:-1])
    every = np.bincount(owner, mass, minlength=clients)
    positives = np.bincount(owner[positive], mass[positive], minlength=clients)
    client = owner[last]
    ranked = mass.cumsum()[last] - (every.cumsum() - every)[client]  # above each threshold
    hits = np.where(positive, mass, 0.0).cumsum()[last]
    hits -= (positives.cumsum() - positives)[client]
    # sum over thresholds n of (recall_n - recall_(n-1)) * precision_n
    gained = np.diff(hits, prepend=0)
    begins = np.append(True, client[1:] != client[:-1])[: len(client)]
    gained[begins] = hits[begins]
    total = np.bincount(client, gained * hits / ranked, minlength=clients)
    return np.divide(total, positives, out=np.full(clients, np.nan), where=positives > 0)


def _relative(
    mass: np.ndarray | None, owner: np.ndarray, clients: int, order: np.ndarray
) -> np.ndarray:
    """Weights in an order, over the mean weight of each owner: sums over all owners stay exact."""
    if mass is None:
        return np.ones(len(owner))
    mass = mass[order]
    sizes = np.bincount(owner, minlength=clients)
    return mass * (sizes / np.maximum(np.bincount(owner, mass, minlength=clients), TINY))[owner]
