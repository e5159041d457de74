"""Gradient-boosted trees on the folds of an advice: judged like the candidates, never chosen."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...data.federation import Federation
from ...task.losses import Loss
from ..trees import ALONE, POOLED, sample_scores, tree_answers
from .training import GIVEN, Holdout


@dataclass(frozen=True)
class JudgedTrees:
    """What each held-out sample says of trees of the samples that were not held out."""

    label: str
    by_seed: np.ndarray  # [2, seeds, n]: hits and loss; NaN where a sample was not held out
    outputs: np.ndarray  # [seeds, n, ...]: log-probabilities, or values

    def scores(self, seeds: int, half: np.ndarray) -> np.ndarray:  # -> [2, seeds, n]
        """As those of a candidate; trees have no step size that a half could choose."""
        return self.by_seed[:, :seeds]

    def answers(self, seeds: int, half: np.ndarray) -> np.ndarray:  # -> [seeds, n, ...]
        return self.outputs[:seeds]


def judge_trees(
    holdout: Holdout,
    seeds: int,
    loss_of: Callable[[Federation], Loss],
    trained: Callable[[str], None],
) -> list[JudgedTrees]:
    """Trees of each client alone and of all clients together, on the samples of every seed.

    `loss_of` gives the loss that figures are by, and `trained` is called after every seed.
    """
    width = max(holdout.data.classes, 1)
    labels = (ALONE, POOLED)
    scores = np.full((len(labels), 2, seeds, holdout.samples), math.nan)
    outputs = np.full((len(labels), seeds, holdout.samples, width), math.nan, dtype=np.float32)
    for seed in range(1 if holdout.kind == GIVEN else seeds):
        federation, held_out = holdout.under(seed)
        loss = loss_of(federation)
        for at, label in enumerate(labels):
            answers = tree_answers(federation, label, "valid")
            hits, losses, _ = sample_scores(federation, loss, answers, "valid")
            scores[at][:, seed, held_out] = np.stack([hits.numpy(), losses.numpy()])
            outputs[at, seed, held_out] = answers.numpy()
        trained("trees")
    if holdout.kind == GIVEN:  # the same samples under every seed, and trees that draw nothing
        scores[:], outputs[:] = scores[:, :, :1], outputs[:, :1]
    return [JudgedTrees(*parts) for parts in zip(labels, scores, outputs, strict=True)]
