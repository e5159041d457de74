"""Whether a model, its loss and the data fit each other."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..attacks import Attack
from ..core.draws import keyed_draws
from ..core.knobs import SettingError
from ..core.text import first_line
from ..core.types import Tree, leaves, map_tree
from ..data.federation import Census, Federation
from ..task.buffers import mixes_samples
from ..task.forward import forward
from ..task.frozen import shared_copy
from ..task.losses import (
    CrossEntropy,
    Squared,
    classes_last,
    logits,
    shaped_as,
    shapes_text,
)
from ..task.task import Task
from ..task.trial import SAMPLES, Behaviour
from .sample_weights import check_sample_weights


def check_model(task: Task, federation: Federation, batch: int, batching: str) -> None:
    """One sample through model and loss, the one with the largest class; and a step of training."""
    check_sample_weights(task, federation)
    at = _largest(federation)
    data = federation.to(task.device, task.dtype)
    inputs = _samples(data.inputs, [at])
    targets = _samples(data.targets, [at])
    try:
        blank = isinstance(federation, Census)
        for extreme in () if blank else _extremes(data.inputs):
            task.outputs_of_one(task.x0, _samples(data.inputs, [extreme]))
        out = task.outputs_of_one(task.x0, inputs)
    except SettingError:
        raise
    except Exception as error:  # whatever a user's forward raises
        form = map_tree(lambda t: tuple(t.shape[1:]), federation.inputs)
        raise SettingError(
            f"model: it does not accept inputs of shape {form}: {first_line(error)}"
        ) from None
    if not leaves(out) or not all(t.dim() and len(t) == 1 for t in leaves(out)):
        raise SettingError(
            "model: its outputs are not tensors with one entry per sample as their first axis"
        )
    _check_loss(task, federation.classes, inputs, out, targets)
    _check_values(task, data, [at, 0, min(1, federation.samples - 1)])
    _check_training(task, federation, data, batch, batching)


def check_false_targets(
    task: Task, federation: Federation, attack: Attack, malicious: Tensor, seed: int
) -> None:
    """Refuse an attack on the labels that makes targets which the loss does not take."""
    one = federation.of(malicious[:1])
    false = attack.poison(one, torch.zeros(1, dtype=torch.int64), seed, task.criterion)
    data = false.to(task.device, task.dtype)
    trained = list(range(min(int(data.sizes("train")[0]), 64)))
    outputs = task.outputs_of_one(task.x0, _samples(data.inputs, trained))
    try:
        task.criterion.each(outputs, _samples(data.targets, trained))
    except SettingError:
        raise
    except Exception as error:  # whatever a user's loss raises
        raise SettingError(
            f"attack: it makes targets that the loss {task.criterion.name} does not take: "
            f"{first_line(error)}"
        ) from None


def behaviour_on(task: Task, federation: Federation) -> Behaviour:
    """A trial of model and loss on samples of the client that has most of them for training."""
    offsets = federation.offsets["train"]
    client = int(federation.sizes("train").argmax()) if federation.clients else 0
    low, high = offsets[client : client + 2].tolist() if federation.clients else (0, 0)
    if low == high or isinstance(federation, Census):
        return task.behaviour
    spread = torch.linspace(low, high - 1, SAMPLES).long().unique().tolist()
    some = (spread * SAMPLES)[: SAMPLES + 4]  # some of them twice: equal ones beside each other

    def chosen(t: Tensor) -> Tensor:
        return t[some].to(task.device, task.dtype if t.is_floating_point() else None)

    return task.try_on(map_tree(chosen, federation.inputs), map_tree(chosen, federation.targets))


def _largest(federation: Federation) -> int:
    """The sample with the largest class."""
    targets = federation.targets
    blank = isinstance(federation, Census)  # all alike, and as many as somebody says there are
    if blank or not isinstance(targets, Tensor) or not federation.classes:
        return 0
    largest = targets.flatten(1).amax(1) if targets.dim() > 1 else targets
    return int(largest.argmax())


def _extremes(inputs: Tree) -> list[int]:
    """Samples with the extreme tokens.

    A mapped embedding reads past its table without an error.
    """
    positions: list[int] = []
    for t in leaves(inputs):
        if not t.is_floating_point() and t.dtype != torch.bool and t.numel():
            flat = t.flatten(1) if t.dim() > 1 else t.unsqueeze(1)
            positions += [int(flat.amax(1).argmax()), int(flat.amin(1).argmin())]
    return sorted(set(positions))


def _check_probabilities(task: Task, inputs: Tree) -> None:
    """Refuse outputs below 0 or above 1, also of a model that training may come to."""
    noise = torch.Generator().manual_seed(0)
    for scale in (0.0, 1.0, 1.0, 3.0, 3.0):
        x = task.x0 + scale * torch.randn(task.d, generator=noise).to(task.x0)
        outputs = logits(task.outputs_of_one(x, inputs))
        outside = outputs[(outputs < 0) | (outputs > 1)]
        if len(outside):
            raise SettingError(
                f"loss: {task.criterion.name} takes probabilities from 0 to 1, and the model's "
                f"outputs may be others, such as {float(outside[0]):.3g}: end the model with a "
                "sigmoid, or take nn.BCEWithLogitsLoss"
            )


def _check_loss(task: Task, classes: int, inputs: Tree, out: Tree, targets: Tree) -> None:
    loss = task.criterion
    if not classes and (isinstance(loss, CrossEntropy) or loss.name == "logistic"):
        raise SettingError(
            f"loss: {loss.name!r} needs class numbers; "
            "the targets are real numbers: use 'mse' or 'half_squared'"
        )
    if isinstance(loss, CrossEntropy):
        scores = classes_last(logits(out), targets, loss.second)
        if scores is not None and scores.shape[-1] < classes:
            words = f"class {classes - 1} lies outside the model's {scores.shape[-1]} outputs"
            if getattr(loss, "ignore", None) == classes - 1:
                words += f"; if it marks what is to be ignored, give the data ignored={classes - 1}"
            raise SettingError(f"targets: {words}")
    if loss.name == "logistic" and (classes > 2 or logits(out).shape[-1] != 1):
        raise SettingError(
            f"loss: 'logistic' is for two classes and one output; "
            f"there are {classes} classes and {logits(out).shape[-1]} outputs"
        )
    if loss.of_probabilities:
        _check_probabilities(task, inputs)
    if isinstance(loss, Squared):
        outputs = logits(out)
        if shaped_as(outputs, targets).shape != targets.shape:
            wanted = tuple(targets.shape[1:]) or "one"
            raise SettingError(
                f"model: {tuple(outputs.shape[1:])} outputs for {wanted} target; "
                f"{loss.name!r} needs as many"
            )


def _check_values(task: Task, data: Federation, three: list[int]) -> None:
    """The loss of three samples, and of two of them: one value per sample or target?"""
    loss = task.criterion
    inputs, targets = _samples(data.inputs, three), _samples(data.targets, three)
    out = task.outputs_of_one(task.x0, inputs)
    try:
        value = loss.each(out, targets)
        fewer = loss.each(_samples(out, [0, 1]), _samples(targets, [0, 1]))
    except SettingError:
        raise
    except Exception as error:
        hint = ""
        if isinstance(targets, Tensor) and targets.dim() > 1 and isinstance(out, Tensor):
            by_class = out.shape[:-1] == targets.shape
            hint = "; torch's losses want classes second: outputs.movedim(-1, 1)" * by_class
        raise SettingError(
            f"loss: {loss.name} does not fit the model's outputs: {first_line(error)}; "
            f"it is given {shapes_text(out, targets)}{hint}"
        ) from None
    if value.shape[1:] != fewer.shape[1:]:
        raise SettingError(
            f"loss: {loss.name} must return one value per sample, or one per target, got shape "
            f"{tuple(value.shape)} for 3 samples and {tuple(fewer.shape)} for 2, so that samples "
            f"are taken with each other: {shapes_text(out, targets)}"
        )


def _check_training(
    task: Task, federation: Federation, data: Federation, batch: int, batching: str
) -> None:
    """A training pass on two samples: which buffers does it change?"""
    module = shared_copy(task.module).train()
    before = {n: b.clone() for n, b in module.named_buffers()}
    try:
        with keyed_draws(0):
            _forward(module, data.inputs, [0, min(1, federation.samples - 1)])
    except Exception as error:
        raise SettingError(f"model: it fails in training mode: {first_line(error)}") from None
    statistic_names = task.statistics.layout.names if task.statistics else ()
    for name, buffer in module.named_buffers():
        same = name in before and torch.equal(buffer, before[name])
        if not same and name not in statistic_names:
            raise SettingError(
                f"model: its forward changes the buffer {name!r}, of which every client needs its "
                f"own; say so with idiolect.Task(..., buffers={name!r})"
            )
    if not mixes_samples(task.module):
        return
    # BatchNorm cannot be trained on a mini-batch of one value
    sizes = federation.sizes("train")
    alone = {
        "replace": torch.full_like(sizes, batch == 1),
        "epochs": sizes % batch == (1 if batch > 1 else 0),
        "full": sizes == 1,
        "poisson": torch.ones_like(sizes),  # any mini-batch may have one sample
    }[batching].bool() & (sizes > 0)
    if not bool(alone.any()):
        return
    try:
        _forward(module, data.inputs, [0])
    except ValueError:
        who = federation.names[int(alone.nonzero()[0])]
        raise SettingError(
            f"batch: with {batch} and batching {batching!r}, client {who!r} has a mini-batch of "
            "one sample, on which BatchNorm cannot be trained; choose another size, or batching "
            "'replace'"
        ) from None


def _forward(module: nn.Module, inputs: Tree, which: list[int]) -> None:
    """These samples through a module."""
    with torch.no_grad():
        forward(module, _samples(inputs, which))


def _samples(tree: Tree, which: list[int]) -> Tree:
    """Some samples of inputs or targets."""
    return map_tree(lambda t: t[which], tree)
