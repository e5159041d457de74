"""The cases: three families of federations, each swept through the threshold."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from idiolect import Advice, Federation, Result, Task, advise, make_method, models, run
from idiolect.data.sets.regression import LogisticRegression
from idiolect.data.sets.synthetic import Synthetic

from ..closed_forms import logistic
from ..runs import Work

DATA_SEED = 14  # data seed: none that was looked at while the advice was written
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
                    first = DATA_SEED + (100 * place if family == SYNTHETIC else 0)
                    for seed in range(first, first + self.repeats):
                        yield Case(family, value, other, clients, self.test, seed)


def _synthetic(case: Case) -> tuple[Federation, Task]:
    samples = case.other + case.test
    spec = Synthetic(
        alpha=case.swept,
        clients=case.clients,
        samples=samples,
        valid=0,
        test=case.test / samples,
        seed=case.seed,
    )
    return spec.load(), Task(partial(models.make, "linear", (60,), 10))


def _logistic(case: Case) -> tuple[Federation, Task]:
    """Section 4.1 of the paper: all clients at distance R, R² a multiple of the crossing's."""
    samples = case.other + case.test
    spec = LogisticRegression(
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
    _, truth = spec.draw()
    crossing = logistic.crossing(spec, truth, case.other)
    spec = replace(spec, radius=case.swept**0.5 * crossing)
    return spec.load(), logistic.task(spec)


def _digits(case: Case) -> tuple[Federation, Task]:
    """Handwritten digits by label: clients draw without replacement from three fifths of them.

    Every client is tested on all the others that have one of its classes; clients may share these.
    """
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(case.seed)
    order = rng.permutation(len(labels))
    cut = int(0.6 * len(order))
    train_pool, tests = order[:cut], order[cut:]
    offered = {c: list(train_pool[labels[train_pool] == c]) for c in range(10)}
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


METHODS = ("finetune", "ditto")  # beside local and fedavg
TRUTH_SEEDS = 3
TRUTH_SEED = 100  # seed of the truth's trainings: others than those of the advice


@dataclass(frozen=True)
class CaseJob(Work):
    """A case, and the compute and seeds of its advice."""

    case: Case
    gradients: int
    seeds: int

    def cost(self) -> float:
        return self.case.clients * self.case.samples + 2000

    def describe(self) -> str:
        return self.case.title()

    def train(self) -> dict[str, Any]:
        """The advice, and the truth of the same candidates."""
        began = time.process_time()
        federation, task = self.case.load()
        advice = advise(
            federation,
            task,
            METHODS,
            gradients=self.gradients,
            seeds=self.seeds,
            metric=self.case.metric,
            threads=1,
            progress=False,
        )
        seconds = time.process_time() - began
        h = advice.heterogeneity
        return {
            "choice": advice.choice,
            "alternative": advice.alternative,
            "p": advice.p,
            "advised": {r["method"]: [r["gain"], r["low"], r["high"]] for r in advice.table},
            "ratio": None if h is None else [h.ratio, h.low, h.high],
            "side": "" if h is None else h.side,
            "told": {key: len(ids) for key, ids in advice.gains.items()},
            **self._truth(advice, federation, task),
            "cpu": round(seconds, 1),
        }

    def _truth(self, advice: Advice, federation: Federation, task: Task) -> dict[str, Any]:
        """What each candidate reaches on the test set, trained on all training samples.

        And the standard error of its difference to Local on as many samples as there are to train
        on.
        """
        values = {}
        for row in advice.table:
            if not row["fields"]:
                continue  # a constant answer
            result = run(
                make_method(row["method"], **row["fields"]),
                task,
                federation,
                rounds=row["rounds"],
                sample=federation.clients,
                seed=TRUTH_SEED,
                seeds=TRUTH_SEEDS,
                eval_every=0,
                threads=1,
                progress=False,
            )
            values[row["method"]] = _values(result, self.case.metric)
        samples = int(federation.sizes("train").sum())
        errors = {m: (v - values["local"]).std() / samples**0.5 for m, v in values.items()}
        return {
            "truth": {m: float(v.mean()) for m, v in values.items()},
            "errors": {m: float(e) for m, e in errors.items()},
        }


def _values(result: Result, metric: str) -> np.ndarray:  # -> [n]
    """Hit or loss of each test sample, the mean over seeds."""
    by_seed = []
    for seed in result.seeds:
        session = result.session(seed.seed)
        message = session.server.message(session.server.version)
        hits, loss = session.hosts[0].each_sample(session.server.version, message, "test")
        by_seed.append((hits if metric == "accuracy" else loss).numpy())
    return np.mean(by_seed, axis=0)
