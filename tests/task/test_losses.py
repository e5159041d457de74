"""Losses are those of torch, and every kernel differentiates them alike."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from idiolect import Task
from idiolect.core.knobs import SettingError
from task.common import a_batch, rows, same


def squared_margin(outputs, targets):
    """A user's loss: one value per sample."""
    return (1 - outputs.gather(1, targets.unsqueeze(1)).squeeze(1)) ** 2


LOSSES = {
    "cross_entropy": ("cross_entropy", 3, 3),
    "logistic": ("logistic", 1, 2),
    "mse": ("mse", 1, 0),
    "half_squared": ("half_squared", 1, 0),
    "label smoothing": (nn.CrossEntropyLoss(label_smoothing=0.1), 3, 3),
    "class weights": (
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)),
        3,
        3,
    ),
    "huber": (nn.HuberLoss(), 1, 0),
    "a function": (squared_margin, 3, 3),
    "torch's function": (F.smooth_l1_loss, 1, 0),
}


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_has_the_same_gradient_in_every_kernel(name):
    loss, outputs, classes = LOSSES[name]
    same(
        nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, outputs)),
        a_batch((6,), classes=classes),
        ("stacked", "vmap", "rows"),
        loss,
    )


@pytest.mark.parametrize(
    ("loss", "each"),
    [
        ("cross_entropy", lambda out, y: F.cross_entropy(out, y, reduction="none")),
        (
            nn.CrossEntropyLoss(label_smoothing=0.1),
            lambda out, y: F.cross_entropy(out, y, reduction="none", label_smoothing=0.1),
        ),
        (
            "logistic",
            lambda out, y: F.binary_cross_entropy_with_logits(
                out[:, 0], y.double(), reduction="none"
            ),
        ),
        ("mse", lambda out, y: (out[:, 0] - y) ** 2),
        ("half_squared", lambda out, y: (out[:, 0] - y) ** 2 / 2),
    ],
)
def test_losses_are_torchs(loss, each):
    task = Task(nn.Linear(6, 1), loss)
    outputs = torch.randn(
        8, 1 if isinstance(loss, str) and loss != "cross_entropy" else 3, dtype=torch.float64
    )
    targets = (
        torch.randn(8, dtype=torch.float64)
        if loss in ("mse", "half_squared")
        else torch.randint(2, (8,))
    )
    torch.testing.assert_close(task.criterion.each(outputs, targets), each(outputs, targets))


def test_a_loss_that_returns_one_number_is_refused():
    task = Task(nn.Linear(6, 3), lambda out, y: F.cross_entropy(out, y)).under(dtype=torch.float64)
    with pytest.raises(SettingError, match="one value per sample"):
        task.loss(rows(task), a_batch((6,)))


def test_several_real_targets_per_sample_agree_in_every_kernel():
    same(
        nn.Linear(6, 4), a_batch((6,), targets=(4,), classes=0), ("vmap", "rows", "stacked"), "mse"
    )
