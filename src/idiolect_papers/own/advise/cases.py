"""The cases: three families of federations, each swept through the threshold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from idiolect import models
from idiolect.data.federation import Federation
from idiolect.data.sets.regression import Logistic
from idiolect.data.sets.synthetic import Synthetic
from idiolect.task.task import Task

from ...closed_forms import logistic

FIRST = 14  # data seed: none that was looked at while the advice was written
SYNTHETIC, LOGISTIC, DIGITS = "synthetic", "logistic", "digits"


@dataclass(frozen=True)
class Case:
    """A federation of a family: what is swept, the rest of it, and the seed of its data."""

    family: str
    swept: float  # alpha; R^2 over its crossing; samples per client
    other: int  # samples per client; samples per client; classes per client
    clients: int
    test: int  # test samples per client
    seed: int

    @property
    def samples(self) -> int:
        """Training samples per client."""
        return int(self.swept) if self.family == DIGITS else self.other

    @property
    def metric(self) -> str:
        """The theorem is about the loss; the other two are judged by accuracy."""
        return "loss" if self.family == LOGISTIC else "accuracy"

    def title(self) -> str:
        """The case in words.

        >>> Case("digits", 40, 5, 10, 0, 1).title()
        'digits, 5 classes per client, 40 samples, data seed 1'
        """
        rest = {
            SYNTHETIC: f"synthetic({self.swept:g}, 0), {self.other} samples",
            LOGISTIC: f"logistic, R² {self.swept:g} times its crossing, {self.other} samples",
            DIGITS: f"digits, {self.other} classes per client, {self.swept:g} samples",
        }[self.family]
        return f"{rest}, data seed {self.seed}"

    def load(self) -> tuple[Federation, Task]:
        """Training and test samples, no validation samples; and the model."""
        return {SYNTHETIC: _synthetic, LOGISTIC: _logistic, DIGITS: _digits}[self.family](self)


@dataclass(frozen=True)
class Sizes:
    """The grid of cases, and what is spent on each."""

    alphas: tuple[float, ...] = (0.0, 1.0, 3.0)
    ratios: tuple[float, ...] = (0.0, 0.1, 0.3, 0.6, 1.0, 3.0, 10.0)
    per_client: tuple[int, ...] = (5, 10, 20, 40)  # samples, of digits
    synthetic: tuple[int, ...] = (40, 160)  # samples per client
    logistic: tuple[int, ...] = (40, 100)
    classes: tuple[int, ...] = (2, 5)  # per client, of digits
    clients: int = 30
    digits_clients: int = 20
    test: int = 400
    repeats: int = 2  # data seeds
    gradients: int = 300
    seeds: int = 5

    def cases(self) -> Iterator[Case]:
        swept = (
            (SYNTHETIC, self.alphas, self.synthetic, self.clients),
            (LOGISTIC, self.ratios, self.logistic, self.clients),
            (DIGITS, self.per_client, self.classes, self.digits_clients),
        )
        for family, values, others, clients in swept:
            for other in others:
                for place, value in enumerate(values):
                    # one seed has the same data for every alpha: see `Synthetic`
                    first = FIRST + (100 * place if family == SYNTHETIC else 0)
                    for seed in range(first, first + self.repeats):
                        yield Case(family, value, other, clients, self.test, seed)


def _synthetic(case: Case) -> tuple[Federation, Task]:
    samples = case.other + case.test
    made = Synthetic(
        alpha=case.swept,
        clients=case.clients,
        samples=samples,
        valid=0,
        test=case.test / samples,
        seed=case.seed,
    )
    return made.load(), Task(partial(models.make, "linear", (60,), 10))


def _logistic(case: Case) -> tuple[Federation, Task]:
    """Section 4.1 of the paper: all clients at distance R, R² a multiple of the crossing's."""
    samples = case.other + case.test
    made = Logistic(
        clients=case.clients,
        samples=samples,
        features=10,
        bound=2.0,
        design="signs",
        norm=0.5,
        radius=0.1,
        places="sphere",
        valid=0,
        test=case.test / samples,
        seed=case.seed,
    )
    _, truth = made.draw()
    crossing = logistic.crossing(made, truth, case.other)
    made = replace(made, radius=case.swept**0.5 * crossing)
    return made.load(), logistic.task(made)


def _digits(case: Case) -> tuple[Federation, Task]:
    """Handwritten digits by label: clients draw without replacement from three fifths of them.

    Every client is tested on all the others that have one of its classes; clients may share these.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(case.seed)
    order = rng.permutation(len(labels))
    cut = int(0.6 * len(order))
    left, tests = order[:cut], order[cut:]
    offered = {c: list(left[labels[left] == c]) for c in range(10)}
    index, owner, split = [], [], []
    for k in range(case.clients):
        # each class has as many clients as any other
        classes = [(k * case.other + j) % 10 for j in range(case.other)]
        for j in range(case.samples):
            index.append(offered[classes[j % case.other]].pop())
        mine = tests[np.isin(labels[tests], classes)]
        index += list(mine)
        owner += [k] * (case.samples + len(mine))
        split += ["train"] * case.samples + ["test"] * len(mine)
    federation = Federation.from_arrays(
        (pixels[index] / 16).astype(np.float32),
        labels[index],
        np.array(owner),
        split=split,
        classes=10,
        valid=0,
        name="digits",
    )
    return federation, Task(partial(models.make, "linear", (64,), 10))
