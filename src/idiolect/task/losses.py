"""Losses as functions of (outputs, targets), a user's own among them, and how samples are weighed.

A loss is written for one model: outputs[n, ...] for n samples. `Loss.of_rows` is the same for the
models of a cohort, [K, B, ...]. It has a hand-written derivative where a kernel profits from one.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.knobs import Knobs, SettingError, knob, nearest
from ..core.registry import PartTable
from ..core.types import Tree, first, leaves, length, map_tree
from .target_scale import TargetScale

IGNORED = -100  # the target that does not count, as in torch


class Loss:
    """The value of every target, its derivative, and which targets are hit.

    A sample may have several targets (the words of a sentence, the pixels of a picture, several
    real values); it then counts with the mean of those that count.
    """

    name = "loss"
    # whether outputs are probabilities as they stand, not logits or log-probabilities
    of_probabilities = False
    # whether samples with one target each may count differently
    weighs_samples = False
    # how it grows with the unit of real targets (squares 2, absolute values 1), of those losses
    # that a run may train on standardised targets; 0 = never
    degree = 0

    def each(self, outputs: Tree, targets: Tree) -> Tensor:
        """outputs[n, ...], targets[n, ...] -> one value per target, or one per sample."""
        raise NotImplementedError

    def delta(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """The derivative of sum(weights * each) with respect to the outputs, features first.

        For one target per output column: outputs[K, C, M], targets[K, M], weights[K, M] ->
        [K, C, M].
        """
        return self.delta_by_autograd(outputs, targets, weights, targets.shape)

    def delta_by_autograd(
        self, outputs: Tensor, targets: Tree, weights: Tensor, lead: torch.Size
    ) -> Tensor:
        """`delta` for any loss and any form of targets[K, B, ...], of outputs[*lead, C]."""
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            by_sample = leaf.transpose(1, 2).unflatten(1, lead[1:])  # [K, B, ..., C]
            return torch.autograd.grad(total(self.of_rows(by_sample, targets), weights), leaf)[0]

    def hits(self, outputs: Tree, targets: Tree) -> Tensor:
        """Which targets are predicted; NaN where a hit has no meaning (real targets)."""
        if not isinstance(targets, Tensor) or targets.is_floating_point():
            target = first(targets)
            return torch.full(target.shape[:1], torch.nan, device=target.device)
        prediction = one_tensor(outputs)
        scores = None if prediction is None else classes_last(prediction, targets)
        if scores is None or scores.shape[-1] == 1:  # no score of each class
            return torch.full(targets.shape, torch.nan, device=targets.device)
        return scores.argmax(-1) == targets

    def probabilities(self, outputs: Tensor, classes: int) -> Tensor | None:  # -> [n, ..., C]
        """The probability of each class; None where outputs are no scores of classes.

        >>> LOSSES["logistic"].probabilities(torch.zeros(1, 1), 2)
        tensor([[0.5000, 0.5000]])
        """
        if outputs.shape[-1] == 1 and classes == 2:
            yes = outputs if self.of_probabilities else outputs.sigmoid()
            return torch.cat([1 - yes, yes], dim=-1)
        if outputs.shape[-1] < max(classes, 2) or not classes:
            return None
        return outputs if self.of_probabilities else outputs.softmax(-1)

    def counts(self, targets: Tree) -> Tensor | None:
        """How much each target counts: None where all of them count alike."""
        return None

    def in_units(self, scale: TargetScale) -> Loss:
        """The loss of outputs and targets in the user's units.

        That is spread^degree times the loss of standardised ones: for squares and absolute values
        the same function.
        """
        return self

    # -- made of these ---------------------------------------------------------------------------
    def weigh(self, weights: Tensor, targets: Tree) -> Tensor:
        """Weights of samples, weights[..., B], as those of targets where these count differently.

        As a torch loss with reduction "mean": the sum of weighed losses over the sum of weights.
        """
        one_each = isinstance(targets, Tensor) and targets.dim() == weights.dim()
        counts = None if one_each and not self.weighs_samples else self.counts(targets)
        if counts is None:
            return weights
        shares = weights.view(*weights.shape, *[1] * (counts.dim() - weights.dim())) * counts
        sums = shares.flatten(weights.dim() - 1).sum(-1)
        sums = torch.where(sums > 0, sums, 1)
        return shares / sums.view(*sums.shape, *[1] * (counts.dim() - sums.dim()))

    def weigh_alone(self, weights: Tensor, targets: Tree) -> Tensor:
        """The same with each sample's share of a sum by itself: a function of that sample alone.

        The value of a sample is the mean over its targets that count, times their class weights.
        """
        one_each = isinstance(targets, Tensor) and targets.dim() == weights.dim()
        counts = None if one_each and not self.weighs_samples else self.counts(targets)
        if counts is None:
            return weights
        counts = counts.to(weights.dtype)
        shares = weights.view(*weights.shape, *[1] * (counts.dim() - weights.dim())) * counts
        if counts.dim() == weights.dim():
            return shares
        number = (counts > 0).flatten(weights.dim()).sum(-1).clamp(min=1)
        return shares / number.view(*number.shape, *[1] * (counts.dim() - number.dim()))

    def of_rows(self, outputs: Tree, targets: Tree) -> Tensor:
        """`each` for the samples of K models: [K, B, ...]."""
        rows = first(targets).shape[:2]
        return self.each(joined(outputs), joined(targets)).unflatten(0, rows)

    def scores(self, outputs: Tree, targets: Tree) -> SampleScores:
        """Hits and loss of each of n samples, and how much each counts in a client's mean."""
        counts = self.counts(targets)
        counted = None if counts is None else counts > 0
        return SampleScores(
            *_mean_of_targets(self.hits(outputs, targets), counted),
            *_mean_of_targets(self.each(outputs, targets), counts),
        )


@dataclass(frozen=True)
class SampleScores:
    """Figures of n samples, float64[n]; a sample with several targets has the mean of them.

    A client's accuracy is the mean of `hits` by `hit_weights`: all targets that count count alike.
    Its loss is the mean of `loss` by `loss_weights`, in which class weights count too: what a torch
    loss says of all its samples together.
    """

    hits: Tensor
    hit_weights: Tensor
    loss: Tensor
    loss_weights: Tensor


def _mean_of_targets(values: Tensor, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """values[n, ...] -> the mean of each sample's targets and the sum of their counts, [n] each."""
    values = values.double().flatten(1) if values.dim() > 1 else values.double().unsqueeze(1)
    if counts is None:
        means = values.mean(1) if values.shape[1] > 1 else values[:, 0]
        return means, torch.full_like(means, values.shape[1])
    shares = counts.double().view_as(values)
    sums = shares.sum(1)
    values = torch.where(shares > 0, values, 0)
    return (values * shares).sum(1) / torch.where(sums > 0, sums, 1), sums


def joined(tree: Tree) -> Tree:
    """[K, B, ...] as [K B, ...]."""
    return map_tree(lambda t: t.flatten(0, 1), tree)


def total(each: Tensor, weights: Tensor) -> Tensor:
    """The weighed sum of all values; one weight per value, or one per sample."""
    return (each * spread(weights, each)).sum()


def spread(weights: Tensor, targets: Tensor) -> Tensor:
    """Sample weights [..., B] as weights of targets [..., B, ...].

    A sample with several targets, such as a sentence, counts with their mean.

    >>> spread(torch.tensor([[1.0, 3.0]]), torch.zeros(1, 2, 2))
    tensor([[[0.5000, 0.5000],
             [1.5000, 1.5000]]])
    """
    if targets.dim() == weights.dim():
        return weights
    many = targets.shape[weights.dim() :].numel()
    lead = (weights / many).view(*weights.shape, *[1] * (targets.dim() - weights.dim()))
    return lead.expand_as(targets)


def logits(outputs: Tree) -> Tensor:
    """The one tensor that a loss with a name takes: the output, or what a dict calls its logits."""
    prediction = one_tensor(outputs)
    if prediction is not None:
        return prediction
    several = "several tensors"
    if isinstance(outputs, dict):
        several = f"a dict of {', '.join(map(repr, outputs))}"
    raise SettingError(
        f"loss: the model returns {several}, and a loss with a name takes one tensor (or a dict "
        "with 'logits'); give a function of (outputs, targets)"
    )


def one_tensor(outputs: Tree) -> Tensor | None:
    """The prediction among the outputs; None where several could be it."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, dict) and isinstance(outputs.get("logits"), Tensor):
        return outputs["logits"]
    tensors = leaves(outputs)
    return tensors[0] if len(tensors) == 1 else None


def classes_last(outputs: Tensor, targets: Tensor, second: bool = False) -> Tensor | None:
    """outputs with an axis of classes, as [*targets.shape, C]; None where there is no such axis.

    Classes are the last axis, or, as in torch (and with `second` before it), the second one.

    >>> tuple(classes_last(torch.zeros(5, 3, 8, 8), torch.zeros(5, 8, 8)).shape)
    (5, 8, 8, 3)
    """
    if outputs.dim() != targets.dim() + 1:
        return None
    is_last = outputs.shape[:-1] == targets.shape
    is_second = outputs.shape[2:] == targets.shape[1:] and len(outputs) == len(targets)
    if is_second and (second or not is_last):
        return outputs.movedim(1, -1)
    return outputs if is_last else None


class CrossEntropy(Loss):
    """-log softmax(outputs)[target]: one output per class. Targets of -100 do not count."""

    name = "cross_entropy"
    second = False  # whether classes are the second axis where two axes could be

    def each(self, outputs: Tree, targets: Tree) -> Tensor:
        scores = classes_last(logits(outputs), targets, self.second)
        if scores is None:
            shapes = f"{tuple(logits(outputs).shape[1:])} for targets {tuple(targets.shape[1:])}"
            raise SettingError(
                f"loss: cross_entropy needs one output per class; the model's outputs are {shapes}"
            )
        return self._flat(scores.flatten(0, -2), targets.flatten()).view(targets.shape)

    def _flat(self, outputs: Tensor, targets: Tensor) -> Tensor:  # [n, C], [n] -> [n]
        return F.cross_entropy(outputs, targets, reduction="none")

    def hits(self, outputs: Tree, targets: Tree) -> Tensor:
        scores = classes_last(logits(outputs), targets, self.second)
        assert scores is not None
        return scores.argmax(-1) == targets

    def counts(self, targets: Tree) -> Tensor | None:
        if targets.dim() < 2:
            return None  # a sample without a target is refused with the data
        counts = targets != IGNORED
        return None if bool(counts.all()) else counts

    def delta(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """weights * (softmax - one hot)."""
        p = outputs.softmax(1).mul_(weights.unsqueeze(1))
        at = targets.clamp(min=0)  # what is ignored has weight 0
        return p.scatter_add_(1, at.unsqueeze(1), weights.neg().unsqueeze(1))


class Squared(Loss):
    """scale * (output - target)^2.

    The linear regression of the papers has scale 1/2, the usual mean squared error 1.
    """

    def __init__(self, name: str, scale: float, degree: int = 0):
        self.name = name
        self.scale = scale
        self.degree = degree

    def each(self, outputs: Tree, targets: Tree) -> Tensor:
        return self.scale * (shaped_as(logits(outputs), targets) - targets) ** 2

    def delta(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return (2 * self.scale * weights * (outputs.squeeze(1) - targets)).unsqueeze(1)


class Logistic(Loss):
    """log(1 + exp(-y x'w)) for y = +1 (class 1) or -1 (class 0): one output.

    The loss of logistic regression in the paper of Chen, Zheng, Long and Su.
    """

    name = "logistic"

    def each(self, outputs: Tree, targets: Tree) -> Tensor:
        scores = shaped_as(logits(outputs), targets)
        sign = 2 * targets.to(scores.dtype) - 1
        return F.softplus(-sign * scores)

    def hits(self, outputs: Tree, targets: Tree) -> Tensor:
        return (shaped_as(logits(outputs), targets) > 0) == (targets > 0)


def shaped_as(outputs: Tensor, targets: Tensor) -> Tensor:
    """outputs[n, 1] for targets[n] as [n]: one output per target."""
    return outputs.squeeze(-1) if outputs.dim() == targets.dim() + 1 else outputs


# -- losses of real targets that outliers pull less, or that are about a quantile ------------------
class Absolute(Loss):
    """|output - target|."""

    name = "l1"
    degree = 1

    def each(self, outputs: Tree, targets: Tree) -> Tensor:
        return (shaped_as(logits(outputs), targets) - targets).abs()

    def delta(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return (weights * (outputs.squeeze(1) - targets).sign()).unsqueeze(1)


class Quantile(Loss):
    """q (target - output) above the output and (1 - q) (output - target) below it (pinball loss).

    Least at the q-quantile of the targets.
    """

    degree = 1

    def __init__(self, q: float = 0.5):
        self.q = q
        self.name = LOSS_OPTIONS.text(QuantileOptions(q))

    def each(self, outputs: Tree, targets: Tree) -> Tensor:
        residual = targets - shaped_as(logits(outputs), targets)
        return torch.maximum(self.q * residual, (self.q - 1) * residual)

    def delta(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        residual = targets - outputs.squeeze(1)
        below, above = residual.new_tensor([-self.q, 1 - self.q])
        slope = torch.where(residual > 0, below, above) * (residual != 0)
        return (weights * slope).unsqueeze(1)


class Huber(Loss):
    """Half the square of a residual up to `threshold`, a straight line beyond: torch's HuberLoss.

    `threshold` may be a tensor, one for each column of several targets.
    """

    degree = 2

    def __init__(self, threshold: float | Tensor = 1.0, name: str = ""):
        self.threshold = threshold
        self.name = name or LOSS_OPTIONS.text(HuberOptions(float(threshold)))

    def each(self, outputs: Tree, targets: Tree) -> Tensor:
        residual = shaped_as(logits(outputs), targets) - targets
        bound = self._bound(residual)
        inner = residual.clamp(-bound, bound)
        return inner * (residual - inner / 2)  # r^2 / 2, or bound (|r| - bound / 2)

    def delta(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        residual = outputs.squeeze(1) - targets
        bound = self._bound(residual)
        return (weights * residual.clamp(-bound, bound)).unsqueeze(1)

    def _bound(self, residual: Tensor) -> Tensor:
        return torch.as_tensor(self.threshold, dtype=residual.dtype, device=residual.device)

    def in_units(self, scale: TargetScale) -> Loss:
        return Huber(torch.tensor(scale.spread).squeeze() * self.threshold, self.name)


class SmoothAbsolute(Huber):
    """torch's SmoothL1Loss: the Huber loss over its threshold, beta."""

    degree = 1

    def __init__(self, threshold: float | Tensor = 1.0, name: str = ""):
        super().__init__(threshold, name or LOSS_OPTIONS.text(SmoothOptions(float(threshold))))

    def each(self, outputs: Tree, targets: Tree) -> Tensor:
        value = super().each(outputs, targets)
        return value / self._bound(value)

    def delta(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return super().delta(outputs, targets, weights) / self._bound(outputs)

    def in_units(self, scale: TargetScale) -> Loss:
        return SmoothAbsolute(torch.tensor(scale.spread).squeeze() * self.threshold, self.name)


class LossOptions(Knobs):
    """The options of a loss that has any."""

    def loss(self) -> Loss:
        raise NotImplementedError


@dataclass(frozen=True)
class HuberOptions(LossOptions):
    """Squares near the target, a line beyond: outliers pull less."""

    delta: float = knob(
        1.0, "residual at which the line begins; standard deviations of the targets", above=0
    )

    def loss(self) -> Loss:
        return Huber(self.delta)


@dataclass(frozen=True)
class SmoothOptions(LossOptions):
    """The Huber loss over beta: slope 1 beyond it."""

    beta: float = knob(
        1.0, "residual at which the line begins; standard deviations of the targets", above=0
    )

    def loss(self) -> Loss:
        return SmoothAbsolute(self.beta)


@dataclass(frozen=True)
class QuantileOptions(LossOptions):
    """The q-quantile of the targets."""

    q: float = knob(0.5, "which quantile; 0.5 is the median", above=0, below=1)

    def loss(self) -> Loss:
        return Quantile(self.q)


LOSS_OPTIONS: PartTable[LossOptions, LossOptions] = PartTable(
    "loss",
    "idiolect.losses",
    {"huber": HuberOptions, "smooth_l1": SmoothOptions, "quantile": QuantileOptions},
    LossOptions,
)
LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        CrossEntropy(),
        Logistic(),
        Squared("mse", 1.0, degree=2),
        Squared("half_squared", 0.5),  # the papers' regressions: on targets as they are
        Absolute(),
        Huber(),
        SmoothAbsolute(),
        Quantile(),
    )
}


def named_loss(text: str) -> Loss:
    """A loss from its name, with options where it has any.

    >>> named_loss("quantile(q=0.9)").name, named_loss("huber(delta=1)").name
    ('quantile(q=0.9)', 'huber')
    """
    if text in LOSSES:
        return LOSSES[text]
    name, bracket, _ = text.partition("(")
    if not bracket or name.strip() not in LOSSES:
        raise nearest(text, LOSSES, "loss")
    if name.strip() not in LOSS_OPTIONS.built_in:
        raise SettingError(f"loss must be {name.strip()!r}, which has no options, got {text!r}")
    return LOSS_OPTIONS.parse(text).loss()


def is_named(text: Any) -> bool:
    """Whether a loss can be made again by this name."""
    try:
        named_loss(str(text))
    except SettingError:
        return False
    return True


# -- standardised targets ----------------------------------------------------------------------
class Standardised(Loss):
    """A loss of standardised targets, for targets in the user's units: what training steps on."""

    def __init__(self, loss: Loss, scale: TargetScale):
        self.loss = loss
        self.scale = scale
        self.name = loss.name
        self.degree = loss.degree

    def each(self, outputs: Tree, targets: Tree) -> Tensor:
        return self.loss.each(outputs, self.scale.standardised(targets))

    def delta(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return self.loss.delta(outputs, self.scale.standardised(targets), weights)


# -- a user's loss: a torch loss or a function, as a `Loss` ----------------------------------------
Given = str | nn.Module | Callable[..., Tensor] | Loss


class TorchClasses(CrossEntropy):
    """nn.CrossEntropyLoss and nn.NLLLoss with their options, exactly as torch averages them.

    With class weights the mean is the weighed one: sum(weight of the target's class * loss) over
    the sum of these weights; targets of `ignore_index` do not count. Classes are the second axis.
    """

    second = True

    def __init__(self, loss: nn.CrossEntropyLoss | nn.NLLLoss):
        self.weight = loss.weight
        self.ignore = loss.ignore_index
        self.weighs_samples = self.weight is not None or self.ignore != IGNORED
        options: dict[str, Any] = {"ignore_index": self.ignore}
        kind = "nll"
        function: Callable[..., Tensor] = F.nll_loss
        if isinstance(loss, nn.CrossEntropyLoss):
            kind = "cross_entropy"
            function = F.cross_entropy
            options["label_smoothing"] = loss.label_smoothing
        self.function: Callable[..., Tensor] = partial(function, reduction="none", **options)
        usual = {"ignore_index": IGNORED, "label_smoothing": 0.0}
        options_text = [f"{n}={v}" for n, v in options.items() if v != usual[n]]
        if self.weight is not None:
            options_text.append(f"weight={[round(w, 6) for w in self.weight.tolist()]}")
        self.name = f"{kind}({', '.join(options_text)})" if options_text else kind

    def _flat(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.ignore != IGNORED:
            targets = targets.where(targets != IGNORED, self.ignore)
        if self.weight is None:
            return self.function(outputs, targets)
        weight = self.weight.to(outputs)
        value = self.function(outputs, targets, weight=weight)
        share = self.counts(targets)
        assert share is not None
        return value / torch.where(share > 0, share, 1).to(value.dtype)

    def _counted(self, targets: Tensor) -> Tensor:
        """Not the loss's own ignored index, nor that of the data."""
        return (targets != self.ignore) & (targets != IGNORED)

    def counts(self, targets: Tree) -> Tensor | None:
        counted = self._counted(targets)
        if self.weight is not None:
            weight = self.weight.to(device=targets.device)
            return torch.where(counted, weight[targets.where(counted, 0)], 0)
        if targets.dim() < 2 and self.ignore == IGNORED:
            return None
        return None if bool(counted.all()) else counted

    def delta(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        if self.name == CrossEntropy.name:
            return super().delta(outputs, targets, weights)
        return self.delta_by_autograd(outputs, targets, weights, targets.shape)


class Binary(Loss):
    """nn.BCEWithLogitsLoss and nn.BCELoss: yes or no, for one output or for several labels."""

    def __init__(self, loss: nn.Module, middle: float):
        self.name = "bce_with_logits" if middle == 0 else "bce"
        self.of_probabilities = middle > 0
        self.function = loss
        self.middle = middle  # outputs above it say yes

    def each(self, outputs: Tree, targets: Tree) -> Tensor:
        scores = shaped_as(logits(outputs), targets)
        if not self.of_probabilities:
            return self.function(scores, targets.to(scores.dtype))
        # torch refuses NaN here, which is a model that has diverged
        value = self.function(scores.nan_to_num(0.5), targets.to(scores.dtype))
        return torch.where(scores.isnan(), scores, value)

    def hits(self, outputs: Tree, targets: Tree) -> Tensor:
        return (shaped_as(logits(outputs), targets) > self.middle) == (targets > 0.5)


class Custom(Loss):
    """A function of (outputs, targets) that returns one value per sample, or one per target.

    It is given what a plain loop gives it, loss(model(x), y): outputs as the model and targets as
    the data have them, for n samples. Only outputs[n, 1] for targets[n] become [n], so that their
    difference is no matrix.
    """

    def __init__(self, function: Callable[..., Tensor], name: str = "", summed: bool = False):
        self.function = function
        self.name = name or getattr(function, "__name__", type(function).__name__)
        self.summed = summed  # whether a sample counts with the sum of its values, not their mean

    def each(self, outputs: Tree, targets: Tree) -> Tensor:
        if isinstance(outputs, Tensor) and isinstance(targets, Tensor):
            outputs = outputs.squeeze(-1) if outputs.shape == (*targets.shape, 1) else outputs
        value = self.function(outputs, targets)
        n = length(targets)
        if isinstance(value, Tensor) and value.dim():
            if len(value) == n:
                return value.flatten(1).sum(1) if self.summed and value.dim() > 1 else value
            # one per target, all in a row
            if isinstance(targets, Tensor) and value.numel() == len(value) == targets.numel():
                return value.view(targets.shape)
        form = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise SettingError(
            f"loss: {self.name} must return one value per sample, or one per target "
            f"(reduction='none'), got {form} for {n} samples: {shapes_text(outputs, targets)}"
        )


def shapes_text(outputs: Tree, targets: Tree) -> str:
    """What a loss is given, for a message."""
    forms = [map_tree(lambda t: tuple(t.shape), tree) for tree in (outputs, targets)]
    return f"outputs of shape {forms[0]}, targets of shape {forms[1]}"


_KNOWN = {
    F.cross_entropy: "cross_entropy",
    F.mse_loss: "mse",
    F.l1_loss: "l1",
    F.huber_loss: "huber",
    F.smooth_l1_loss: "smooth_l1",
}


def as_loss(loss: Given) -> Loss:
    """A loss from a name, a torch loss (of reduction "mean", "batchmean" or "none") or a function.

    >>> as_loss(nn.CrossEntropyLoss()).name, as_loss(nn.BCEWithLogitsLoss()).name
    ('cross_entropy', 'bce_with_logits')
    """
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        return named_loss(loss)
    if isinstance(loss, type) and issubclass(loss, nn.Module):
        raise SettingError(
            f"loss: {loss.__name__} is a class; give an object of it: {loss.__name__}()"
        )
    if isinstance(loss, nn.Module):
        return _of_module(loss)
    if not callable(loss):
        raise SettingError(
            f"loss cannot be {loss!r}; give one of {', '.join(LOSSES)}, a torch loss or a function"
        )
    for function, name in _KNOWN.items():
        if loss is function:
            return LOSSES[name]
    return _of_function(loss)  # type: ignore[arg-type]


def _of_module(loss: nn.Module) -> Loss:
    reduction = getattr(loss, "reduction", "none")
    _check_reduction(loss, reduction)
    _check_parameters(loss.forward, type(loss).__name__)
    if type(loss) is nn.MSELoss:
        return LOSSES["mse"]
    if type(loss) is nn.L1Loss or (type(loss) is nn.SmoothL1Loss and loss.beta == 0):
        return LOSSES["l1"]
    if type(loss) is nn.HuberLoss:
        return Huber(loss.delta)
    if type(loss) is nn.SmoothL1Loss:
        return SmoothAbsolute(loss.beta)
    if type(loss) in (nn.CrossEntropyLoss, nn.NLLLoss):
        return TorchClasses(loss)  # type: ignore[arg-type]
    if hasattr(loss, "reduction"):
        loss = copy.copy(loss)
        setattr(loss, "reduction", "none")  # noqa: B010 (a module's attributes are untyped)
    if type(loss) is nn.BCEWithLogitsLoss:
        return Binary(loss, middle=0.0)
    if type(loss) is nn.BCELoss:
        return Binary(loss, middle=0.5)
    return Custom(loss, summed=reduction == "batchmean")


def _of_function(function: Callable[..., Tensor]) -> Loss:
    inner = getattr(function, "func", function)  # of a partial
    name = getattr(inner, "__name__", type(inner).__name__)
    option = _check_parameters(function, name).get("reduction")
    if option is None:
        return Custom(function, name)
    reduction = "none" if option.default is option.empty else option.default
    _check_reduction(function, reduction)
    return Custom(partial(function, reduction="none"), name, summed=reduction == "batchmean")


def _check_parameters(
    function: Callable[..., Tensor], name: str
) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function that takes (outputs, targets)."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # not written in Python
        return {}
    try:
        signature.bind(None, None)
    except TypeError:
        raise SettingError(
            f"loss: {name} takes {signature}, and a loss takes (outputs, targets); give a function "
            "of these two, which gets all that the model returns and all targets of the data"
        ) from None
    return signature.parameters


def _check_reduction(loss: Callable[..., Tensor], reduction: Any) -> None:
    if reduction in ("mean", "batchmean", "none"):
        return
    hint = "a client's loss is a mean over its samples"
    if reduction == "sum":
        hint += ", so that clients with more data do not take longer steps; scale lr instead"
    name = getattr(loss, "__name__", type(loss).__name__)
    raise SettingError(
        f"loss: the reduction of {name} must be 'mean', 'batchmean' or 'none', got {reduction!r}; "
        + hint
    )
