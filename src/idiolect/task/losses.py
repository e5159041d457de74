"""Losses as functions of (outputs, targets), sample by sample, and how samples are weighed.

A loss has a hand-written derivative where a kernel profits from one.
"""

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
    """The value of every target, its derivative, and which targets are hit.

    `each` and `hits` take outputs[..., C] and targets[...]. `delta` is the derivative of
    sum(weights * each) with respect to the outputs; it takes and gives them features first:
    outputs[K, C, M], targets[K, M], weights[K, M].
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
            value = (self.each(leaf.transpose(1, 2), targets) * weights).sum()
            return torch.autograd.grad(value, leaf)[0]

    def hits(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Which targets are predicted; NaN for real targets, for which a hit has no meaning."""
        if targets.is_floating_point():
            return torch.full_like(targets, torch.nan)
        return outputs.argmax(-1) == targets


class CrossEntropy(Loss):
    """-log softmax(outputs)[target]: one output per class."""

    name = "cross_entropy"

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        flat = F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
        return flat.view(targets.shape)

    def delta(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """weights * (softmax - one hot)."""
        p = outputs.softmax(1).mul_(weights.unsqueeze(1))
        return p.scatter_add_(1, targets.unsqueeze(1), weights.neg().unsqueeze(1))


class Squared(Loss):
    """scale * (output - target)^2.

    The linear regression of the papers has scale 1/2, the usual mean squared error 1.
    """

    def __init__(self, name: str, scale: float):
        self.name = name
        self.scale = scale

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.scale * (outputs.squeeze(-1) - targets) ** 2

    def delta(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        return (2 * self.scale * weights * (outputs.squeeze(1) - targets)).unsqueeze(1)


class Logistic(Loss):
    """log(1 + exp(-y x'w)) for y = +1 (class 1) or -1 (class 0): one output.

    The loss of logistic regression in the paper of Chen, Zheng, Long and Su.
    """

    name = "logistic"

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        sign = 2 * targets.to(outputs.dtype) - 1
        return F.softplus(-sign * outputs.squeeze(-1))

    def hits(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.squeeze(-1) > 0) == (targets > 0)


class Custom(Loss):
    """A user's own function of (outputs, targets) that returns one value per sample."""

    def __init__(self, function: Callable[..., Tensor]):
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)

    def each(self, outputs: Tensor, targets: Tensor) -> Tensor:
        flat = outputs.reshape(-1, *outputs.shape[targets.dim() :])
        if targets.is_floating_point() and flat.shape[1:] == (1,):
            flat = flat.squeeze(-1)
        flat = self.function(flat, targets.reshape(-1))
        if flat.numel() != targets.numel():
            raise SettingError(
                f"loss: {self.name} returned {tuple(flat.shape)} for {targets.numel()} targets; "
                "it must return one value per sample (for torch losses: reduction='none')"
            )
        return flat.reshape(targets.shape)


def spread(weights: Tensor, targets: Tensor) -> Tensor:
    """Sample weights [K, B] as weights of targets [K, B, ...].

    A sample with several targets, such as a sentence, counts with their mean.

    >>> spread(torch.tensor([[1.0, 3.0]]), torch.zeros(1, 2, 2))
    tensor([[[0.5000, 0.5000],
             [1.5000, 1.5000]]])
    """
    if targets.dim() == weights.dim():
        return weights
    many = targets[0, 0].numel()
    lead = (weights / many).view(*weights.shape, *[1] * (targets.dim() - weights.dim()))
    return lead.expand_as(targets)


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
            f"loss: {loss!r} is not accepted; "
            f"give one of {', '.join(LOSSES)}, a torch loss or a function"
        )
    if loss in _KNOWN:
        return LOSSES[_KNOWN[loss]]
    if "reduction" in inspect.signature(loss).parameters:
        return Custom(partial(loss, reduction="none"))
    return Custom(loss)
