"""The built-in metrics, each registered where it is defined: a new one is one class here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ...core.knobs import SettingError
from .metric import EvaluatedSamples, Metric, TargetForm


class RunFigure(Metric):
    """Accuracy or loss: every run has it, so that nothing more is counted."""

    counted = False

    def __init__(self, name: str, higher: bool, needs: str):
        self.name = name
        self.higher = higher
        self.needs = needs


ALWAYS = {
    "accuracy": RunFigure("accuracy", True, "classes"),
    "loss": RunFigure("loss", False, "any"),
}
# in the order in which users are shown them
BUILT_IN: dict[str, Metric] = {"accuracy": ALWAYS["accuracy"]}
Kind = TypeVar("Kind", bound=type[Metric])


def built_in(kind: Kind) -> Kind:
    """Offer a metric by its name."""
    metric = kind()
    BUILT_IN[metric.name] = metric
    return kind


# -- of a confusion matrix -------------------------------------------------------------------------
MOST_CLASSES = 1000  # of metrics that count by pairs of classes or by class and score


def too_many(form: TargetForm) -> str:
    """Why a metric that counts by class cannot be had; "" where it can."""
    if form.classes <= MOST_CLASSES:
        return ""
    return f"there are {form.classes} classes, and it takes at most {MOST_CLASSES}"


class ClassMean(Metric):
    """A mean over classes, of each client and of the confusion matrix of all."""

    whole = True

    def refusal(self, form: TargetForm) -> str:
        return too_many(form) or super().refusal(form)

    def width(self, form: TargetForm) -> int:
        return 1

    def shape(self, form: TargetForm) -> Sequence[int]:
        return (form.classes, form.classes)

    def add(self, rows: Tensor, counts: Tensor, samples: EvaluatedSamples) -> None:
        classes = samples.form.classes
        cell = samples.labels * classes + samples.predicted
        counts += torch.bincount(cell, minlength=classes**2).view(classes, classes)
        client_cell = samples.owners * classes**2 + cell
        cells, times = torch.unique(client_cell, return_counts=True)
        owner, values = self._of_classes(cells.numpy(), times.numpy(), classes)
        total = np.bincount(owner, values, minlength=len(rows))
        number = np.bincount(owner, minlength=len(rows))
        has_value = number > 0
        rows[samples.owner.unique()] = torch.nan
        rows[torch.from_numpy(has_value), 0] = torch.from_numpy(
            total[has_value] / number[has_value]
        )

    def pooled(self, rows: Tensor, counts: Tensor, sizes: Tensor) -> float:
        cells = counts.flatten().nonzero()[:, 0]
        times = counts.flatten()[cells]
        _, values = self._of_classes(cells.numpy(), times.numpy(), len(counts))
        return float(values.mean()) if len(values) else float("nan")

    def _of_classes(
        self, cells: np.ndarray, times: np.ndarray, classes: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """(client, value) of every class of a client that counts.

        A cell is (client * classes + class) * classes + predicted class; `times`: how often it
        occurs.
        """
        true, predicted = cells // classes, cells // classes**2 * classes + cells % classes
        labels, at = np.unique(np.concatenate([true, predicted]), return_inverse=True)
        at_true, at_predicted = at[: len(cells)], at[len(cells) :]
        right = true == predicted
        hits = np.bincount(at_true[right], times[right], minlength=len(labels))
        support = np.bincount(at_true, times, minlength=len(labels))
        predictions = np.bincount(at_predicted, times, minlength=len(labels))
        use = self.used(labels % classes, support, classes)
        values = self.value(hits[use], support[use], predictions[use])
        return labels[use] // classes, values

    def used(self, label: np.ndarray, support: np.ndarray, classes: int) -> np.ndarray:
        """Which classes the mean is over, of those that are there or predicted."""
        raise NotImplementedError

    def value(self, hits: np.ndarray, support: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        """The value of a class that is there so often, predicted so often, and both so often."""
        raise NotImplementedError


@built_in
class BalancedAccuracy(ClassMean):
    """The mean over classes of how often the class is predicted where it is true."""

    name = "balanced_accuracy"

    def used(self, label: np.ndarray, support: np.ndarray, classes: int) -> np.ndarray:
        return support > 0

    def value(self, hits: np.ndarray, support: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        return hits / support


# -- of ranked scores ------------------------------------------------------------------------------
STEP = 0.01
STEPS = 4001


@built_in
class Auc(Metric):
    """Of class 1 of two classes; of more, each against the rest, the mean over classes (macro).

    A client whose samples are all of one class has no value. Of more than two classes the mean is
    over those that the client has.
    """

    name = "auc"
    whole = True
    undefined = "all test samples of one class"

    def refusal(self, form: TargetForm) -> str:
        one = "all samples are of one class" if form.classes == 1 else ""
        return too_many(form) or one or super().refusal(form)

    def width(self, form: TargetForm) -> int:
        return 2  # the value, and whether any score was not a number

    def shape(self, form: TargetForm) -> Sequence[int]:
        return (1 if form.classes == 2 else form.classes, 2, STEPS)

    def add(self, rows: Tensor, counts: Tensor, samples: EvaluatedSamples) -> None:
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
    new[1:] = (score[1:] != score[:-1]) | (owner[1:] != owner[:-1])
    start = np.flatnonzero(new)
    end = np.append(start[1:], len(score)) - 1
    rank = ((start + end) / 2)[new.cumsum() - 1] - first[owner] + 1
    wins = np.bincount(owner[positive], minlength=clients).astype(float)
    losses = size - wins
    total = np.bincount(owner[positive], rank[positive], minlength=clients)
    pairs = np.where((wins > 0) & (losses > 0), wins * losses, np.nan)
    return (total - wins * (wins + 1) / 2) / pairs


@built_in
class F1(ClassMean):
    """F1 of class 1 of two classes; of more, the mean over the classes that are there (macro).

    A client that neither has nor predicts class 1 of two has no value.
    """

    name = "f1"
    undefined = "class 1 neither there nor predicted"

    def used(self, label: np.ndarray, support: np.ndarray, classes: int) -> np.ndarray:
        return label == 1 if classes == 2 else np.ones(len(label), dtype=bool)

    def value(self, hits: np.ndarray, support: np.ndarray, predictions: np.ndarray) -> np.ndarray:
        return 2 * hits / (support + predictions)


# -- of probabilities ------------------------------------------------------------------------------
class SampleMean(Metric):
    """A mean of one term per sample, or of `columns` terms, and what is made of the means."""

    def columns(self, form: TargetForm) -> int:
        return 1

    def terms(self, samples: EvaluatedSamples) -> tuple[Tensor, Tensor]:
        """(owner[m], terms[m, columns])."""
        raise NotImplementedError

    def finish(self, means: Tensor) -> Tensor:
        """Means [..., columns] as values [...]."""
        return means.mean(-1)

    def width(self, form: TargetForm) -> int:
        return 1 + self.columns(form)

    def add(self, rows: Tensor, counts: Tensor, samples: EvaluatedSamples) -> None:
        owner, terms = self.terms(samples)
        ones = torch.ones(len(owner), 1, dtype=torch.float64)
        rows.index_add_(0, owner, torch.cat([ones, terms], 1))

    def each(self, rows: Tensor) -> Tensor:
        n = rows[:, :1]
        return self.finish(rows[:, 1:] / torch.where(n > 0, n, torch.nan))


@built_in
class LogLoss(SampleMean):
    """-log p(class), natural logarithm, as scikit-learn's `log_loss`."""

    name = "log_loss"
    higher = False

    def terms(self, samples: EvaluatedSamples) -> tuple[Tensor, Tensor]:
        at = samples.labels.unsqueeze(1)
        return samples.owners, -samples.log_probabilities.gather(1, at)


@built_in
class Brier(SampleMean):
    """Squared error of the probabilities: of class 1 of two classes, summed over more classes.

    As scikit-learn's `brier_score_loss`.
    """

    name = "brier"
    higher = False

    def terms(self, samples: EvaluatedSamples) -> tuple[Tensor, Tensor]:
        p = samples.log_probabilities.exp()
        p[torch.arange(len(p)), samples.labels] -= 1
        squares = p[:, 1:] if samples.form.classes == 2 else p
        return samples.owners, squares.square().sum(1, keepdim=True)


BINS = 15


@built_in
class CalibrationError(Metric):
    """How far confidence is from accuracy: the mean over 15 equal bins of the highest probability.

    Guo, Pleiss, Sun and Weinberger (2017); as torchmetrics' `multiclass_calibration_error`.
    """

    name = "calibration_error"
    higher = False

    def width(self, form: TargetForm) -> int:
        return 3 * BINS  # samples, confidences and hits of every bin

    def add(self, rows: Tensor, counts: Tensor, samples: EvaluatedSamples) -> None:
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


@built_in
class TopKAccuracy(SampleMean):
    """How often the class is among the k most probable ones."""

    def __init__(self, k: int = 5):
        self.k = k
        self.name = f"top_{k}"

    @classmethod
    def named(cls, name: str) -> Metric | None:
        if name == "top_k":
            raise SettingError("metrics must say how many, such as 'top_5', got 'top_k'")
        match = re.fullmatch(r"top_([1-9]\d{0,5})", name)
        return cls(int(match[1])) if match else None

    def refusal(self, form: TargetForm) -> str:
        if form.classes and self.k >= form.classes:
            return f"of {form.classes} classes the {self.k} most probable are all"
        return super().refusal(form)

    def terms(self, samples: EvaluatedSamples) -> tuple[Tensor, Tensor]:
        best = samples.log_probabilities.topk(self.k, 1).indices
        hits = (best == samples.labels.unsqueeze(1)).any(1, keepdim=True)
        return samples.owners, hits.double()


@built_in
class Perplexity(LogLoss):
    """exp of the mean of -log p(class)."""

    name = "perplexity"

    def finish(self, means: Tensor) -> Tensor:
        return means.squeeze(-1).exp()


@built_in
class NextWordAccuracy(SampleMean):
    """How often the next word is predicted, where it is a word of the vocabulary.

    Targets that are special tokens (padding, unknown, begin and end of a sentence) are left out, as
    in the papers of FFGG and Pillutla et al.; predicting one where a word follows is a miss. Which
    they are the data say, or the name: next_word_accuracy_0_3 leaves out 0 and 3.
    """

    undefined = "all targets are special tokens"

    def __init__(self, ignored: tuple[int, ...] | None = None):
        self.ignored = ignored
        self.name = "_".join(["next_word_accuracy", *map(str, ignored or ())])

    @classmethod
    def named(cls, name: str) -> Metric | None:
        match = re.fullmatch(r"next_word_accuracy((?:_\d{1,7})+)", name)
        return cls(tuple(sorted({int(t) for t in match[1].split("_")[1:]}))) if match else None

    def refusal(self, form: TargetForm) -> str:
        if form.classes and self._special(form) == ():
            return (
                "the data name no special tokens; give them with the data: "
                "from_arrays(..., special=[0, 1]), or in the name: next_word_accuracy_0_1"
            )
        if form.classes and max(self._special(form)) >= form.classes:
            return f"there are {form.classes} tokens, and {max(self._special(form))} is none"
        return super().refusal(form)

    def _special(self, form: TargetForm) -> tuple[int, ...]:
        return form.special if self.ignored is None else self.ignored

    def terms(self, samples: EvaluatedSamples) -> tuple[Tensor, Tensor]:
        words = ~torch.isin(samples.labels, torch.tensor(self._special(samples.form)))
        hits = (samples.predicted == samples.labels)[words]
        return samples.owners[words], hits.double().unsqueeze(1)


# -- of real targets -------------------------------------------------------------------------------
class TargetMean(SampleMean):
    """A mean error of each target, and the mean over targets."""

    higher = False
    needs = "values"

    def columns(self, form: TargetForm) -> int:
        return form.targets


@built_in
class Rmse(TargetMean):
    """The root of the mean squared error; of several targets the mean of their roots."""

    name = "rmse"

    def terms(self, samples: EvaluatedSamples) -> tuple[Tensor, Tensor]:
        predicted, targets = samples.values
        return samples.owner, (predicted - targets).square()

    def finish(self, means: Tensor) -> Tensor:
        return means.sqrt().mean(-1)


@built_in
class Mae(TargetMean):
    """The mean absolute error; of several targets the mean over them."""

    name = "mae"

    def terms(self, samples: EvaluatedSamples) -> tuple[Tensor, Tensor]:
        predicted, targets = samples.values
        return samples.owner, (predicted - targets).abs()


@built_in
class R2(Metric):
    """1 - squared error / squared distance from the mean, of several targets the mean over them.

    The mean is that of the client's own samples; pooled, that of all samples. A client with fewer
    than two samples, or whose targets are all equal, has no value.
    """

    name = "r2"
    needs = "values"
    whole = True
    undefined = "fewer than two test samples, or all targets equal"

    def width(self, form: TargetForm) -> int:
        return 1 + 3 * form.targets  # samples; mean, squared distance from it, squared error

    def add(self, rows: Tensor, counts: Tensor, samples: EvaluatedSamples) -> None:
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
