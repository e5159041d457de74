"""Losses as users give them, and what each is in plain torch: the mean over a client's samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def scores_of(outputs: Any) -> Tensor:
    """The one tensor that a loss of torch takes."""
    if isinstance(outputs, dict):
        return outputs["logits"]
    return outputs


def shaped(outputs: Any, targets: Tensor) -> Tensor:
    """One output for each target."""
    scores = scores_of(outputs)
    return scores.squeeze(-1) if scores.dim() == targets.dim() + 1 else scores


# -- own functions: one value per sample -----------------------------------------------------------
def focal(outputs: Any, targets: Tensor) -> Tensor:
    scores = scores_of(outputs)
    loss = F.cross_entropy(scores.flatten(0, -2), targets.flatten(), reduction="none")
    return ((1 - torch.exp(-loss)) ** 2 * loss).view(targets.shape)


def contrastive(outputs: Any, targets: Tensor) -> Tensor:
    """Looks across samples: those of one class are to be alike."""
    z = F.normalize(scores_of(outputs) + 1e-3, dim=-1)
    alike = z @ z.T / 0.5
    same = (targets[:, None] == targets[None]).to(z.dtype)
    return torch.logsumexp(alike, 1) - (alike * same).sum(1) / same.sum(1)


def ranking(outputs: Any, targets: Tensor) -> Tensor:
    """Looks across samples: outputs in the order of their targets."""
    score = shaped(outputs, targets)
    order = (targets[:, None] - targets[None]).sign()
    return F.softplus(-order * (score[:, None] - score[None])).mean(1)


def quantile(outputs: Any, targets: Tensor) -> Tensor:
    gap = targets - shaped(outputs, targets)
    return torch.maximum(0.8 * gap, -0.2 * gap)


def several_outputs(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).abs().mean(-1)


def any_label(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.softplus(outputs * (1 - 2 * targets)).mean(-1)


def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    """One value per picture; pixels of -100 do not count."""
    counted = (targets >= 0).to(outputs.dtype)
    p = outputs.softmax(1)[:, 1] * counted
    y = (targets == 1).to(outputs.dtype)
    return 1 - 2 * (p * y).sum((1, 2)) / ((p + y).sum((1, 2)) + 1e-6)


def with_features(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    """Of a tuple: scores and features."""
    scores, features = outputs
    return F.cross_entropy(scores, targets, reduction="none") + 0.01 * features.square().sum(-1)


def dict_features(outputs: dict[str, Tensor], targets: Tensor) -> Tensor:
    features = outputs["features"]
    if targets.is_floating_point():
        first = (shaped(outputs, targets) - targets) ** 2
    else:
        first = F.cross_entropy(outputs["logits"], targets, reduction="none")
    return first + 0.01 * features.square().sum(-1)


def class_and_value(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
    kind = F.cross_entropy(outputs["kind"], targets["kind"], reduction="none")
    return kind + (outputs["value"] - targets["value"]) ** 2


def evidence(outputs: tuple[Tensor, Tensor, Tensor], targets: Tensor) -> Tensor:
    """Of a variational autoencoder."""
    reconstruction, mean, log_variance = outputs
    divergence = 0.5 * (log_variance.exp() + mean**2 - 1 - log_variance).sum(-1)
    return ((reconstruction - targets) ** 2).sum(-1) + divergence


def scalar(outputs: Any, targets: Tensor) -> Tensor:
    """One value for all samples together, which is refused."""
    return (shaped(outputs, targets) - targets).square().mean()


# -- the table -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ZooLoss:
    """A loss for some targets."""

    targets: tuple[str, ...]
    given: Callable[[], Any]  # what idiolect.Task is given; None: a bare model
    plain: Callable[[Any, Any], Tensor]  # its mean, in plain torch
    outputs: tuple[type, ...] = (Tensor, dict)  # of the model


def own(function: Callable[..., Tensor], *targets: str, outputs: type | None = None) -> ZooLoss:
    kinds = (Tensor, dict) if outputs is None else (outputs,)
    return ZooLoss(targets, lambda: function, lambda o, t: function(o, t).mean(), outputs=kinds)


def of_torch(loss: nn.Module, *targets: str, real: bool = False) -> ZooLoss:
    """A loss of torch as it stands; `real`: an output for each target, which are numbers."""

    def plain(outputs: Any, y: Tensor) -> Tensor:
        scores = scores_of(outputs)
        if real:
            return loss(shaped(scores, y), y.to(scores.dtype))
        if targets == ("words",):
            scores = scores.transpose(1, 2)
        weight = getattr(loss, "weight", None)
        if weight is None:
            return loss(scores, y)
        options = {"ignore_index": loss.ignore_index}
        return F.cross_entropy(scores, y, weight.to(scores.dtype), **options)

    return ZooLoss(targets, lambda: loss, plain)


def default_plain(outputs: Any, targets: Tensor) -> Tensor:
    """What a bare model gets: cross-entropy for classes, mse for real targets."""
    scores = scores_of(outputs)
    if targets.is_floating_point():
        return F.mse_loss(shaped(scores, targets), targets)
    if scores.dim() == targets.dim() + 1 and scores.shape[:-1] == targets.shape:
        return F.cross_entropy(scores.flatten(0, -2), targets.flatten())
    return F.cross_entropy(scores, targets)


def logistic_plain(outputs: Tensor, targets: Tensor) -> Tensor:
    scores = shaped(outputs, targets)
    return F.binary_cross_entropy_with_logits(scores, targets.to(scores.dtype))


CLASS_WEIGHTS = torch.tensor([1.0, 3.0, 0.5])
ONE_CLASS = ("classes",)

LOSSES: dict[str, ZooLoss] = {
    "default": ZooLoss(
        ("classes", "real", "several", "itself", "words", "mask"), lambda: None, default_plain
    ),
    "cross_entropy": ZooLoss(("classes", "words"), lambda: "cross_entropy", default_plain),
    "mse": ZooLoss(("real", "several"), lambda: "mse", default_plain),
    "half_squared": ZooLoss(
        ("real",), lambda: "half_squared", lambda o, t: default_plain(o, t) / 2
    ),
    "logistic": ZooLoss(("binary",), lambda: "logistic", logistic_plain),
    "CrossEntropyLoss": of_torch(nn.CrossEntropyLoss(), "classes", "mask"),
    "CrossEntropyLoss of words": of_torch(nn.CrossEntropyLoss(), "words"),
    "weighted": of_torch(nn.CrossEntropyLoss(weight=CLASS_WEIGHTS), "classes"),
    "smoothed": of_torch(nn.CrossEntropyLoss(label_smoothing=0.1), "classes"),
    "NLLLoss": of_torch(nn.NLLLoss(), "classes"),
    "MultiMarginLoss": of_torch(nn.MultiMarginLoss(), "classes"),
    "sum": of_torch(nn.CrossEntropyLoss(reduction="sum"), "classes"),
    "F.cross_entropy": ZooLoss(ONE_CLASS, lambda: F.cross_entropy, default_plain),
    "BCEWithLogitsLoss": of_torch(nn.BCEWithLogitsLoss(), "binary", "labels", real=True),
    "weighted labels": of_torch(
        nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0, 1.0, 0.5])), "labels", real=True
    ),
    "BCELoss": of_torch(nn.BCELoss(), "binary", "labels", real=True),
    "MSELoss": of_torch(nn.MSELoss(), "real", "several", "itself", real=True),
    "L1Loss": of_torch(nn.L1Loss(), "real", "several", real=True),
    "SmoothL1Loss": of_torch(nn.SmoothL1Loss(), "real", "itself", real=True),
    "HuberLoss": of_torch(nn.HuberLoss(delta=0.5), "real", "several", real=True),
    "focal": own(focal, "classes", "words"),
    "contrastive": own(contrastive, "classes"),
    "ranking": own(ranking, "real"),
    "quantile": own(quantile, "real"),
    "several outputs": own(several_outputs, "several", "itself", outputs=Tensor),
    "any label": own(any_label, "labels", outputs=Tensor),
    "dice": own(dice, "mask", outputs=Tensor),
    "with features": own(with_features, "classes", outputs=tuple),
    "dict features": own(dict_features, "classes", "real", outputs=dict),
    "class and value": own(class_and_value, "class and value", outputs=dict),
    "evidence": own(evidence, "itself", outputs=tuple),
    "scalar": own(scalar, "real", outputs=Tensor),
}
