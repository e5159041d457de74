"""Built-in metrics that are means over samples: of probabilities and of real targets."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from ...core.knobs import SettingError
from .catalogue import built_in
from .metric import EvaluatedSamples, Metric, TargetForm

Terms = tuple[Tensor, Tensor, Tensor]  # owner[m], mass[m], terms[m, columns]


# -- of probabilities ------------------------------------------------------------------------------
class SampleMean(Metric):
    """A mean of one term per sample, or of `columns` terms, and what is made of the means."""

    weighs = True

    def columns(self, form: TargetForm) -> int:
        return 1

    def terms(self, samples: EvaluatedSamples) -> Terms:
        """(owner[m], mass[m], terms[m, columns])."""
        raise NotImplementedError

    def finish(self, means: Tensor) -> Tensor:
        """Means [..., columns] as values [...]."""
        return means.mean(-1)

    def width(self, form: TargetForm) -> int:
        return 1 + self.columns(form)

    def add(self, rows: Tensor, counts: Tensor, samples: EvaluatedSamples) -> None:
        owner, mass, terms = self.terms(samples)
        mass = mass.unsqueeze(1)
        rows.index_add_(0, owner, torch.cat([mass, mass * terms], 1))

    def each(self, rows: Tensor) -> Tensor:
        n = rows[:, :1]
        return self.finish(rows[:, 1:] / torch.where(n > 0, n, torch.nan))


@built_in
class LogLoss(SampleMean):
    """-log p(class), natural logarithm, as scikit-learn's `log_loss`."""

    name = "log_loss"
    higher = False

    def terms(self, samples: EvaluatedSamples) -> Terms:
        at = samples.labels.unsqueeze(1)
        return samples.owners, samples.target_masses, -samples.log_probabilities.gather(1, at)


@built_in
class Brier(SampleMean):
    """Squared error of the probabilities: of class 1 of two classes, summed over more classes.

    As scikit-learn's `brier_score_loss`.
    """

    name = "brier"
    higher = False

    def terms(self, samples: EvaluatedSamples) -> Terms:
        p = samples.log_probabilities.exp()
        p[torch.arange(len(p)), samples.labels] -= 1
        squares = p[:, 1:] if samples.form.classes == 2 else p
        return samples.owners, samples.target_masses, squares.square().sum(1, keepdim=True)


BINS = 15


@built_in
class CalibrationError(Metric):
    """How far confidence is from accuracy: the mean over 15 equal bins of the highest probability.

    Guo, Pleiss, Sun and Weinberger (2017); as torchmetrics' `multiclass_calibration_error`.
    """

    name = "calibration_error"
    higher = False
    weighs = True

    def width(self, form: TargetForm) -> int:
        # of every bin: samples, confidences and hits; where samples have weights, sums of weights,
        # then how many samples there are, and the squares of their weights
        return (5 if form.weighted else 3) * BINS

    def add(self, rows: Tensor, counts: Tensor, samples: EvaluatedSamples) -> None:
        confidence = samples.log_probabilities.exp().amax(1)
        bins = (confidence.nan_to_num(1.0) * BINS).long().clamp(0, BINS - 1)
        at = samples.owners * BINS + bins
        hits = (samples.predicted == samples.labels).double()
        ones, mass = torch.ones_like(hits), samples.target_masses
        terms = torch.stack([ones, confidence, hits], 1) * mass.unsqueeze(1)
        if samples.form.weighted:
            terms = torch.cat([terms, torch.stack([ones, mass.square()], 1)], 1)
        rows.view(-1, terms.shape[1]).index_add_(0, at, terms)

    @staticmethod
    def curve(row: Tensor) -> list[dict[str, float]]:
        """The reliability curve of one client: the bins that have samples, from low to high.

        "effective": as how many samples of one weight they say, (sum w)^2 / sum w^2.
        """
        return [
            {
                "low": number / BINS,
                "high": (number + 1) / BINS,
                "samples": weights[0] if weights else mass,
                "confidence": confidence / mass,
                "accuracy": hits / mass,
                "effective": mass**2 / weights[1] if weights else mass,
            }
            for number, (mass, confidence, hits, *weights) in enumerate(row.view(BINS, -1).tolist())
            if mass
        ]

    def each(self, rows: Tensor) -> Tensor:
        bins = rows.unflatten(1, (BINS, -1))
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

    def terms(self, samples: EvaluatedSamples) -> Terms:
        best = samples.log_probabilities.topk(self.k, 1).indices
        hits = (best == samples.labels.unsqueeze(1)).any(1, keepdim=True)
        return samples.owners, samples.target_masses, hits.double()


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

    def terms(self, samples: EvaluatedSamples) -> Terms:
        words = ~torch.isin(samples.labels, torch.tensor(self._special(samples.form)))
        hits = (samples.predicted == samples.labels)[words]
        return samples.owners[words], samples.target_masses[words], hits.double().unsqueeze(1)


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

    def terms(self, samples: EvaluatedSamples) -> Terms:
        predicted, targets = samples.values
        return samples.owner, samples.masses, (predicted - targets).square()

    def finish(self, means: Tensor) -> Tensor:
        return means.sqrt().mean(-1)


@built_in
class Mae(TargetMean):
    """The mean absolute error; of several targets the mean over them."""

    name = "mae"

    def terms(self, samples: EvaluatedSamples) -> Terms:
        predicted, targets = samples.values
        return samples.owner, samples.masses, (predicted - targets).abs()


@built_in
class R2(Metric):
    """1 - squared error / squared distance from the mean, of several targets the mean over them.

    The mean is that of the client's own samples; pooled, that of all samples. A client with fewer
    than two samples, or whose targets are all equal, has no value.
    """

    name = "r2"
    needs = "values"
    whole = True
    weighs = True
    undefined = "fewer than two test samples, or all targets equal"

    def width(self, form: TargetForm) -> int:
        # samples; what they weigh; mean, squared distance from it, squared error
        return 2 + 3 * form.targets

    def add(self, rows: Tensor, counts: Tensor, samples: EvaluatedSamples) -> None:
        owner = samples.owner
        predicted, targets = samples.values

        weights = samples.masses.unsqueeze(1)

        def summed(terms: Tensor) -> Tensor:
            return torch.zeros(len(rows), terms.shape[1], dtype=torch.float64).index_add_(
                0, owner, terms
            )

        n, mass = summed(torch.ones_like(weights)), summed(weights)
        mean = summed(weights * targets) / torch.where(n > 0, mass, 1)
        spread = summed(weights * (targets - mean[owner]).square())
        error = summed(weights * (predicted - targets).square())
        has_samples = n[:, 0] > 0
        rows[has_samples] = torch.cat([n, mass, mean, spread, error], 1)[has_samples]

    def each(self, rows: Tensor) -> Tensor:
        n = rows[:, :1]
        _, spread, error = rows[:, 2:].chunk(3, 1)
        has_value = (n > 1) & (spread > 0)
        return torch.where(has_value, 1 - error / spread, torch.nan).nanmean(1)

    def pooled(self, rows: Tensor, counts: Tensor, masses: Tensor) -> float:
        n, mass = rows[:, :1], rows[:, 1:2]
        mean, spread, error = rows[:, 2:].chunk(3, 1)
        middle = (mass * mean).sum(0) / mass.sum()
        spread = (spread + mass * (mean - middle).square()).sum(0)
        total = torch.cat([n.sum(0), mass.sum(0), middle, spread, error.sum(0)])
        return float(self.each(total.unsqueeze(0))[0])
