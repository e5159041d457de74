"""What methods for classifiers share: sizes of the last layer, labels, sums by class, outputs."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.knobs import SettingError
from ..core.types import Tree
from ..task.losses import (
    Absolute,
    Binary,
    CrossEntropy,
    Huber,
    Logistic,
    Quantile,
    Squared,
    logits,
)
from ..task.task import Task
from ..task.term import HEAD, find_layer

OF_CLASSES = (Binary, CrossEntropy, Logistic)  # losses
OF_REAL_TARGETS = (Absolute, Huber, Quantile, Squared)


def check_classes(task: Task) -> None:
    """Refuse, before any work, a loss of real targets."""
    if isinstance(task.criterion, OF_REAL_TARGETS):
        raise SettingError(
            "loss must be one of classes for this method (cross_entropy, logistic), "
            f"got {task.criterion.name!r}"
        )


class HeadSize(NamedTuple):
    """How many classes the last layer tells apart, by how many features."""

    classes: int
    features: int


def head_size(task: Task) -> HeadSize:
    """Those of the model's last layer, which must be linear; a normalisation may follow it.

    >>> head_size(Task(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))))
    HeadSize(classes=3, features=4)
    """
    head = task.module.get_submodule(find_layer(task.module, task.layout, HEAD).path)
    if not isinstance(head, nn.Linear):
        raise SettingError(
            f"model must have a linear last layer for this method, got {type(head).__name__}"
        )
    # one output is the score of the second of two classes
    return HeadSize(max(head.out_features, 2), head.in_features)


def labels(targets: Tree) -> Tensor:  # -> int64[K, B]
    """Targets as one class for each sample."""
    if not isinstance(targets, Tensor) or targets.dim() != 2 or targets.is_floating_point():
        raise SettingError(
            f"data: this method needs one class for each sample as its target, got {_form(targets)}"
        )
    return targets


def _form(targets: Tree) -> str:
    if not isinstance(targets, Tensor):
        return "several tensors"
    return f"{targets.dtype} of shape {tuple(targets.shape[2:])}".removeprefix("torch.")


def in_classes(targets: Tree, weights: Tensor, classes: int) -> Tensor:  # -> [K, B, C]
    """The weight of each sample [K, B], in the column of its class."""
    return F.one_hot(labels(targets), classes).to(weights) * weights.unsqueeze(-1)


def by_class(
    features: Tensor, targets: Tree, weights: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """Weighed sums of features by class, and the weight of each class: [K, C, F], [K, C].

    features[K, B, F], targets[K, B], weights[K, B].
    """
    if features.dim() != 3:
        raise SettingError(
            "layer: this method needs one vector of features per sample, "
            f"got {tuple(features.shape[2:])}"
        )
    shares = in_classes(targets, weights, classes)
    return shares.transpose(1, 2) @ features, shares.sum(1)


# -- outputs as scores of classes ------------------------------------------------------------------
def check_logits(task: Task) -> None:
    """Refuse, before any work, a loss whose outputs are no logits of classes."""
    check_classes(task)
    if task.criterion.of_probabilities:
        raise SettingError(
            f"loss must be one of logits for this method, got {task.criterion.name!r}, which takes "
            "probabilities"
        )


def class_scores(outputs: Tree) -> Tensor:  # -> [..., C]
    """Logits of each class; of two classes where the model has one output."""
    scores = logits(outputs)
    return F.pad(scores, (1, 0)) if scores.shape[-1] == 1 else scores


# -- outputs as probabilities, and back ------------------------------------------------------------
def probabilities(task: Task, outputs: Tree) -> Tensor:
    """Of each class, [..., C]; of two classes where the model has one output."""
    scores = logits(outputs)
    shares = task.criterion.probabilities(scores, max(scores.shape[-1], 2))
    assert shares is not None
    return shares


def as_outputs(task: Task, shares: Tensor, columns: int) -> Tensor:
    """Outputs, in the form of the model's own with that many columns, of these probabilities.

    >>> task = Task(nn.Linear(3, 2))
    >>> outputs = as_outputs(task, torch.tensor([0.25, 0.75]), columns=2)
    >>> probabilities(task, outputs)
    tensor([0.2500, 0.7500])
    """
    if task.criterion.of_probabilities:
        return shares[..., -columns:]
    logs = shares.clamp(min=torch.finfo(shares.dtype).tiny).log()
    return logs if columns > 1 else logs[..., 1:] - logs[..., :1]
