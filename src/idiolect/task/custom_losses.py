"""A user's loss: a torch loss or a function, as a `Loss`."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.knobs import SettingError, nearest
from ..core.types import Tree, first
from .losses import IGNORED, LOSSES, CrossEntropy, Loss, logits, shaped_as

Given = str | nn.Module | Callable[..., Tensor] | Loss


class TorchClasses(CrossEntropy):
    """nn.CrossEntropyLoss and nn.NLLLoss with their options, exactly as torch averages them.

    With class weights the mean is the weighed one: sum(weight of the target's class * loss) over
    the sum of these weights; targets of `ignore_index` do not count. Classes are the second axis.
    """

    second = True

    def __init__(self, loss: nn.CrossEntropyLoss | nn.NLLLoss):
        self.weight = loss.weight
        self.ignore = loss.ignore_index
        self.weighs_samples = self.weight is not None or self.ignore != IGNORED
        options: dict[str, Any] = {"ignore_index": self.ignore}
        kind = "nll"
        function: Callable[..., Tensor] = F.nll_loss
        if isinstance(loss, nn.CrossEntropyLoss):
            kind = "cross_entropy"
            function = F.cross_entropy
            options["label_smoothing"] = loss.label_smoothing
        self.function: Callable[..., Tensor] = partial(function, reduction="none", **options)
        usual = {"ignore_index": IGNORED, "label_smoothing": 0.0}
        options_text = [f"{n}={v}" for n, v in options.items() if v != usual[n]]
        if self.weight is not None:
            options_text.append(f"weight={[round(w, 6) for w in self.weight.tolist()]}")
        self.name = f"{kind}({', '.join(options_text)})" if options_text else kind

    def _flat(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.ignore != IGNORED:
            targets = targets.where(targets != IGNORED, self.ignore)
        if self.weight is None:
            return self.function(outputs, targets)
        weight = self.weight.to(outputs)
        value = self.function(outputs, targets, weight=weight)
        share = self.counts(targets)
        assert share is not None
        return value / torch.where(share > 0, share, 1).to(value.dtype)

    def _counted(self, targets: Tensor) -> Tensor:
        """Not the loss's own ignored index, nor that of the data."""
        return (targets != self.ignore) & (targets != IGNORED)

    def counts(self, targets: Tree) -> Tensor | None:
        counted = self._counted(targets)
        if self.weight is not None:
            weight = self.weight.to(device=targets.device)
            return torch.where(counted, weight[targets.where(counted, 0)], 0)
        if targets.dim() < 2 and self.ignore == IGNORED:
            return None
        return None if bool(counted.all()) else counted

    def delta(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        if self.name == CrossEntropy.name:
            return super().delta(outputs, targets, weights)
        return self.delta_by_autograd(outputs, targets, weights)


class Binary(Loss):
    """nn.BCEWithLogitsLoss and nn.BCELoss: yes or no, for one output or for several labels."""

    def __init__(self, loss: nn.Module, middle: float):
        self.name = "bce_with_logits" if middle == 0 else "bce"
        self.of_probabilities = middle > 0
        self.function = loss
        self.middle = middle  # outputs above it say yes

    def each(self, outputs: Tree, targets: Tree) -> Tensor:
        scores = shaped_as(logits(outputs), targets)
        return self.function(scores, targets.to(scores.dtype))

    def hits(self, outputs: Tree, targets: Tree) -> Tensor:
        return (shaped_as(logits(outputs), targets) > self.middle) == (targets > 0.5)


class Custom(Loss):
    """A function of (outputs, targets) that returns one value per sample, or one per target.

    It is given the outputs of the model as they are, for n samples. Where a model has an output
    with classes last for every one of several targets (the words of a sentence), it is given them
    in a row: outputs[n targets, C], targets[n targets].
    """

    def __init__(self, function: Callable[..., Tensor], name: str = ""):
        self.function = function
        self.name = name or getattr(function, "__name__", type(function).__name__)

    def each(self, outputs: Tree, targets: Tree) -> Tensor:
        n = len(first(targets))
        shape = torch.Size([n])
        arguments: tuple[Tree, Tree] = (outputs, targets)
        if isinstance(outputs, Tensor) and isinstance(targets, Tensor):
            shape = targets.shape
            arguments = _in_a_row(outputs, targets)
        value = self.function(*arguments)
        if isinstance(value, Tensor) and value.numel() == shape.numel():
            return value.reshape(shape)
        if isinstance(value, Tensor) and value.dim() and len(value) == n:
            return value
        form = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise SettingError(
            f"loss: {self.name} returned {form} for {n} samples; "
            "it must return one value per sample (for torch losses: reduction='none')"
        )


def _in_a_row(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    if outputs.dim() == targets.dim() + 1 and outputs.shape[:-1] == targets.shape:
        flat = outputs.flatten(0, -2)
        if targets.is_floating_point() and flat.shape[1:] == (1,):
            flat = flat.squeeze(-1)
        return flat, targets.flatten()
    return outputs, targets


_KNOWN = {F.cross_entropy: "cross_entropy", F.mse_loss: "mse"}


def as_loss(loss: Given) -> Loss:
    """A loss from a name, a torch loss (its reduction is set to 'none') or a function.

    >>> as_loss(nn.CrossEntropyLoss()).name, as_loss(nn.BCEWithLogitsLoss()).name
    ('cross_entropy', 'bce_with_logits')
    """
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        if loss not in LOSSES:
            raise nearest(loss, LOSSES, "loss")
        return LOSSES[loss]
    if isinstance(loss, type) and issubclass(loss, nn.Module):
        raise SettingError(
            f"loss: {loss.__name__} is a class; give an object of it: {loss.__name__}()"
        )
    if isinstance(loss, nn.Module):
        return _of_module(loss)
    if not callable(loss):
        raise SettingError(
            f"loss cannot be {loss!r}; give one of {', '.join(LOSSES)}, a torch loss or a function"
        )
    if loss in _KNOWN:
        return LOSSES[_KNOWN[loss]]
    function: Callable[..., Tensor] = loss  # type: ignore[assignment]
    if "reduction" in inspect.signature(function).parameters:
        return Custom(partial(function, reduction="none"), getattr(function, "__name__", ""))
    return Custom(function)


def _of_module(loss: nn.Module) -> Loss:
    if type(loss) is nn.MSELoss:
        return LOSSES["mse"]
    if type(loss) in (nn.CrossEntropyLoss, nn.NLLLoss):
        return TorchClasses(loss)  # type: ignore[arg-type]
    if hasattr(loss, "reduction"):
        loss = copy.copy(loss)
        setattr(loss, "reduction", "none")  # noqa: B010 (a module's attributes are untyped)
    if type(loss) is nn.BCEWithLogitsLoss:
        return Binary(loss, middle=0.0)
    if type(loss) is nn.BCELoss:
        return Binary(loss, middle=0.5)
    return Custom(loss)
