"""Cases and scales: the federation and model of a column, and how much of it is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import nn

from idiolect import Federation, Method, Task, data, models
from idiolect.methods import SplitMethod
from idiolect.study import Stock

from .known_words import known_words

HIDDEN = "32"  # units of the hidden layer for methods that need parts


@dataclass(frozen=True)
class Scale:
    """How much of an experiment is run; experiments add what else they vary."""

    rounds: int
    seeds: int
    options: dict[str, Any] = field(default_factory=dict)  # of the data: a part of them

    def text(self, name: str) -> str:
        """For the page.

        >>> Scale(60, 3, {"clients": 20}).text("quick")
        'quick: 60 rounds, 3 seeds, clients 20'
        """
        part = "".join(f", {k} {v}" for k, v in self.options.items())
        return f"{name}: {self.rounds} rounds, {self.seeds} seeds{part}"


@dataclass(frozen=True)
class Case:
    """A federation and its model; experiments add what else they vary."""

    data: str | Callable[..., Federation]  # its name, or a function of the options and the seed
    model: str | type[nn.Module]
    options: dict[str, Any] = field(default_factory=dict)  # of the data
    model_options: dict[str, Any] = field(default_factory=dict)
    clients_per_round: float = 0.1  # below 1 a share of the clients
    dim: int = 21  # of the subspace of lp-proj
    only_known: bool = False  # of texts: unknown words are not to be predicted

    def load(self, **options: Any) -> tuple[Federation, Task]:
        """The data and the model; `options` of the data go before those of the case."""
        make = self.data if callable(self.data) else partial(data.load, self.data)
        federation = make(**{**self.options, **options})
        if self.only_known:
            federation = known_words(federation)
        return federation, self.task(federation)

    def task(self, federation: Federation) -> Task:
        shape, classes = federation.shape, federation.classes
        return Task(partial(models.make, self.model, shape, classes, **self.model_options))

    def sample(self, clients: int) -> int:
        """How many of so many clients are heard per round.

        >>> Case("mnist", "mlp", clients_per_round=0.2).sample(50)
        10
        >>> Case("mnist", "mlp", clients_per_round=5).sample(50)
        5
        """
        share = self.clients_per_round
        return max(1, round(share * clients)) if share < 1 else int(share)


def stock_of(cases: Mapping[str, Case], **options: Any) -> Stock:
    """The data and models of cases, by their titles."""
    loaded = {title: case.load(**options) for title, case in cases.items()}
    return Stock(
        {title: federation for title, (federation, _) in loaded.items()},
        {title: task for title, (_, task) in loaded.items()},
    )


def case_for(method: Method, case: Case) -> Case:
    """The case with a hidden layer if need be: a linear model has one part only."""
    if isinstance(method, SplitMethod) and case.model == "linear":
        return replace(case, model="mlp", model_options={"hidden": HIDDEN})
    return case


def majority_accuracy(federation: Federation) -> float:
    """Of all test data, what each client's commonest class in training gets right."""
    hits = federation.majority_hits("test").sum()
    return float(hits / federation.class_counts("test").sum())
