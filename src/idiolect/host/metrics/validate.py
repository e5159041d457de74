"""Metrics against a task and its data, before a run: what makes no sense is refused by name."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ...core.knobs import SettingError
from ...core.types import Tree, map_tree
from ...data.federation import Federation
from ...task.task import Task
from . import ALWAYS, form_of, in_use, refuse
from .custom import Own
from .metric import Form, Metric, Samples, prediction

TRIED = 8  # clients that a user's own function is tried on
MOST = 64  # samples of each


def check_metrics(
    task: Task, federation: Federation, metrics: Sequence[Metric], metric_name: str
) -> None:
    """Refuse a metric that these data or the model's outputs cannot have."""
    form = form_of(federation, task.criterion)
    if metric_name in ALWAYS and (reason := ALWAYS[metric_name].refusal(form)):
        raise SettingError(f"metric: {metric_name!r} is not accepted here: {reason}")
    used = in_use(metrics, metric_name, federation.classes, task.criterion.name)
    refuse([*metrics, *used], form)
    if not used:
        return
    tried = list(_some(task, federation, form))
    for metric in used:
        if isinstance(metric, Own):
            _try(metric, tried)
        elif tried:
            _check_outputs(metric, tried[0], form)


def _some(task: Task, federation: Federation, form: Form) -> list[Samples]:
    """A few clients' samples through the model as it is at the start."""
    samples = []
    data = federation.to(task.device, task.dtype)
    for split in ("test", "train"):
        for k in federation.sizes(split).argsort(descending=True, stable=True)[:TRIED].tolist():
            inputs, targets = data.part(k, split)
            n = min(MOST, int(federation.sizes(split)[k]))
            if not n:
                continue

            def cut(t: Tensor, n: int = n) -> Tensor:
                return t[:n]

            outputs: Tree = task.outputs_of_one(task.x0, map_tree(cut, inputs))
            owner = federation.sizes(split).new_zeros(n)
            plain_targets = map_tree(_plain, map_tree(cut, targets))
            samples.append(Samples(owner, map_tree(_plain, outputs), plain_targets, form))
        if samples:
            break
    return samples


def _plain(t: Tensor) -> Tensor:
    return t.detach().cpu()


def _try(metric: Own, tried: list[Samples]) -> None:
    """Refuse a function that fails on every client."""
    reasons = []
    for samples in tried:
        try:
            value = float(metric.call(samples))
        except ValueError as error:
            reasons.append(str(error))
            continue
        except Exception as error:  # whatever a user's function raises
            reasons = [str(error) or repr(error)]
            break
        if value == value:
            return
        reasons.append("it gives NaN")
    else:
        if not tried:
            return
    reason = reasons[0].splitlines()[0]
    raise SettingError(
        f"metrics: {metric.name!r} fails on the first clients: {reason}; "
        "it gets (outputs, targets) of one client and returns a number"
    )


def _check_outputs(metric: Metric, samples: Samples, form: Form) -> None:
    """Refuse outputs that are no scores of classes, and no values of targets."""
    try:
        outputs = prediction(samples.outputs)
        targets = prediction(samples.targets)
        if metric.needs == "values":
            fits = samples.values[0].shape == samples.values[1].shape
        else:
            width = samples.log_probabilities.shape[1]
            fits = width == form.classes
    except (RuntimeError, IndexError, ValueError) as error:
        if isinstance(error, SettingError):
            raise
        fits = False
    if not fits:
        raise SettingError(
            f"metrics: {metric.name!r} is not accepted here: outputs of shape "
            f"{tuple(outputs.shape[1:])} for targets of shape {tuple(targets.shape[1:])} are not "
            + ("one value per target" if metric.needs == "values" else "one score per class")
        )
