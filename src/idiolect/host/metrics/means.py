"""Metrics that are a mean over samples: a sum and a number of samples per client."""

from __future__ import annotations

import torch
from torch import Tensor

from .metric import Form, Metric, Samples


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
