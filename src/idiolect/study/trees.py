"""Gradient-boosted trees as a yardstick for tables: what is reached without federated learning.

scikit-learn's HistGradientBoosting with its default settings, on the training samples of each
client alone, and of all clients together, which needs the data in one place. Their figures stand
beside those of the methods, on the same samples, and are never chosen.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..core.knobs import Knobs, SettingError, knob
from ..data.federation import Census, Federation
from ..host.baselines import training_means
from ..host.metrics import Metric, Tally, form_of, is_distance
from ..host.metrics.custom import Own
from ..host.scores import Scores
from ..report.captions import Row
from ..report.tables import untrained_row
from ..task.losses import Loss

TREES = "trees"
ALONE, POOLED = "trees, each client alone", "trees, all data in one place"
NOTE = (
    "trees: scikit-learn's HistGradientBoosting with its default settings, on the same samples; "
    "not federated: of each client alone, or of all clients together, which needs the data in one "
    "place"
)
MOST_MODELS = 40  # boosted models, one per class, that a comparison trains without being asked
MOST_NUMBERS = 3_000_000  # features of all training samples, for the same


@dataclass(frozen=True)
class TreeOptions(Knobs):
    """Whether there are trees beside the methods."""

    trees: bool = knob(
        False,
        "add gradient-boosted trees of each client alone, and of all data in one place (not "
        "federated); without this flag, for tables for which they are quick",
    )
    no_trees: bool = knob(False, "leave out the trees")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trees and self.no_trees:
            raise SettingError("trees must be given without no_trees, got both")

    @property
    def with_trees(self) -> bool | None:
        """As asked; None: for tables for which they are quick."""
        return True if self.trees else False if self.no_trees else None


def refusal(federation: Federation, loss: Loss) -> str:
    """Why there are no trees for these data; "" where there are."""
    if isinstance(federation, Census):
        return "the samples are not in this process"
    inputs, targets = federation.inputs, federation.targets
    if not isinstance(inputs, Tensor) or inputs.dim() != 2 or not inputs.is_floating_point():
        return "they need a row of numbers per sample"
    if not isinstance(targets, Tensor) or targets.dim() != 1:
        return "they need one target per sample"
    if not federation.classes and not is_distance(loss.name):
        return f"the loss {loss.name!r} is not about the distance from real targets"
    if federation.classes == 1:
        return "all samples are of one class"
    return ""


def wanted(
    federation: Federation,
    loss: Loss,
    trees: bool | None,
    folds: int = 1,
    most: int = MOST_MODELS,
) -> bool:
    """Whether there are trees: as asked, or by default for tables where they are quick.

    That is where at most so many models are trained, over all `folds`.
    """
    if trees is not None and not isinstance(trees, bool):
        raise SettingError(f"trees must be True, False or None, got {trees!r}")
    reason = refusal(federation, loss)
    if trees and reason:
        raise SettingError(f"trees must be left out for these data, got True: {reason}")
    if trees is not None:
        return trees
    quick = not reason and (
        (federation.clients + 1) * _trees_per_step(federation) * folds <= most
        and federation.inputs.shape[1] * int(federation.sizes("train").sum()) <= MOST_NUMBERS
    )
    return quick and federation.preparation is not None


def tree_rows(federation: Federation, loss: Loss, metrics: Sequence[Metric] = ()) -> list[Row]:
    """The two rows: trees of each client alone, and of all clients together.

    `metrics` are those of the run; a function of the user's own is left out, as it is about outputs
    of the model.

    >>> x, y = np.random.default_rng(0).normal(size=(400, 2)), np.arange(400) % 2
    >>> x[:, 0] += y
    >>> data = Federation.from_arrays(x, y, np.arange(400) // 100)
    >>> [row["label"] for row in tree_rows(data, Loss())]
    ['trees, each client alone', 'trees, all data in one place']
    """
    rows = []
    for label in (ALONE, POOLED):
        began = time.perf_counter()
        scores = _scores(federation, loss, tree_answers(federation, label), metrics)
        rows.append(untrained_row(TREES, label, scores, time.perf_counter() - began))
    return rows


def tree_answers(federation: Federation, label: str, split: str = "test") -> Tensor:
    """What trees of the training samples answer to the samples of a split, ALONE or POOLED.

    float64[n, classes] log-probabilities, or float64[n, 1] values. On one thread: the trees are
    small, and threads that wait for each other on a busy machine take a hundred times as long.
    """
    from threadpoolctl import threadpool_limits

    everyone = torch.arange(federation.clients)
    with threadpool_limits(1, user_api="openmp"):
        models = everyone.split(1) if label == ALONE else (everyone,)
        return torch.cat([_answers(federation, clients, split) for clients in models])


def sample_scores(
    federation: Federation, loss: Loss, answers: Tensor, split: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each sample of a split: whether the answer is right, its loss, and whether it counts.

    float64[n], float64[n] and bool[n]; a target of -100 is no class and does not count.
    """
    targets = torch.from_numpy(_rows(federation, torch.arange(federation.clients), split)[1])
    if federation.classes:
        counts = targets >= 0
        losses = -answers.gather(1, targets.clamp(min=0).unsqueeze(1)).squeeze(1) * counts
        return ((answers.argmax(1) == targets) & counts).double(), losses, counts
    losses = loss.each(answers, targets.double()).double()
    losses = losses.flatten(1).mean(1) if losses.dim() > 1 else losses
    return torch.full_like(losses, torch.nan), losses, torch.ones(len(losses), dtype=torch.bool)


def _trees_per_step(federation: Federation) -> int:
    return federation.classes if federation.classes > 2 else 1


def _rows(federation: Federation, clients: Tensor, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of neighbouring clients, as arrays."""
    offsets = federation.offsets[split]
    low, high = int(offsets[int(clients[0])]), int(offsets[int(clients[-1]) + 1])
    inputs, targets = federation.inputs, federation.targets
    return inputs[low:high].cpu().double().numpy(), targets[low:high].cpu().numpy()


def _answers(federation: Federation, clients: Tensor, split: str) -> Tensor:
    """For the samples of these clients, by a model of their training samples."""
    x, y = _rows(federation, clients, "train")
    weights = _weights(federation, clients)
    inputs, _ = _rows(federation, clients, split)
    if federation.classes:
        return _log_probabilities(x, y, inputs, federation.classes, weights)
    if len(np.unique(y)) < 2 or not len(inputs):
        mean = training_means(federation)[int(clients[0])]
        return torch.full((len(inputs), 1), float(mean), dtype=torch.float64)
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(random_state=0).fit(x, y, sample_weight=weights)
    return torch.from_numpy(model.predict(inputs)).double().unsqueeze(1)


def _weights(federation: Federation, clients: Tensor) -> np.ndarray | None:
    """Of the training samples of neighbouring clients, about 1; None where all are alike."""
    if federation.weights is None:
        return None
    offsets = federation.offsets["train"]
    low, high = int(offsets[int(clients[0])]), int(offsets[int(clients[-1]) + 1])
    weights = federation.weights[low:high].numpy()
    if not len(weights) or (weights == weights[0]).all():
        return None
    return weights / weights.mean()


def _log_probabilities(
    x: np.ndarray, y: np.ndarray, inputs: np.ndarray, classes: int, weights: np.ndarray | None
) -> Tensor:
    """Smoothed by one sample per class, so that a class that was never seen is not impossible."""
    counted = y >= 0  # -100 is no class
    x, y = x[counted], y[counted]
    weights = None if weights is None else weights[counted]
    labels = np.unique(y)
    p = np.zeros((len(inputs), classes))
    if len(labels) == 1:
        p[:, labels[0]] = 1.0
    elif len(labels) and len(inputs):
        from sklearn.ensemble import HistGradientBoostingClassifier

        model = HistGradientBoostingClassifier(random_state=0).fit(x, y, sample_weight=weights)
        p[:, model.classes_] = model.predict_proba(inputs)
    return torch.from_numpy((len(y) * p + 1) / (len(y) + classes)).log()


def _scores(
    federation: Federation, loss: Loss, answers: Tensor, metrics: Sequence[Metric]
) -> Scores:
    """The figures of these answers for the test samples of all clients."""
    clients = torch.arange(federation.clients)
    owner = clients.repeat_interleave(federation.sizes("test"))
    right, losses, counts = sample_scores(federation, loss, answers, "test")
    sizes = torch.bincount(owner[counts], minlength=len(clients))
    mass = federation.weights_of("test") * counts

    def summed(terms: Tensor) -> Tensor:
        return torch.zeros(len(clients), dtype=torch.float64).index_add_(0, owner, terms * mass)

    totals = summed(torch.ones_like(losses))
    per_mass = sizes / torch.where(totals > 0, totals, 1)
    counted = [m for m in metrics if not isinstance(m, Own)]
    hits, loss_sums = summed(right) * per_mass, summed(losses) * per_mass
    weights = None if federation.weights is None else totals
    none = torch.zeros_like(clients)
    scores = Scores(clients, hits, loss_sums, sizes, none, {}, weights)
    if not counted:
        return scores
    tally = Tally(counted, form_of(federation, Loss()), len(clients), clients)
    targets = torch.from_numpy(_rows(federation, clients, "test")[1])
    tally.add(owner, answers, targets, federation.weights_of("test"))
    return replace(scores, metrics=tally.measured(clients))
