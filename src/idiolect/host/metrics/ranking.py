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


class RankingArea(ClassAverage):
    """An area under a curve over thresholds; pooled from scores in steps of log-odds.

    Of more than two classes each against the rest; the mean is over the classes that the client
    has.
    """

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
        clients = len(rows)
        owners, values, support = [], [], []
        for at, curve in enumerate(scores.unbind(1)):
            positive = labels == (at if len(counts) > 1 else self.positive_index)
            step = ((curve / STEP).round() + STEPS // 2).clamp(0, STEPS - 1).long()
            cell = positive * STEPS + step
            counts[at] += torch.bincount(cell, minlength=2 * STEPS).view(2, STEPS)
            owners.append(np.arange(clients))
            values.append(self.by_client(owner.numpy(), curve.numpy(), positive.numpy(), clients))
            support.append(np.bincount(owner[positive].numpy(), minlength=clients))
        joined = [np.concatenate(parts) for parts in (owners, values, support)]
        each = torch.from_numpy(self.mean_by_client(joined[0], joined[1], joined[2], clients))
        rows[~each.isnan(), 0] = each[~each.isnan()]

    def pooled(self, rows: Tensor, counts: Tensor, sizes: Tensor) -> float:
        if bool((rows[:, 1] > 0).any()):
            return float("nan")
        support = counts[:, 1].sum(1).numpy()
        values = np.full(len(counts), np.nan)
        for at, curve in enumerate(counts):
            if not self.defined(curve):
                continue
            values[at] = self.area(*curve.numpy().astype(np.float64))
        return float(self.mean_by_client(np.zeros(len(counts), dtype=int), values, support, 1)[0])

    def defined(self, curve: Tensor) -> bool:
        """Whether counts [negative or positive, step] have an area."""
        raise NotImplementedError

    def area(self, negatives: np.ndarray, positives: np.ndarray) -> float:
        """The area of samples counted by steps of their score, from the lowest."""
        raise NotImplementedError

    def by_client(
        self, owner: np.ndarray, score: np.ndarray, positive: np.ndarray, clients: int
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

    def area(self, negatives: np.ndarray, positives: np.ndarray) -> float:
        below = negatives.cumsum() - negatives / 2  # a sample of the same step counts half
        return float((positives * below).sum() / (positives.sum() * negatives.sum()))

    def by_client(
        self, owner: np.ndarray, score: np.ndarray, positive: np.ndarray, clients: int
    ) -> np.ndarray:
        return roc_areas(owner, score, positive, clients)


@built_in
class PrAuc(RankingArea):
    """Average precision: the area under the precision-recall curve, as a sum over its steps.

    As scikit-learn's `average_precision_score`. A client without a positive sample has no value.
    """

    kind = "pr_auc"
    undefined = "no test sample of the positive class"

    def defined(self, curve: Tensor) -> bool:
        return bool(curve[1].sum() > 0)

    def area(self, negatives: np.ndarray, positives: np.ndarray) -> float:
        hits = positives[::-1].cumsum()  # at or above each threshold, from the highest
        samples = hits + negatives[::-1].cumsum()
        precision = np.divide(hits, samples, out=np.zeros_like(hits), where=samples > 0)
        return float((positives[::-1] * precision).sum() / hits[-1])

    def by_client(
        self, owner: np.ndarray, score: np.ndarray, positive: np.ndarray, clients: int
    ) -> np.ndarray:
        return average_precisions(owner, score, positive, clients)


def roc_areas(
    owner: np.ndarray, score: np.ndarray, positive: np.ndarray, clients: int
) -> np.ndarray:  # -> float64[clients]
    """The area of each client, exact: from the mean ranks of its scores (Mann and Whitney).

    scikit-learn's `roc_auc_score` has the same value, in a call of milliseconds per client.

    >>> roc_areas(np.array([0, 0, 0, 1]), np.array([0.1, 0.4, 0.4, 1.0]), np.array([0, 1, 0, 1]), 2)
    array([0.75,  nan])
    """
    order = np.lexsort((score, owner))
    owner, score, positive = owner[order], score[order], positive[order].astype(bool)
    size = np.bincount(owner, minlength=clients)
    first = size.cumsum() - size
    new = np.ones(len(score), dtype=bool)  # begins a run of equal scores of one client
    new[1:] = (score[1:] != score[:-1]) | (owner[1:] != owner[:-1])
    start = np.flatnonzero(new)
    end = np.append(start[1:], len(score)) - 1
    rank = ((start + end) / 2)[new.cumsum() - 1] - first[owner] + 1
    wins = np.bincount(owner[positive], minlength=clients).astype(float)
    losses = size - wins
    total = np.bincount(owner[positive], rank[positive], minlength=clients)
    pairs = np.where((wins > 0) & (losses > 0), wins * losses, np.nan)
    return (total - wins * (wins + 1) / 2) / pairs


def average_precisions(
    owner: np.ndarray, score: np.ndarray, positive: np.ndarray, clients: int
) -> np.ndarray:  # -> float64[clients]
    """The average precision of each client, exact: equal scores are one threshold.

    >>> client, score = np.array([0, 0, 0, 1]), np.array([0.1, 0.4, 0.4, 1.0])
    >>> average_precisions(client, score, np.array([0, 1, 0, 0]), 2)
    array([0.5, nan])
    """
    order = np.lexsort((-score, owner))
    owner, score, positive = owner[order], score[order], positive[order].astype(bool)
    last = np.ones(len(score), dtype=bool)  # ends a run of equal scores of one client
    last[:-1] = (score[1:] != score[:-1]) | (owner[1:] != owner[:-1])
    size = np.bincount(owner, minlength=clients)
    positives = np.bincount(owner[positive], minlength=clients)
    first = size.cumsum() - size
    before = positives.cumsum() - positives  # positive samples of the clients before
    client = owner[last]
    ranked = np.flatnonzero(last) + 1 - first[client]  # samples above each threshold
    hits = positive.cumsum()[last] - before[client]
    # sum over thresholds n of (recall_n - recall_(n-1)) * precision_n
    gained = np.diff(hits, prepend=0)
    begins = np.append(True, client[1:] != client[:-1])[: len(client)]
    gained[begins] = hits[begins]
    total = np.bincount(client, gained * hits / ranked, minlength=clients)
    return np.divide(total, positives, out=np.full(clients, np.nan), where=positives > 0)
