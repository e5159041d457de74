"""A user's own metric: a function of (outputs, targets), of torchmetrics or of scikit-learn."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.knobs import SettingError
from ...core.text import first_line
from .metric import EvaluatedSamples, Metric, TargetForm

CALLED = "it gets (outputs, targets) of one client and returns a number"
LOWER = ("loss", "error", "deviance", "distance")  # in a name: lower is better


class Own(Metric):
    """A function of the outputs and targets of one client, called once per client.

    "Pooled" is the mean over clients, weighted by samples. Where samples have weights, it must have
    a parameter `sample_weight`, as those of scikit-learn have. A client for which the function
    raises ValueError or gives NaN has no value.
    """

    needs = "any"
    whole = True
    weights_hint = "; give a function with a parameter sample_weight, as those of scikit-learn have"
    over = "clients"
    strict = True  # whether a function that fails ends the run

    def __init__(self, function: Any, name: str = ""):
        self.function = function
        self.name = name or _name(function)
        self.higher = _higher(function, self.name)
        self.weighs = _takes_weights(function)
        self.call = _caller(function)

    def lenient(self) -> Own:
        """The same; a client has no value where the function fails, whatever it raises."""
        other = copy.copy(self)
        other.strict = False
        return other

    def width(self, form: TargetForm) -> int:
        return 1

    def value(self, samples: EvaluatedSamples) -> float:
        """The value of one client; NaN where it has none."""
        try:
            value = float(self.call(samples))
        except ValueError:
            return math.nan
        except SettingError:
            if not self.strict:
                return math.nan
            raise
        except Exception as error:  # whatever a user's function raises
            if not self.strict:
                return math.nan
            reason = first_line(error)
            raise SettingError(
                f"metrics: {self.name} failed on {len(samples.owner)} samples: {reason}; {CALLED}"
            ) from None
        return value if math.isfinite(value) else math.nan

    def add(self, rows: Tensor, counts: Tensor, samples: EvaluatedSamples) -> None:
        owners, sizes = samples.owner.unique_consecutive(return_counts=True)
        ends = sizes.cumsum(0).tolist()
        for owner, size, end in zip(owners.tolist(), sizes.tolist(), ends, strict=True):
            rows[owner, 0] = self.value(samples.only(slice(end - size, end)))

    def check(self, trials: Sequence[EvaluatedSamples]) -> None:
        """Refuse a function that fails on every client."""
        reasons = []
        for samples in trials:
            try:
                value = float(self.call(samples))
            except ValueError as error:
                reasons.append(str(error))
            except Exception as error:  # whatever a user's function raises
                reasons = [str(error) or repr(error)]
                break
            else:
                if value == value:
                    return
                reasons.append("it gives NaN")
        if reasons:
            raise SettingError(
                f"metrics: {self.name!r} fails on the first clients: "
                f"{reasons[0].splitlines()[0]}; {CALLED}"
            )

    def pooled(self, rows: Tensor, counts: Tensor, masses: Tensor) -> float:
        each = self.each(rows)
        has_value = ~each.isnan() & (masses > 0)
        n = masses[has_value].double()
        return float((each[has_value] * n).sum() / n.sum()) if len(n) else math.nan


class Absent(Metric):
    """A function that a run was made with and that is not at hand: its name in a record."""

    counted = False

    def __init__(self, name: str):
        self.name = name

    def refusal(self, form: TargetForm) -> str:
        return (
            "it is a function of the program that made the run; "
            "give the function itself, or module:function"
        )


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__name__", "") or type(function).__name__


def _higher(function: Any, name: str) -> bool:
    """Whether higher is better: as it says itself, or by its name."""
    while isinstance(function, functools.partial):
        function = function.func
    higher = getattr(function, "higher_is_better", None)
    return bool(higher) if higher is not None else not any(word in name.lower() for word in LOWER)


def _caller(function: Any) -> Callable[[EvaluatedSamples], Any]:
    """How the function is called on the samples of one client."""
    if all(callable(getattr(function, part, None)) for part in ("update", "compute", "reset")):

        def accumulate(samples: EvaluatedSamples) -> Any:  # a torchmetrics.Metric
            function.reset()
            function.update(samples.outputs, samples.targets)
            return function.compute()

        return accumulate
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if (getattr(inner, "__module__", "") or "").startswith("sklearn."):
        return _of_scikit_learn(function, inner)

    def call(samples: EvaluatedSamples) -> Any:
        return function(samples.outputs, samples.targets, **_weights(samples, samples.masses))

    return call


def _takes_weights(function: Any) -> bool:
    try:
        return "sample_weight" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function in C has no signature
        return False


def _weights(samples: EvaluatedSamples, weights: Any) -> dict[str, Any]:
    """The argument that a function gets where samples have weights."""
    return {"sample_weight": weights} if samples.form.weighted else {}


def _of_scikit_learn(function: Any, inner: Any) -> Callable[[EvaluatedSamples], Any]:
    """scikit-learn's functions take (y_true, y_pred), or scores in place of y_pred."""
    second = list(inspect.signature(inner).parameters)[1]

    def call(samples: EvaluatedSamples) -> Any:
        if not samples.form.classes:
            predicted, targets = samples.values
            weights = _weights(samples, samples.masses.numpy())
            return function(targets.squeeze(1).numpy(), predicted.squeeze(1).numpy(), **weights)
        weights = _weights(samples, samples.target_masses.numpy())
        labels = samples.labels.numpy()
        if second == "y_pred" and inner.__name__ != "log_loss":
            return function(labels, samples.predicted.numpy(), **weights)
        p = samples.log_probabilities.exp().numpy()
        return function(labels, p[:, 1] if p.shape[1] == 2 else p, **weights)

    return call


def usable(thing: Any) -> bool:
    """Whether it can be a metric: something to call, and not a class that is still to be made."""
    return callable(thing) and not isinstance(thing, (type, str, torch.Tensor))
