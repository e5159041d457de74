"""The area under the ROC curve.

Of a client it is exact. Pooled it comes from how often each score was given, which is all that
leaves a host: scores are log-odds in steps of 0.01 from -20 to 20, and scores of one step are ties.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .metric import MOST_CLASSES, Form, Metric, Samples

STEP = 0.01
STEPS = 4001


class Auc(Metric):
    """Of class 1 of two classes; of more, each against the rest, the mean over classes (macro).

    A client whose samples are all of one class has no value. Of more than two classes the mean is
    over those that the client has.
    """

    name = "auc"
    whole = True

    def refusal(self, form: Form) -> str:
        if form.classes > MOST_CLASSES:
            return f"there are {form.classes} classes, and it takes at most {MOST_CLASSES}"
        if form.classes == 1:
            return "all samples are of one class"
        return super().refusal(form)

    def width(self, form: Form) -> int:
        return 2  # the value, and whether any score was not a number

    def shape(self, form: Form) -> Sequence[int]:
        return (_curves(form.classes), 2, STEPS)

    def add(self, rows: Tensor, counts: Tensor, samples: Samples) -> None:
        owner = samples.owners
        scores = _log_odds(samples.log_probabilities)
        broken = scores.isnan().any(1)
        rows[samples.owner.unique(), 0] = torch.nan
        rows[owner[broken], 1] = 1.0
        sound = rows[owner, 1] == 0
        owner, scores, labels = owner[sound], scores[sound], samples.labels[sound]
        total, number = np.zeros(len(rows)), np.zeros(len(rows))
        for at, curve in enumerate(scores.unbind(1)):
            positive = labels == (at if len(counts) > 1 else 1)
            step = ((curve / STEP).round() + STEPS // 2).clamp(0, STEPS - 1).long()
            cell = positive * STEPS + step
            counts[at] += torch.bincount(cell, minlength=2 * STEPS).view(2, STEPS)
            each = by_client(owner.numpy(), curve.numpy(), positive.numpy(), len(rows))
            total += np.nan_to_num(each)
            number += ~np.isnan(each)
        found = number > 0
        rows[torch.from_numpy(found), 0] = torch.from_numpy(total[found] / number[found])

    def pooled(self, rows: Tensor, counts: Tensor, sizes: Tensor) -> float:
        from sklearn.metrics import roc_auc_score

        if bool((rows[:, 1] > 0).any()):
            return float("nan")
        values = []
        for curve in counts:
            if not bool((curve.sum(1) > 0).all()):
                continue
            positive, step = curve.nonzero(as_tuple=True)
            times = curve[positive, step]
            values.append(
                roc_auc_score(positive.numpy(), step.numpy(), sample_weight=times.numpy())
            )
        return float(np.mean(values)) if values else float("nan")


def _curves(classes: int) -> int:
    return 1 if classes == 2 else classes


def _log_odds(logs: Tensor) -> Tensor:
    """log p - log(1 - p) of class 1 of two, or of every class: float64[m, curves]."""
    if logs.shape[1] == 2:
        return logs[:, 1:] - logs[:, :1]
    return logs - (-torch.expm1(logs)).log()


def by_client(
    owner: np.ndarray, score: np.ndarray, positive: np.ndarray, clients: int
) -> np.ndarray:  # -> float64[clients]
    """The area of each client, exact: from the mean ranks of its scores (Mann and Whitney).

    scikit-learn's `roc_auc_score` has the same value, in a call of milliseconds per client.

    >>> by_client(np.array([0, 0, 0, 1]), np.array([0.1, 0.4, 0.4, 1.0]), np.array([0, 1, 0, 1]), 2)
    array([0.75,  nan])
    """
    order = np.lexsort((score, owner))
    owner, score, positive = owner[order], score[order], positive[order].astype(bool)
    size = np.bincount(owner, minlength=clients)
    first = size.cumsum() - size
    new = np.ones(len(score), dtype=bool)  # begins a run of equal scores of one client
    new[1:] = (np.diff(score) != 0) | (np.diff(owner) != 0)
    start = np.flatnonzero(new)
    end = np.append(start[1:], len(score)) - 1
    rank = ((start + end) / 2)[new.cumsum() - 1] - first[owner] + 1
    wins = np.bincount(owner[positive], minlength=clients).astype(float)
    losses = size - wins
    total = np.bincount(owner[positive], rank[positive], minlength=clients)
    pairs = np.where((wins > 0) & (losses > 0), wins * losses, np.nan)
    return (total - wins * (wins + 1) / 2) / pairs
