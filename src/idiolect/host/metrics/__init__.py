"""Metrics by name or as functions: `metrics=["auc", my_metric]`, `--metrics auc,f1`.

>>> [m.name for m in parse_metrics("auc, top_5")]
['auc', 'top_5']
>>> parse_metrics("acu")  # doctest: +ELLIPSIS
Traceback (most recent call last):
    ...
idiolect.core.knobs.SettingError: metrics: 'acu' is unknown; did you mean 'auc'? known: ...
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from ...core.knobs import SettingError
from ...core.registry import Table
from ...core.types import leaves, map_tree
from ...data.federation import Federation
from ...task.losses import Loss
from ...task.task import Task
from . import confusion, ranking, sample_means  # noqa: F401  they enter their metrics
from .catalogue import ALWAYS, BUILT_IN
from .custom import Absent, Own, usable
from .metric import EvaluatedSamples, Metric, MetricCounts, Tally, TargetForm, plain
from .positive import PositiveClass, parse_positive, positive_class

__all__ = [
    "METRICS",
    "EvaluatedSamples",
    "Metric",
    "MetricCounts",
    "PositiveClass",
    "Tally",
    "TargetForm",
    "check_metrics",
    "described",
    "direction",
    "form_of",
    "in_use",
    "is_distance",
    "metrics_text",
    "parse_metrics",
    "parse_positive",
    "positive_class",
]

OWN = "own:"  # before the name of a function that is given as an object
RESERVED = {"round", "seed", "loss", "gradients", "gradients_per_client", "client", "samples"}


def _accept(name: str, thing: Any) -> Metric:
    if isinstance(thing, Metric):
        return thing
    if not usable(thing):
        raise SettingError(f"metrics must be functions of (outputs, targets), got {name!r}")
    return Own(thing)


METRICS: Table[Metric] = Table("metrics", "idiolect.metrics", BUILT_IN, _accept)


def parse_metrics(spec: Any) -> tuple[Metric, ...]:
    """Metrics from a line of names, a list of names and functions, or one of them.

    A function may come with a name: `("kappa", function)`.
    """
    if spec is None:
        return ()
    if isinstance(spec, str):
        names = [piece.strip() for piece in spec.split(",")]
        parsed_metrics = [_named(name) for name in names if name]
    elif isinstance(spec, Metric) or usable(spec):
        parsed_metrics = [_one(spec)]
    elif isinstance(spec, Iterable):
        parsed_metrics = [_one(thing) for thing in spec]
    else:
        raise _not_one(spec)
    names = [m.name for m in parsed_metrics]
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][\w-]{0,59}", name) or name in RESERVED:
            raise SettingError(
                f"metrics: {name!r} cannot be the name of a column; give the function a name of "
                "letters and digits: metrics=[('kappa', function)]"
            )
        if names.count(name) > 1:
            raise SettingError(f"metrics: {name!r} is named twice; each may be named once")
    return tuple(parsed_metrics)


def _one(thing: Any) -> Metric:
    if isinstance(thing, Metric):
        return thing
    if isinstance(thing, str):
        return _named(thing)
    pair = isinstance(thing, (tuple, list)) and len(thing) == 2
    if pair and isinstance(thing[0], str) and usable(thing[1]):
        return Own(thing[1], thing[0])
    if not usable(thing):
        raise _not_one(thing)
    return Own(thing)


def _not_one(thing: Any) -> SettingError:
    hint = "; make an object of it first" if isinstance(thing, type) else ""
    return SettingError(
        f"metrics must be names ({', '.join(METRICS.built_in)}), functions of (outputs, targets), "
        f"or pairs of a name and a function, got {str(thing)[:80]!r}{hint}"
    )


def _named(name: str) -> Metric:
    if name.startswith(OWN):
        return Absent(name.removeprefix(OWN))
    for built_in in BUILT_IN.values():
        if metric := built_in.named(name):
            return metric
    return METRICS.find(name)


def metrics_text(metrics: Iterable[Metric]) -> str:
    """The line that `parse_metrics` reads; a function that has no name there as `own:NAME`.

    >>> metrics_text(parse_metrics(["auc", ("kappa", max)]))
    'auc,own:kappa'
    """
    listed = {id(m): name for name, m in METRICS.known().items()}

    def word(m: Metric) -> str:
        if isinstance(m, (Own, Absent)):
            return listed.get(id(m), OWN + m.name)
        return m.name

    return ",".join(map(word, metrics))


# losses whose targets are numbers to be met: for these a regression shows rmse and r2 by itself
_DISTANCES = ("mse", "squared", "l1", "huber", "mae")


def is_distance(loss: str) -> bool:
    """Whether a loss, by its name, is about how far real numbers are from their targets."""
    return any(word in loss.lower() for word in _DISTANCES)


def in_use(
    metrics: Iterable[Metric],
    metric_name: str,
    classes: int,
    loss: str,
    positive: PositiveClass | None = None,
) -> tuple[Metric, ...]:
    """What a run counts beside accuracy and loss.

    That is what was asked for, with the metric `metric_name`; for a regression where nothing
    was asked for, rmse and r2. Metrics of one of two classes are about the `positive` one.
    """
    wanted = list(metrics)
    if not wanted and not classes and is_distance(loss):
        wanted = [METRICS.find("rmse"), METRICS.find("r2")]
    if metric_name and metric_name not in ALWAYS and metric_name not in [m.name for m in wanted]:
        wanted.append(_named(metric_name))
    of_positive = [m.name for m in wanted if m.of_positive]
    if classes == 2 and positive is None and of_positive:
        raise SettingError(
            f"positive must name the class that {', '.join(of_positive)} is about: the labels do "
            "not tell which of the two it is"
        )
    return tuple(m.about(positive) for m in wanted if m.counted)


def direction(name: str, metrics: Iterable[Metric] = ()) -> bool:
    """Whether higher is better, of a figure by its name: of these metrics, or any that is known.

    >>> direction("auc"), direction("loss")
    (True, False)
    """
    by_name = {m.name: m for m in metrics}
    if name in {**ALWAYS, **by_name}:
        return {**ALWAYS, **by_name}[name].higher
    try:
        return _named(name).higher
    except SettingError as error:
        raise SettingError(str(error).replace("metrics:", "metric:", 1)) from None


def form_of(federation: Federation, loss: Loss) -> TargetForm:
    """What the targets of these data are like, and the outputs that the loss takes."""
    targets = leaves(federation.targets)[0]
    many = max(1, math.prod(targets.shape[1:]))
    return TargetForm(
        federation.classes,
        many,
        not loss.of_probabilities,
        federation.special,
        federation.weights is not None,
    )


def described(metrics: Iterable[Metric], classes: int) -> dict[str, dict[str, Any]]:
    """What a record says of its metrics."""
    return {m.name: m.facts(classes) for m in metrics}


# -- against a task and its data, before a run -----------------------------------------------------
TRIED = 8  # clients that metrics are tried on
MOST = 64  # samples of each


def check_metrics(
    task: Task,
    federation: Federation,
    metrics: Sequence[Metric],
    metric_name: str,
    positive: PositiveClass | None = None,
) -> None:
    """Refuse, by name, a metric that these data or the model's outputs cannot have."""
    form = form_of(federation, task.criterion)
    if metric_name in ALWAYS and (reason := ALWAYS[metric_name].refusal(form)):
        raise SettingError(f"metric must fit these data, got {metric_name!r}: {reason}")
    used = in_use(metrics, metric_name, federation.classes, task.criterion.name, positive)
    for metric in (*metrics, *used):
        if reason := metric.refusal(form):
            raise SettingError(f"metrics must fit these data, got {metric.name!r}: {reason}")
    trials = _trials(task, federation, form) if used else []
    for metric in used:
        metric.check(trials)


def _trials(task: Task, federation: Federation, form: TargetForm) -> list[EvaluatedSamples]:
    """A few clients' samples through the model as it is at the start."""
    trials: list[EvaluatedSamples] = []
    data = federation.to(task.device, task.dtype)
    for split in ("test", "train"):
        sizes = federation.sizes(split)
        for k in sizes.argsort(descending=True, stable=True)[:TRIED].tolist():
            n = min(MOST, int(sizes[k]))
            if not n:
                continue

            def cut(t: Tensor, n: int = n) -> Tensor:
                return t[:n]

            inputs, targets = (map_tree(cut, part) for part in data.part(k, split))
            outputs = map_tree(plain, task.outputs_of_one(task.x0, inputs))
            weights = None
            if federation.weights is not None:
                first = int(federation.offsets[split][k])
                weights = federation.weights[first : first + n]
            owner = sizes.new_zeros(n)
            trials.append(EvaluatedSamples(owner, outputs, map_tree(plain, targets), form, weights))
        if trials:
            break
    return trials
