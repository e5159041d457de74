"""A combination that fails, made as small as it can be while it fails in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from .checks import Failure, examine, normalised
from .draw import Combination
from .losses import LOSSES
from .zoo import ZOO

MOST = 80  # smaller combinations that are tried
SIMPLE_METHODS = ("local", "fedavg")
SIMPLE_MODELS = ("linear", "mlp-relu", "deep")
# checks whose failures are told apart by what they say
BY_TEXT = ("traceback", "warning", "late refusal")


@dataclass
class Cause:
    """Failures that are alike: the smallest combination that fails, and how many others do."""

    check: str
    detail: str
    smallest: Combination
    numbers: list[int] = field(default_factory=list)

    def explains(self, c: Combination, failure: Failure) -> bool:
        """Whether a failure is of this kind: the combination has all that the smallest one has."""
        s = self.smallest
        if failure.check != self.check or not _alike(failure, self.check, self.detail):
            return False
        simplest = Combination()
        same = all(
            getattr(s, n) in (getattr(simplest, n), getattr(c, n))
            for n in ("targets", "loss", "clients", "ids", "source", "model")
        )
        return (
            same
            and (s.method in SIMPLE_METHODS or s.method == c.method)
            and s.options.keys() <= c.options.keys()
            and {n for n in s.fields if n in self.check} <= c.fields.keys()
        )


def _alike(failure: Failure, check: str, detail: str) -> bool:
    if failure.check != check:
        return False
    return check not in BY_TEXT or normalised(failure.detail) == normalised(detail)


def smaller(c: Combination) -> Iterator[Combination]:
    """Combinations with one thing less, or one that is simpler."""
    for name in (*c.options, *c.fields):
        yield c.without(name)
    for name, values in c.options.items():
        for setting in values if len(values) > 1 else ():
            rest = {n: v for n, v in values.items() if n != setting}
            yield replace(c, options=c.options | {name: rest})
    for method in SIMPLE_METHODS:
        if c.method in SIMPLE_METHODS[: SIMPLE_METHODS.index(method) + 1]:
            break
        yield replace(c, method=method, fields={"steps": 2})
    simplest: dict[str, Any] = {"clients": "even", "ids": "numbers", "source": "arrays"}
    for name, value in simplest.items():
        if getattr(c, name) != value:
            yield replace(c, **{name: value})
    if c.loss != "default" and c.targets in LOSSES["default"].targets:
        yield replace(c, loss="default")
    for model in SIMPLE_MODELS:
        if c.model in SIMPLE_MODELS[: SIMPLE_MODELS.index(model) + 1]:
            break
        fits = ZOO[model].outputs in LOSSES[c.loss].outputs
        if c.targets in ZOO[model].targets and fits:
            yield replace(c, model=model)
    if c.targets != "classes" and "classes" in ZOO[c.model].targets:
        yield replace(c, targets="classes", loss="default")


def shrink(c: Combination, failure: Failure) -> Cause:
    """The smallest combination that fails as this one does."""
    removals = [failure.check.removeprefix("without ")] if "without" in failure.check else []
    detail = failure.detail
    tried = 0
    again = True
    while again and tried < MOST:
        again = False
        for candidate in smaller(c):
            tried += 1
            if removals and candidate.method == "local" != c.method:
                continue  # nothing is sent there: what concerns messages has no effect
            if any(name not in (*candidate.options, *candidate.fields) for name in removals):
                continue
            only = failure.check if failure.check not in BY_TEXT else "models"
            outcome = examine(candidate, removals, only)
            same = [f for f in outcome.failures if _alike(f, failure.check, failure.detail)]
            if same:
                c, detail, again = candidate, same[0].detail, True
                break
    return Cause(failure.check, detail, c)
