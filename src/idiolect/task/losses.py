"""Losses as functions of (outputs, targets), sample by sample; with the hand-written derivative where a kernel profits."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.knobs import SettingError, nearest


class Loss:
    """`each` gives a loss for every target; `delta` the derivative of sum(weights * each) by the outputs.

    `each` and `hits` take outputs[..., C] and targets[...]; `delta` takes them features first: outputs[K, C, M], targets[K, M].
    """

    name = "loss"

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        raise NotImplementedError

    def delta(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return self.delta_by_autograd(outputs, targets, weights)

    def delta_by_autograd(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """`delta` for any loss and any form of targets."""
        with torch.enable_grad():
            leaf = outputs.detach().requires_grad_()
            return torch.autograd.grad(
                (self.each(leaf.transpose(1, 2), targets) * weights).sum(), leaf
            )[0]

    def hits(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Which targets are predicted; NaN where the targets are real numbers and a hit has no meaning."""
        return (
            torch.full_like(targets, torch.nan)
            if targets.is_floating_point()
            else outputs.argmax(-1) == targets
        )


class CrossEntropy(Loss):
    name = "cross_entropy"

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none").view(
            targets.shape
        )

    def delta(
        self, outputs: Tensor, targets: Tensor, weights: Tensor
    ) -> Tensor:  # weights * (softmax - one hot)
        p = outputs.softmax(1).mul_(weights.unsqueeze(1))
        return p.scatter_add_(1, targets.unsqueeze(1), weights.neg().unsqueeze(1))


class Squared(Loss):
    """scale * (output - target)^2; the papers' linear regression has scale 1/2, the usual mean squared error 1."""

    def __init__(self, name: str, scale: float):
        self.name, self.scale = name, scale

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.scale * (outputs.squeeze(-1) - targets) ** 2

    def delta(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return (2 * self.scale * weights * (outputs.squeeze(1) - targets)).unsqueeze(1)


class Logistic(Loss):
    """log(1 + exp(-y x'w)) for y = +1 (class 1) or -1 (class 0): the alternative paper's loss; one output."""

    name = "logistic"

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        sign = 2 * targets.to(outputs.dtype) - 1
        return F.softplus(-sign * outputs.squeeze(-1))

    def hits(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.squeeze(-1) > 0) == (targets > 0)


class Custom(Loss):
    """A user's own function of (outputs, targets) that returns one value a sample."""

    def __init__(self, function: Callable[..., Tensor]):
        self.function, self.name = function, getattr(function, "__name__", type(function).__name__)

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        flat = outputs.reshape(-1, *outputs.shape[targets.dim() :])
        if targets.is_floating_point() and flat.shape[1:] == (1,):
            flat = flat.squeeze(-1)
        flat = self.function(flat, targets.reshape(-1))
        if flat.numel() != targets.numel():
            raise SettingError(
                f"loss: {self.name} returned {tuple(flat.shape)} for {targets.numel()} targets; "
                "it must return one value a sample (for torch losses: reduction='none')"
            )
        return flat.reshape(targets.shape)


LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (CrossEntropy(), Logistic(), Squared("mse", 1.0), Squared("half_squared", 0.5))
}
_KNOWN = {F.cross_entropy: "cross_entropy", F.mse_loss: "mse"}


def as_loss(loss: str | nn.Module | Callable[..., Tensor] | Loss) -> Loss:
    """A loss from a name, a torch loss (its reduction is set to 'none') or a function.

    >>> as_loss(nn.CrossEntropyLoss()).name
    'cross_entropy'
    """
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise nearest(loss, LOSSES, "loss")
        return LOSSES[loss]
    if (
        type(loss) is nn.CrossEntropyLoss
        and loss.weight is None
        and loss.label_smoothing == 0
        and loss.ignore_index == -100
    ):
        return LOSSES["cross_entropy"]
    if type(loss) is nn.MSELoss:
        return LOSSES["mse"]
    if isinstance(loss, nn.Module):
        if hasattr(loss, "reduction"):
            loss = copy.copy(loss)
            setattr(loss, "reduction", "none")  # noqa: B010 (a module's attributes are untyped)
        return Custom(loss)
    if not callable(loss):
        raise SettingError(
            f"loss: {loss!r} is not accepted; give one of {', '.join(LOSSES)}, a torch loss or a function"
        )
    if loss in _KNOWN:
        return LOSSES[_KNOWN[loss]]
    if "reduction" in inspect.signature(loss).parameters:
        return Custom(partial(loss, reduction="none"))
    return Custom(loss)
