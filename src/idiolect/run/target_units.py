"""In which units a run trains on real targets: standardised where that is known to be right."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..core.documents import decode
from ..core.knobs import SettingError
from ..core.types import map_tree
from ..data.federation import Census, Federation
from ..data.prepare.target_sums import extreme_outliers, target_moments
from ..host.lazy_federation import LazyFederation
from ..report.format import number
from ..task.losses import Loss, logits, shaped_as
from ..task.target_scale import TargetScale
from ..task.task import Task
from .settings import Settings

TRIED = 500  # samples that show whether a module knows the targets' units
SCALE = "target_scale"  # its key among the facts about the data


def scale_of(
    task: Task, federation: Federation, settings: Settings, clients: Tensor
) -> TargetScale | None:
    """Mean and deviation of these clients' training targets; None to train on them as they are.

    They are standardised where they are real numbers, [n] or [n, m], not already about standard,
    the loss is one whose meaning does not depend on their unit, and the model does not start from
    weights that know the unit: those of a file, or of a module that was trained before.
    """
    if not settings.standardise_targets or not may_scale(task, federation):
        return None
    if isinstance(federation, LazyFederation):
        return federation.target_scale
    if isinstance(federation, Census):  # the targets are with their owners
        return None
    centre, spread = target_moments(federation, clients)
    scale = TargetScale.where_needed(centre, spread)
    if scale.changes_nothing or _knows_units(task, federation, spread):
        return None
    return scale


def _knows_units(task: Task, federation: Federation, spread: tuple[float, ...]) -> bool:
    """Whether a module already predicts the targets as they are, better than their mean does.

    One that was trained before would be taken for a model of standardised targets.
    """
    if not isinstance(task.model, nn.Module):
        return False
    low, high = federation.offsets["train"][[0, -1]].tolist()
    some = torch.linspace(low, high - 1, TRIED).long().unique()
    data = federation.to(task.device, task.dtype)
    try:
        inputs = map_tree(lambda t: t[some.to(t.device)], data.inputs)
        outputs = logits(task.outputs_of_one(task.x0, inputs))
        targets = data.targets[some.to(data.targets.device)]
        squares = (shaped_as(outputs, targets) - targets).double() ** 2
    except Exception:  # whatever a user's forward raises; `check_model` says what is wrong
        return False
    variance = torch.tensor(spread, dtype=torch.float64, device=squares.device) ** 2
    return bool((squares.reshape(len(some), -1).mean(0) < variance).all())


def may_scale(task: Task, federation: Federation) -> bool:
    """Whether these targets could be standardised for this task."""
    columns = _are_real(federation) and federation.targets.dim() <= 2
    return columns and bool(task.criterion.degree) and not task.initial.weights


def _are_real(federation: Federation) -> bool:
    targets = federation.targets
    return isinstance(targets, Tensor) and targets.is_floating_point() and not federation.classes


def recorded_scale(data: dict[str, Any]) -> TargetScale | None:
    """The scale that a record keeps; SettingError where it cannot be one."""
    if SCALE not in data:
        return None
    try:
        return decode(data[SCALE], TargetScale, SCALE)
    except ValueError as error:
        raise SettingError(f"record: data.{error}") from None


def described(scale: TargetScale) -> str:
    """What a reader of the figures should know."""
    pairs = zip(scale.centre, scale.spread, strict=True)
    columns = [f"mean {number(c)}, standard deviation {number(s)}" for c, s in pairs]
    return (
        f"targets are standardised for training ({'; '.join(columns[:3])}"
        f"{'; ...' if columns[3:] else ''}); figures and predictions are in their own units"
    )


def outlier_note(loss: Loss, federation: Federation, clients: Tensor) -> str:
    """A word on extreme outliers among training targets, for a loss that squares them; or ""."""
    if loss.name != "mse" or not _are_real(federation) or isinstance(federation, Census):
        return ""
    count = extreme_outliers(federation, clients)
    if not count:
        return ""
    samples = int(federation.sizes("train")[clients].sum())
    return (
        f"{count:,} of {samples:,} training targets lie more than 10 robust standard deviations "
        "from the median, and squares count them most; loss 'huber' lets them pull less"
    )


def unit_of_loss(loss: Loss, scale: TargetScale | None) -> float:
    """The loss of outputs that are one standard deviation off, about: what a loss is measured by.

    >>> from ..task.losses import LOSSES
    >>> unit_of_loss(LOSSES["mse"], TargetScale((0.0,), (50.0,)))
    2500.0
    """
    if scale is None:
        return 1.0
    return float((torch.tensor(scale.spread, dtype=torch.float64) ** loss.degree).mean())
