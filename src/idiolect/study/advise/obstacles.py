"""What the data cannot tell, and what was assumed: said before any figure."""

from __future__ import annotations

import numpy as np
import torch

from ...core.knobs import SettingError
from ...data.federation import Federation
from .clients import LEAST
from .decision import LOCAL, UNDECIDED
from .estimate import LEAST as ENOUGH
from .holdout import GIVEN, Holdout


def settled(holdout: Holdout, seeds: int) -> tuple[str, str] | None:
    """What settles the question before any training: (choice, words)."""
    training = int((holdout.data.sizes("train") > 0).sum())
    if training == 0:
        raise SettingError("data: no client has a training sample")
    if training == 1:
        return LOCAL, (
            "There is one client with training samples: it has nobody to learn with, and "
            "learning alone is all there is."
        )
    if not holdout.mask(seeds).any():
        return UNDECIDED, (
            "Cannot tell: no sample can be held out to judge by, since no client has "
            "validation samples or two training samples."
        )
    return None


def remarks(federation: Federation, holdout: Holdout, seeds: int) -> list[str]:
    """What was assumed, and what cannot be told, a line each."""
    data = holdout.data
    held = holdout.mask(seeds)
    notes = []
    tested = int(federation.sizes("test").sum())
    if tested:
        notes.append(f"the {tested:,} test samples were not looked at")
    if holdout.kind != GIVEN and held.any():
        has = bool(data.sizes("valid").any())
        which = "training and validation" if has else "training"
        why = "" if has else " (the federation has no validation samples)"
        notes.append(
            f"judged by folds of the {which} samples{why}: each seed holds out another fifth of "
            "each client's"
        )
    judged = int(held.any(0).sum())
    if 0 < judged < ENOUGH:
        notes.append(
            f"{judged} samples can be held out, fewer than {ENOUGH}: no interval is told, and "
            "nothing is decided"
        )
    seen = holdout.owner[held.any(0)]
    few = int((np.bincount(seen, minlength=data.clients) < LEAST).sum())
    if few and judged:
        notes.append(
            f"{few:,} of {data.clients:,} clients have fewer than {LEAST} samples to be judged by: "
            "of each of them alone nothing can be told"
        )
    single = _single_class(data)
    if single:
        notes.append(
            f"{single:,} of {data.clients:,} clients have training samples of a single class: a "
            "constant answer serves them as well as any model, if their samples stay so"
        )
    return notes


def _single_class(data: Federation) -> int:
    """How many clients have training samples of one class only."""
    if not data.classes or not isinstance(data.targets, torch.Tensor):
        return 0
    return int(((data.class_counts("train") > 0).sum(1) == 1).sum())
