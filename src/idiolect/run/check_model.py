"""What can be refused before a run starts about model, loss and data together."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from ..core.knobs import SettingError
from ..core.trees import Tree, arguments, leaves, map_tree
from ..data.federation import Federation
from ..task.losses import CrossEntropy, Squared, beside, classes_last, logits
from ..task.statistics import mixes_samples
from ..task.task import Task


def check_model(task: Task, federation: Federation, batch: int, batching: str) -> None:
    """One sample through model and loss, the one with the largest class; and a step of training."""
    at = _largest(federation)
    data = federation.to(task.device, task.dtype)
    inputs = samples(data.inputs, [at])
    targets = samples(data.targets, [at])
    try:
        for extreme in _extremes(data.inputs):
            task.outputs_of_one(task.x0, samples(data.inputs, [extreme]))
        out = task.outputs_of_one(task.x0, inputs)
    except SettingError:
        raise
    except Exception as error:  # whatever a user's forward raises
        form = map_tree(lambda t: tuple(t.shape[1:]), federation.inputs)
        raise SettingError(
            f"model: it does not accept inputs of shape {form}: {_first_line(error)}"
        ) from None
    if not all(isinstance(t, Tensor) and t.dim() and len(t) == 1 for t in leaves(out)):
        raise SettingError(
            "model: its outputs are not tensors with one entry per sample as their first axis"
        )
    _check_loss(task, federation.classes, out, targets)
    _check_training(task, federation, data, batch, batching)


def samples(tree: Tree, which: list[int]) -> Tree:
    """Some samples of inputs or targets."""
    return map_tree(lambda t: t[which], tree)


def _first_line(error: Exception) -> str:
    return (str(error) or repr(error)).splitlines()[0]


def _largest(federation: Federation) -> int:
    """The sample with the largest class."""
    targets = federation.targets
    if not isinstance(targets, Tensor) or not federation.classes:
        return 0
    largest = targets.flatten(1).amax(1) if targets.dim() > 1 else targets
    return int(largest.argmax())


def _extremes(inputs: Tree) -> list[int]:
    """Samples with the extreme tokens.

    A mapped embedding would read past its table without a word.
    """
    found: list[int] = []
    for t in leaves(inputs):
        if not t.is_floating_point() and t.dtype != torch.bool and t.numel():
            flat = t.flatten(1) if t.dim() > 1 else t.unsqueeze(1)
            found += [int(flat.amax(1).argmax()), int(flat.amin(1).argmin())]
    return sorted(set(found))


def _check_loss(task: Task, classes: int, out: Tree, targets: Tree) -> None:
    loss = task.criterion
    if not classes and (isinstance(loss, CrossEntropy) or loss.name == "logistic"):
        raise SettingError(
            f"loss: {loss.name!r} needs class numbers; "
            "the targets are real numbers: use 'mse' or 'half_squared'"
        )
    if isinstance(loss, CrossEntropy):
        _check_classes(loss, classes, logits(out), targets)
    if loss.name == "logistic" and (classes > 2 or logits(out).shape[-1] != 1):
        raise SettingError(
            f"loss: 'logistic' is for two classes and one output; "
            f"there are {classes} classes and {logits(out).shape[-1]} outputs"
        )
    if isinstance(loss, Squared):
        found = logits(out)
        if beside(found, targets).shape != targets.shape:
            wanted = tuple(targets.shape[1:]) or "one"
            raise SettingError(
                f"model: {tuple(found.shape[1:])} outputs for {wanted} target; "
                f"{loss.name!r} needs as many"
            )
    try:
        loss.each(out, targets)
    except SettingError:
        raise
    except Exception as error:
        raise SettingError(
            f"loss: {loss.name} does not fit the model's outputs: {_first_line(error)}"
        ) from None


def _check_classes(loss: CrossEntropy, classes: int, out: Tensor, targets: Tensor) -> None:
    found = classes_last(out, targets, loss.second)
    outputs = out.shape[-1] if found is None else found.shape[-1]
    if found is not None and outputs < classes:
        raise SettingError(
            f"targets: class {classes - 1} lies outside the model's {outputs} outputs"
        )


def _check_training(
    task: Task, federation: Federation, data: Federation, batch: int, batching: str
) -> None:
    """A training pass on two samples: which buffers does it change?"""
    module = copy.deepcopy(task.module).train()
    before = {n: b.clone() for n, b in module.named_buffers()}
    two = samples(data.inputs, [0, min(1, federation.samples - 1)])
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            _run(module, two)
    except Exception as error:
        raise SettingError(f"model: it fails in training mode: {_first_line(error)}") from None
    known = task.statistics.layout.names if task.statistics else ()
    for name, buffer in module.named_buffers():
        same = name in before and torch.equal(buffer, before[name])
        if not same and name not in known:
            raise SettingError(
                f"model: its forward changes the buffer {name!r}, of which every client needs its "
                f"own; say so with idiolect.Task(..., buffers={name!r})"
            )
    if mixes_samples(task.module):
        _check_single_samples(module, federation, data, batch, batching)


def _check_single_samples(
    module: torch.nn.Module, federation: Federation, data: Federation, batch: int, batching: str
) -> None:
    """BatchNorm cannot be trained on a mini-batch of one value."""
    sizes = federation.sizes("train")
    alone = {
        "replace": torch.full_like(sizes, batch == 1),
        "epochs": sizes % batch == (1 if batch > 1 else 0),
        "full": sizes == 1,
    }[batching].bool() & (sizes > 0)
    if not bool(alone.any()):
        return
    try:
        with torch.no_grad():
            _run(module, samples(data.inputs, [0]))
    except ValueError:
        who = federation.names[int(alone.nonzero()[0])]
        raise SettingError(
            f"batch: with {batch} and batching {batching!r}, client {who!r} has a mini-batch of "
            "one sample, on which BatchNorm cannot be trained; choose another size, or batching "
            "'replace'"
        ) from None


def _run(module: torch.nn.Module, inputs: Tree) -> Any:
    args, kwargs = arguments(inputs)
    return module(*args, **kwargs)
