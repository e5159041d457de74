"""Early stopping: the best round by validation data, and when to stop waiting for a better one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..core.knobs import SettingError
from ..data.federation import Federation
from ..host.metrics import direction
from .settings import Settings

History = Sequence[dict[str, Any]]


def columns(settings: Settings) -> list[str]:
    """The columns of an evaluated round that are about validation and training data.

    >>> columns(Settings(patience=3, metric="auc")), columns(Settings(eval_train=True))
    (['valid_loss', 'valid_accuracy', 'valid_auc'], ['train_loss', 'train_accuracy'])
    """
    names = {"valid": ("loss", "accuracy", settings.watched), "train": ("loss", "accuracy")}
    return [f"{split}_{n}" for split in splits(settings)[1:] for n in dict.fromkeys(names[split])]


def splits(settings: Settings) -> tuple[str, ...]:
    """The parts of the data that evaluated rounds look at, test data first."""
    more = {"valid": settings.validates, "train": settings.eval_train}
    return ("test", *(split for split, wanted in more.items() if wanted))


def best_row(history: History, settings: Settings) -> int:
    """The evaluated round with the best validation figure, the first of equals; -1 without one.

    >>> rounds = [{"valid_loss": 0.9}, {"valid_loss": 0.5}, {"valid_loss": 0.5}]
    >>> best_row(rounds, Settings())
    1
    """
    sign = -1 if direction(settings.watched, settings.metrics) else 1
    best, at = math.inf, -1
    for number, row in enumerate(history):
        value = sign * row[f"valid_{settings.watched}"]
        if value < best:
            best, at = value, number
    return at


def waited(history: History, settings: Settings) -> int:
    """Evaluated rounds since the best one.

    >>> rounds = [{"valid_accuracy": 0.5}, {"valid_accuracy": 0.4}]
    >>> waited(rounds, Settings(patience_metric="accuracy"))
    1
    """
    return len(history) - 1 - best_row(history, settings) if history else 0


def check_stops(settings: Settings, federation: Federation) -> None:
    """Refuse stops that these data cannot show: validation data they lack, an accuracy above 1."""
    target = settings.target_value
    shares = (settings.metric or "accuracy") == "accuracy" and bool(federation.classes)
    if shares and target is not None and not 0 <= target <= 1:
        raise SettingError(f"target_value must be from 0 to 1 for an accuracy, got {target:g}")
    if not settings.validates:
        return
    name = "patience" if settings.patience else "keep_best"
    if not bool(federation.sizes("valid").any()):
        raise SettingError(
            f"{name}: it decides by validation data, and no client has any; make the federation "
            "with a share for validation, such as valid=0.2"
        )
    if settings.watched == "accuracy" and not federation.classes:
        raise SettingError("patience_metric: 'accuracy' is not accepted for real targets; 'loss'")
