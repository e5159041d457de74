"""Metrics of predicted labels: counts of (class, predicted class), read by scikit-learn.

All clients go through scikit-learn in one call: class c of client k is label k * C + c there.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from .metric import MOST_CLASSES, Form, Metric, Samples


class Labels(Metric):
    """A metric of a confusion matrix."""

    whole = True

    def refusal(self, form: Form) -> str:
        if form.classes > MOST_CLASSES:
            return f"there are {form.classes} classes, and it takes at most {MOST_CLASSES}"
        return super().refusal(form)

    def width(self, form: Form) -> int:
        return 1

    def shape(self, form: Form) -> Sequence[int]:
        return (form.classes, form.classes)

    def add(self, rows: Tensor, counts: Tensor, samples: Samples) -> None:
        from sklearn.metrics import precision_recall_fscore_support

        classes = samples.form.classes
        cell = samples.labels * classes + samples.predicted
        counts += torch.bincount(cell, minlength=classes**2).view(classes, classes)
        cells, times = torch.unique(
            samples.owners * classes**2 + cell, return_counts=True
        )  # one entry per client, class and predicted class
        rows[samples.owner.unique()] = torch.nan
        if not len(cells):
            return
        client, cell = (cells // classes**2).numpy(), (cells % classes**2).numpy()
        true, predicted = client * classes + cell // classes, client * classes + cell % classes
        _, recall, f1, support = precision_recall_fscore_support(
            true, predicted, average=None, sample_weight=times.numpy(), zero_division=0.0
        )
        labels = np.union1d(true, predicted)
        use = self.used(labels % classes, support, classes)
        owner = labels[use] // classes
        total = np.bincount(owner, self.figure(recall, f1)[use], minlength=len(rows))
        number = np.bincount(owner, minlength=len(rows))
        has_value = number > 0
        rows[torch.from_numpy(has_value), 0] = torch.from_numpy(
            total[has_value] / number[has_value]
        )

    def used(self, label: np.ndarray, support: np.ndarray, classes: int) -> np.ndarray:
        """Which classes of a client the mean is over."""
        raise NotImplementedError

    def figure(self, recall: np.ndarray, f1: np.ndarray) -> np.ndarray:
        """What the mean is of."""
        raise NotImplementedError

    def pooled(self, rows: Tensor, counts: Tensor, sizes: Tensor) -> float:
        true, predicted = counts.nonzero(as_tuple=True)
        if not len(true):
            return float("nan")
        with warnings.catch_warnings():  # of classes that are predicted and never true
            warnings.simplefilter("ignore")
            return self.score(
                true.numpy(), predicted.numpy(), counts[true, predicted].numpy(), len(counts)
            )

    def score(
        self, true: np.ndarray, predicted: np.ndarray, times: np.ndarray, classes: int
    ) -> float:
        """By scikit-learn."""
        raise NotImplementedError


class BalancedAccuracy(Labels):
    """The mean over classes of how often the class is predicted where it is true."""

    name = "balanced_accuracy"

    def used(self, label: np.ndarray, support: np.ndarray, classes: int) -> np.ndarray:
        return support > 0

    def figure(self, recall: np.ndarray, f1: np.ndarray) -> np.ndarray:
        return recall

    def score(
        self, true: np.ndarray, predicted: np.ndarray, times: np.ndarray, classes: int
    ) -> float:
        from sklearn.metrics import balanced_accuracy_score

        return float(balanced_accuracy_score(true, predicted, sample_weight=times))


class F1(Labels):
    """F1 of class 1 of two classes; of more, the mean over the classes that are there (macro).

    A client that neither has nor predicts class 1 of two has no value.
    """

    name = "f1"

    def used(self, label: np.ndarray, support: np.ndarray, classes: int) -> np.ndarray:
        return label == 1 if classes == 2 else np.ones(len(label), dtype=bool)

    def figure(self, recall: np.ndarray, f1: np.ndarray) -> np.ndarray:
        return f1

    def score(
        self, true: np.ndarray, predicted: np.ndarray, times: np.ndarray, classes: int
    ) -> float:
        from sklearn.metrics import f1_score

        if classes == 2 and not (true.any() or predicted.any()):
            return float("nan")
        average = "binary" if classes == 2 else "macro"
        return float(
            f1_score(true, predicted, average=average, sample_weight=times, zero_division=0.0)
        )


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
        has_value = number > 0
        rows[torch.from_numpy(has_value), 0] = torch.from_numpy(
            total[has_value] / number[has_value]
        )

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


class Mean(Metric):
    """A mean of one term per sample, or of `columns` terms, and what is made of the means."""

    def columns(self, form: Form) -> int:
        return 1

    def terms(self, samples: Samples) -> tuple[Tensor, Tensor]:
        """(owner[m], terms[m, columns])."""
        raise NotImplementedError

    def finish(self, means: Tensor) -> Tensor:
        """Means [..., columns] as values [...]."""
        return means.mean(-1)

    def width(self, form: Form) -> int:
        return 1 + self.columns(form)

    def add(self, rows: Tensor, counts: Tensor, samples: Samples) -> None:
        owner, terms = self.terms(samples)
        ones = torch.ones(len(owner), 1, dtype=torch.float64)
        rows.index_add_(0, owner, torch.cat([ones, terms], 1))

    def each(self, rows: Tensor) -> Tensor:
        n = rows[:, :1]
        return self.finish(rows[:, 1:] / torch.where(n > 0, n, torch.nan))

    def pooled(self, rows: Tensor, counts: Tensor, sizes: Tensor) -> float:
        return float(self.each(rows.sum(0, keepdim=True))[0])


class LogLoss(Mean):
    """-log p(class), natural logarithm, as scikit-learn's `log_loss`."""

    name = "log_loss"
    higher = False

    def terms(self, samples: Samples) -> tuple[Tensor, Tensor]:
        at = samples.labels.unsqueeze(1)
        return samples.owners, -samples.log_probabilities.gather(1, at)


class Perplexity(LogLoss):
    """exp of the mean of -log p(class)."""

    name = "perplexity"

    def finish(self, means: Tensor) -> Tensor:
        return means.squeeze(-1).exp()


class Brier(Mean):
    """Squared error of the probabilities: of class 1 of two classes, summed over more classes.

    As scikit-learn's `brier_score_loss`.
    """

    name = "brier"
    higher = False

    def terms(self, samples: Samples) -> tuple[Tensor, Tensor]:
        p = samples.log_probabilities.exp()
        p[torch.arange(len(p)), samples.labels] -= 1
        squares = p[:, 1:] if samples.form.classes == 2 else p
        return samples.owners, squares.square().sum(1, keepdim=True)


class TopK(Mean):
    """How often the class is among the k most probable ones."""

    def __init__(self, k: int):
        self.k = k
        self.name = f"top_{k}"

    def refusal(self, form: Form) -> str:
        if form.classes and self.k >= form.classes:
            return f"of {form.classes} classes the {self.k} most probable are all"
        return super().refusal(form)

    def terms(self, samples: Samples) -> tuple[Tensor, Tensor]:
        best = samples.log_probabilities.topk(self.k, 1).indices
        hits = (best == samples.labels.unsqueeze(1)).any(1, keepdim=True)
        return samples.owners, hits.double()


class NextWordAccuracy(Mean):
    """How often the next word is predicted, where it is a word of the vocabulary.

    Targets that are special tokens (padding, unknown, begin and end of a sentence) are left out, as
    in the papers of FFGG and Pillutla et al.; predicting one where a word follows is a miss. Which
    they are the data say, or the name: next_word_accuracy_0_3 leaves out 0 and 3.
    """

    def __init__(self, ignored: tuple[int, ...] | None = None):
        self.ignored = ignored
        self.name = "_".join(["next_word_accuracy", *map(str, ignored or ())])

    def refusal(self, form: Form) -> str:
        if form.classes and self._special(form) == ():
            return (
                "the data name no special tokens; give them with the data: "
                "from_arrays(..., special=[0, 1]), or in the name: next_word_accuracy_0_1"
            )
        if form.classes and max(self._special(form)) >= form.classes:
            return f"there are {form.classes} tokens, and {max(self._special(form))} is none"
        return super().refusal(form)

    def _special(self, form: Form) -> tuple[int, ...]:
        return form.special if self.ignored is None else self.ignored

    def terms(self, samples: Samples) -> tuple[Tensor, Tensor]:
        words = ~torch.isin(samples.labels, torch.tensor(self._special(samples.form)))
        hits = (samples.predicted == samples.labels)[words]
        return samples.owners[words], hits.double().unsqueeze(1)


class Rmse(Mean):
    """The root of the mean squared error; of several targets the mean of their roots."""

    name = "rmse"
    higher = False
    needs = "values"

    def columns(self, form: Form) -> int:
        return form.targets

    def terms(self, samples: Samples) -> tuple[Tensor, Tensor]:
        predicted, targets = samples.values
        return samples.owner, (predicted - targets).square()

    def finish(self, means: Tensor) -> Tensor:
        return means.sqrt().mean(-1)


class Mae(Rmse):
    """The mean absolute error."""

    name = "mae"

    def terms(self, samples: Samples) -> tuple[Tensor, Tensor]:
        predicted, targets = samples.values
        return samples.owner, (predicted - targets).abs()

    def finish(self, means: Tensor) -> Tensor:
        return means.mean(-1)


BINS = 15


class CalibrationError(Metric):
    """How far confidence is from accuracy: the mean over 15 equal bins of the highest probability.

    Guo, Pleiss, Sun and Weinberger (2017); as torchmetrics' `multiclass_calibration_error`.
    """

    name = "calibration_error"
    higher = False

    def width(self, form: Form) -> int:
        return 3 * BINS  # samples, confidences and hits of every bin

    def add(self, rows: Tensor, counts: Tensor, samples: Samples) -> None:
        confidence = samples.log_probabilities.exp().amax(1)
        bins = (confidence.nan_to_num(1.0) * BINS).long().clamp(0, BINS - 1)
        at = samples.owners * BINS + bins
        hits = (samples.predicted == samples.labels).double()
        terms = torch.stack([torch.ones_like(hits), confidence, hits], 1)
        rows.view(-1, 3).index_add_(0, at, terms)

    def each(self, rows: Tensor) -> Tensor:
        bins = rows.view(len(rows), BINS, 3)
        samples = bins[..., 0].sum(1)
        gap = (bins[..., 1] - bins[..., 2]).abs().sum(1)
        return gap / torch.where(samples > 0, samples, torch.nan)

    def pooled(self, rows: Tensor, counts: Tensor, sizes: Tensor) -> float:
        return float(self.each(rows.sum(0, keepdim=True))[0])


class R2(Metric):
    """1 - squared error / squared distance from the mean, of several targets the mean over them.

    The mean is that of the client's own samples; pooled, that of all samples. A client with fewer
    than two samples, or whose targets are all equal, has no value.
    """

    name = "r2"
    needs = "values"
    whole = True

    def width(self, form: Form) -> int:
        return 1 + 3 * form.targets  # samples; mean, squared distance from it, squared error

    def add(self, rows: Tensor, counts: Tensor, samples: Samples) -> None:
        owner = samples.owner
        predicted, targets = samples.values

        def summed(terms: Tensor) -> Tensor:
            return torch.zeros(len(rows), terms.shape[1], dtype=torch.float64).index_add_(
                0, owner, terms
            )

        n = summed(torch.ones_like(targets[:, :1]))
        mean = summed(targets) / n.clamp(min=1)
        spread = summed((targets - mean[owner]).square())
        error = summed((predicted - targets).square())
        has_samples = n[:, 0] > 0
        rows[has_samples] = torch.cat([n, mean, spread, error], 1)[has_samples]

    def each(self, rows: Tensor) -> Tensor:
        n = rows[:, :1]
        _, spread, error = rows[:, 1:].chunk(3, 1)
        has_value = (n > 1) & (spread > 0)
        return torch.where(has_value, 1 - error / spread, torch.nan).nanmean(1)

    def pooled(self, rows: Tensor, counts: Tensor, sizes: Tensor) -> float:
        n = rows[:, :1]
        mean, spread, error = rows[:, 1:].chunk(3, 1)
        middle = (n * mean).sum(0) / n.sum()
        spread = (spread + n * (mean - middle).square()).sum(0)
        total = torch.cat([n.sum(0), middle, spread, error.sum(0)])
        return float(self.each(total.unsqueeze(0))[0])
