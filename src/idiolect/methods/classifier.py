"""What methods for classifiers share: the sizes of the last layer, labels, means by class."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from ..core.knobs import SettingError
from ..core.types import Tree
from ..task.task import Task
from ..task.term import HEAD, find_layer


class HeadSize(NamedTuple):
    """How many classes the last layer tells apart, by how many features."""

    classes: int
    features: int


def head_size(task: Task) -> HeadSize:
    """Those of the model's last layer, which must be linear.

    >>> head_size(Task(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))))
    HeadSize(classes=3, features=4)
    """
    head = task.module.get_submodule(find_layer(task.module, task.layout, HEAD).path)
    if not isinstance(head, nn.Linear):
        raise SettingError(
            f"model: this method needs a linear last layer, got {type(head).__name__}"
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
    shares = F.one_hot(labels(targets), classes).to(weights) * weights.unsqueeze(-1)  # [K, B, C]
    return shares.transpose(1, 2) @ features, shares.sum(1)
