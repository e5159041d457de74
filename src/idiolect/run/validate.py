"""What can be refused before a run starts."""

from __future__ import annotations

import copy
import math
import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..channels.link import Link
from ..core.knobs import SettingError, nearest, scalable
from ..core.text import warn
from ..core.types import Tree, arguments, leaves, map_tree
from ..data.federation import Federation
from ..method import Method
from ..methods import name_of
from ..server.contract import Contract
from ..server.streaming_mean import StreamingPlan
from ..task.buffers import mixes_samples
from ..task.client_optimizer import ClientOptimizer, scale_factors
from ..task.losses import CrossEntropy, Squared, classes_last, logits, shaped_as
from ..task.task import Task
from .settings import DTYPES, Settings


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
        raise SettingError("patience_metric must be 'loss' for real targets, got 'accuracy'")


def check_optimizer(method: Method, task: Task, optimizer: ClientOptimizer) -> None:
    """Refuse an optimiser, or learning rates by parameter, for a method that fixes its steps."""
    if optimizer.plain:
        return
    if not method.traits.optimizers:
        setting = "lr_scale" if optimizer.name == "sgd" and not optimizer.options else "optimizer"
        value = optimizer.lr_scale if setting == "lr_scale" else optimizer.words_of_step
        raise SettingError(
            f"{setting} must be left out for {name_of(method)}, got {value!r}: "
            f"{method.traits.fixed_step} (in a comparison, give it to the rows that take it: "
            f"'fedavg:{setting}=...')"
        )
    method.step_coordinates(task)  # refuses fields that belong to plain SGD
    still = int((scale_factors(optimizer.lr_scale, task.layout) == 0).sum())
    if still and method.message(task):
        warn(
            f"lr_scale: {still:,} of {task.d:,} numbers have factor 0: they are not trained, but "
            "are still sent; Task(..., frozen=...) or --frozen makes them constants, which are not"
        )


def check_schedule(method: Method, task: Task, s: Settings) -> None:
    """Refuse curves for fields that there are not, or that may not change between rounds."""
    names = (*scalable(type(method)), "batch", "server_lr")
    for name in s.schedule.fields:
        if name not in names:
            raise nearest(name, names, f"schedule: {name_of(method)} setting")
        if getattr(method, name, 1) == 0:
            raise SettingError(
                f"schedule must be about fields other than 0, got {name!r}, which stays 0 whatever "
                f"the factor; give {name}, or a curve to another field"
            )
        other = method.scaled({name: 2.0})
        if _forms(other, task) != _forms(method, task):
            raise SettingError(
                f"schedule must not change {name!r}: it is part of what clients send or keep, "
                "which is the same in every round"
            )
    method.scaled(s.schedule.factors(max(s.rounds - 1, 0), max(s.rounds, 1)))  # within its range
    if "batch" in s.schedule.fields and s.batching == "full":
        raise SettingError(
            "schedule must not have 'batch' with batching 'full', which takes all data; "
            "batching 'replace' or 'epochs'"
        )


def _forms(method: Method, task: Task) -> list:
    """What a method sends and keeps, by name and shape."""
    states = (method.server(task), method.private(task, np.zeros(1, dtype=np.uint64)))
    shapes = [{name: t.shape for name, t in state.items()} for state in states]
    return [method.message(task), method.traits.trains, *shapes]


def check_numbers(method: Method, s: Settings) -> None:
    """Refuse a number that torch cannot hold in the run's precision."""
    steps = {
        name: getattr(s, name) for name in ("clip", "weight_decay", "server_lr", "finetune_lr")
    }
    largest = torch.finfo(DTYPES[s.dtype]).max
    for name, value in {**method.as_dict(), **steps}.items():
        if isinstance(value, float) and abs(value) > largest:
            raise SettingError(
                f"{name} must be at most {largest:.3g}, the largest {s.dtype}, got {value!r}"
            )


def check_memory(method: Method, task: Task, s: Settings, clients_heard: int) -> None:
    """Say it where a round's messages exceed the memory and cannot be summed as they arrive."""
    plan = StreamingPlan.of(
        Contract(method, task, s.channel, 0), s.rule, clients_heard, int(s.memory * 2**30)
    )
    if not plan.reason:
        return
    facts = (
        f"memory: the messages of a round take {plan.cohort / 2**30:.3g} GiB at the server, "
        f"more than the {s.memory:g} GiB that are set, and must all be held: {plan.reason}"
    )
    advice = "hear fewer clients per round (sample), or aggregate with the mean"
    if plan.cohort > physical_memory():
        raise SettingError(f"{facts}; this machine has less: {advice}")
    warn(f"{facts}; if that is too much, {advice}")


def physical_memory() -> float:
    """Bytes of memory of this machine; infinity where the system does not tell."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf


def check_asynchronous(
    method: Method, task: Task, link: Link, s: Settings, eligible: int, busy: int
) -> None:
    """Refuse what makes no sense when messages are used one by one; `busy`: clients at work."""
    if reason := why_not(method, task):
        raise SettingError(
            f"timing must be 'rounds' for {name_of(method)}, got 'arrivals': {reason}"
        )
    if link.aggregate_stage is not None:
        raise SettingError(
            "channel must decode each message by itself with timing='arrivals'; this one decodes "
            "the sum of a round's messages"
        )
    if s.attack is not None and s.attack.colludes:
        raise SettingError(
            "attack must not read the honest messages of the round with timing='arrivals': there "
            "is no such round"
        )
    if s.change_from == "newest" and not _models(method, task):
        raise SettingError(
            f"change_from must be 'start' for {name_of(method)}, which sends changes, not models, "
            "got 'newest'"
        )
    s.rule.check(s.buffer)
    if s.quorum > s.buffer:
        raise SettingError(
            f"quorum must be at most the {s.buffer} messages of a step (buffer), got {s.quorum}"
        )
    if busy > eligible:
        raise SettingError(
            f"concurrency must be at most the {eligible} clients that can take part, got {busy}"
        )
    if method.traits.trains == "everyone" and busy < eligible:
        raise SettingError(
            f"concurrency must be 0 or all {eligible} clients for {name_of(method)}, of which "
            f"everyone trains at all times, got {busy}"
        )


def why_not(method: Method, task: Task) -> str:
    """Why a method cannot be trained asynchronously; "" where it can.

    By what it declares: its messages must be changes, or models that started from what was sent.
    """
    message = method.message(task)
    if not message:
        return "it sends nothing"
    if method.traits.hears_all:
        return "it makes sense only if every client is heard in every round"
    if method.traits.needs_round:
        return method.traits.needs_round
    unknown = set(message) - set(method.traits.changes) - _models(method, task)
    if unknown:
        parts = ", ".join(sorted(unknown))
        return f"the part {parts} of its message is neither a change nor a model that it was sent"
    return ""


def _models(method: Method, task: Task) -> set[str]:
    """The parts of the message that are models which started from what was sent."""
    return set(method.reference(task, method.broadcast(task, method.server(task))))


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
    positions: list[int] = []
    for t in leaves(inputs):
        if not t.is_floating_point() and t.dtype != torch.bool and t.numel():
            flat = t.flatten(1) if t.dim() > 1 else t.unsqueeze(1)
            positions += [int(flat.amax(1).argmax()), int(flat.amin(1).argmin())]
    return sorted(set(positions))


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
        outputs = logits(out)
        if shaped_as(outputs, targets).shape != targets.shape:
            wanted = tuple(targets.shape[1:]) or "one"
            raise SettingError(
                f"model: {tuple(outputs.shape[1:])} outputs for {wanted} target; "
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
    class_scores = classes_last(out, targets, loss.second)
    outputs = out.shape[-1] if class_scores is None else class_scores.shape[-1]
    if class_scores is not None and outputs < classes:
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
    statistic_names = task.statistics.layout.names if task.statistics else ()
    for name, buffer in module.named_buffers():
        same = name in before and torch.equal(buffer, before[name])
        if not same and name not in statistic_names:
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
