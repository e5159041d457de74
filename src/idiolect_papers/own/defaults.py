"""The rule: of a method's candidates, the one whose worst regret over all federations is least.

The regret of a candidate on a federation is how far its validation accuracy is below that of the
method's best candidate there. Candidates within `TIE` of the least worst regret count as equal: of
them those with the fewest gradients are kept, of these those with the fewest bytes (within `SAME`
of the fewest), then the one with the smallest worst regret, then the first of the grid.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from idiolect import (
    METHODS,
    Federation,
    Method,
    Task,
    data,
    interval,
    make_method,
    models,
    run,
)
from idiolect.methods import SplitMethod
from idiolect.study import finish, job_progress

from ..runs import Work

TIE = 0.01  # of accuracy: smaller differences are noise
SAME = 0.05  # costs that differ by less are the same


@dataclass(frozen=True)
class Cell:
    """What a candidate has reached on one federation, or one variant of the method on it."""

    accuracy: float  # on validation data, the mean over seeds
    gradients: float  # per client
    bytes: float


def regrets(rows: Sequence[Sequence[Cell]]) -> list[float]:
    """The worst regret of each candidate; rows[candidate][federation].

    >>> good, bad = Cell(0.9, 1, 1), Cell(0.5, 1, 1)
    >>> [round(r, 3) for r in regrets([[good, bad], [Cell(0.8, 1, 1), good]])]
    [0.4, 0.1]
    """
    best = [max(cell.accuracy for cell in column) for column in zip(*rows, strict=True)]
    return [max(b - cell.accuracy for b, cell in zip(best, row, strict=True)) for row in rows]


def chosen(rows: Sequence[Sequence[Cell]]) -> int:
    """The place of the candidate that the rule takes.

    >>> cheap, costly = Cell(0.895, 10, 1), Cell(0.9, 100, 1)
    >>> chosen([[costly], [cheap]]), chosen([[costly], [Cell(0.88, 10, 1)]])
    (1, 0)
    """
    worst = regrets(rows)
    least = min(worst)
    ties = [i for i, regret in enumerate(worst) if regret <= least + TIE + 1e-9]

    for cost in ("gradients", "bytes"):
        costs = {i: sum(getattr(cell, cost) for cell in rows[i]) for i in ties}
        ties = [i for i in ties if costs[i] <= (1 + SAME) * min(costs.values())]
    return min(ties, key=lambda i: (round(worst[i], 6), i))


HIDDEN = "32"  # units of the models with a hidden layer

# Where a form begins among scikit-learn's digits. They are stored as they were scanned, and the
# labels repeat a form of about 130 digits that the writers filled in.
FORMS = (0, 130, 256, 386, 516, 646, 776, 906, 1029, 1157, 1287, 1415, 1545, 1667)


def digits_by_form(seed: int) -> Federation:
    """Scikit-learn's digits, a client for every form that was filled in by hand.

    >>> federation = digits_by_form(0)
    >>> federation.clients, federation.classes
    (14, 10)
    """
    from sklearn.datasets import load_digits  # here, because it takes seconds to import

    pixels, labels = load_digits(return_X_y=True)
    form = np.searchsorted(FORMS, np.arange(len(labels)), side="right") - 1
    x = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    return Federation.from_arrays(
        x, labels, form, classes=10, valid=0.2, test=0.2, seed=seed, name="digits by form"
    )


@dataclass(frozen=True)
class Kind:
    """A federation of the grid: its data, its model, and how many clients are heard per round."""

    text: str  # how it differs from the others
    heard: int
    make: Callable[[int], Federation] | None = None  # seed -> data
    name: str = ""  # or a data set by name
    options: dict[str, Any] = field(default_factory=dict)
    linear: bool = False  # a linear model, where the method needs no parts

    def load(self, seed: int) -> Federation:
        """Another seed is another draw of the data, and another split."""
        if self.make is not None:
            return self.make(seed)
        return data.load(self.name, **self.options, seed=seed)

    def task(self, shape: tuple[int, ...], parts: bool) -> Task:
        """`parts`: a method for parts of a model, hence one with a hidden layer in any case."""
        if self.linear and not parts:
            return Task(partial(models.make, "linear", shape, 10))
        return Task(partial(models.make, "mlp", shape, 10, hidden=HIDDEN))


def _digits(text: str, clients_per_round: int, **options: Any) -> Kind:
    return Kind(text, clients_per_round, name="digits", options=options)


def _synthetic(text: str, **options: Any) -> Kind:
    return Kind(text, 10, name="synthetic", options={"clients": 50, **options}, linear=True)


KINDS = {
    "digits, iid": _digits("alike, 29 training samples each", 10, clients=40, partition="iid"),
    "digits, 2 classes": _digits("labels unlike", 5, clients=20, classes_per_client=2),
    "digits, 5 classes": _digits("labels partly alike", 5, clients=20, classes_per_client=5),
    "digits, by form": Kind("natural: one form filled in by hand each", 5, digits_by_form),
    "Synthetic(0, 0)": _synthetic("models unlike", alpha=0.0, beta=0.0),
    "Synthetic(1, 1)": _synthetic("models and inputs unlike", alpha=1.0, beta=1.0),
}


@lru_cache(maxsize=8)
def loaded(title: str, seed: int) -> Federation:
    """The data of a federation."""
    return KINDS[title].load(seed)


@lru_cache(maxsize=8)
def task_of(title: str, parts: bool) -> Task:
    """The model of a federation."""
    return KINDS[title].task(tuple(loaded(title, 0).inputs.shape[1:]), parts)


Fields = dict[str, Any]
Outcome = dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """The candidates of one method."""

    method: str
    candidates: tuple[Fields, ...]
    variants: tuple[Fields, ...] = ({},)  # the default must serve all of them

    def given(self, candidate: Fields, variant: Fields) -> Fields:
        """The fields of a run, without those that have no effect."""
        fields = {**candidate, **variant}
        if fields.get("p") == 1:
            fields.pop("share", None)  # of lp-proj with p = 2 only
        return fields


def every(*first: Fields, **values: tuple) -> tuple[Fields, ...]:
    """`first`, then all combinations of values.

    >>> every({"lr": 2}, lr=(1, 3), steps=(5,))
    ({'lr': 2}, {'lr': 1, 'steps': 5}, {'lr': 3, 'steps': 5})
    """
    return (
        *first,
        *(dict(zip(values, combination, strict=True)) for combination in product(*values.values())),
    )


def same(candidates: tuple[Fields, ...], **names: str) -> tuple[Fields, ...]:
    """Fields that are as large as others: same(candidates, personal_lr="lr")."""
    return tuple({**c, **{new: c[old] for new, old in names.items()}} for c in candidates)


def times(left: tuple[Fields, ...], right: tuple[Fields, ...]) -> tuple[Fields, ...]:
    """Every candidate of the left with every one of the right."""
    return tuple({**a, **b} for a in left for b in right)


RATES = (0.1, 0.3, 1.0)
FEW = (0.1, 0.3)
STEPS = (5, 20)
SHORT = {"lr": 0.3, "steps": 5}
SOLVES = (  # FFGG's line 4
    {"private_lr": 0.1, "steps": 20},
    {"private_lr": 0.5, "steps": 20},
    {"private_lr": 0.5, "steps": 100},
)

GRIDS = {
    grid.method: grid
    for grid in (
        Grid("local", every(lr=(0.1, 0.03, 0.3, 1.0), steps=(20, 5))),
        Grid(
            "fedavg",
            (
                *every(lr=RATES, steps=(5, 1, 20), epochs=(0,)),
                *every(lr=FEW, steps=(5,), epochs=(5,)),
            ),
        ),
        Grid("fedprox", every(mu=(0.1, 1.0), lr=FEW, steps=STEPS)),
        Grid("fedprox-soft", every(lr=FEW, lam=(0.1, 0.03, 0.3, 1.0))),
        Grid(
            "lp-proj",
            (
                {"lam": 0.1, "lr": 0.1, "share": 1.0, "personal_lr": 0.1},
                *every(lam=(0.1, 1.0), lr=(0.0,), share=(1.0, 0.5), personal_lr=(0.1,)),
                {"lam": 0.1, "lr": 0.0, "share": 1.0, "personal_lr": 0.3},
            ),
            (  # few directions tied, as by default, and a good part of the model
                {"p": 1.0},
                {"p": 2.0},
                {"p": 1.0, "dim": 600, "projection": "contiguous"},
                {"p": 2.0, "dim": 600, "projection": "contiguous"},
            ),
        ),
        Grid(
            "ditto",
            same(
                times(every(lam=(0.1, 1.0)), (*every(lr=(0.1,), steps=STEPS), SHORT)),
                personal_lr="lr",
            ),
        ),
        Grid(
            "pfedme",
            every(
                {"lam": 0.1, "lr": 0.1, "share": 1.0, "personal_lr": 0.1},
                lam=(0.1, 0.5, 2.0),
                lr=(0.0,),
                share=(1.0, 0.5),
                personal_lr=FEW,
            ),
        ),
        Grid("per-fedavg", every(lr=FEW, personal_lr=FEW, steps=STEPS)),
        Grid("lg-fedavg", every(lr=RATES, steps=STEPS)),
        Grid(
            "rsa",
            (
                *every(lam=(0.01, 0.003, 0.03), lr=(0.1,), personal_lr=(0.1,)),
                {"lam": 0.01, "lr": 0.3, "personal_lr": 0.1},
                {"lam": 0.01, "lr": 0.1, "personal_lr": 0.3},
            ),
        ),
        Grid(
            "l2gd",
            (  # the models move by lr lam / p of the way to their mean: 5, 25, 100 %
                *every(lr=(0.05,), lam=(0.1, 0.5, 2.0)),
                *every(lr=(0.2,), lam=(0.025, 0.125, 0.5)),
            ),
        ),
        Grid("scaffold", every(lr=RATES, steps=(5, 1, 20))),
        Grid("scaffnew", (*every(lr=(0.05, 0.1, 0.3, 1.0), p=(0.2,)), {"lr": 0.1, "p": 0.1})),
        Grid("feddeper", every(lr=(0.05, 0.1, 0.3), rho=(0.003, 0.0003, 0.03), steps=(10,))),
        Grid("ffgg", times(every(lr=(0.5, 1.0, 2.0)), SOLVES)),
        Grid(
            "local-ffgg",
            (
                *times(every(lr=FEW, local_steps=(5,)), SOLVES),
                *times(every(lr=FEW, local_steps=(20,)), SOLVES[1:2]),
            ),
        ),
        Grid(
            "fedalt",
            (
                *same(every(lr=RATES, steps=(5,), private_steps=(5,)), private_lr="lr"),
                *same(every(lr=RATES, steps=(20,), private_steps=(20,)), private_lr="lr"),
                *same(every(lr=FEW, steps=(20,), private_steps=(5,)), private_lr="lr"),
            ),
        ),
        Grid("fedsim", same(every(lr=RATES, steps=STEPS), private_lr="lr")),
        Grid("finetune", every(lr=FEW, steps=STEPS, personal_lr=FEW)),
        Grid("dichotomy", every(lr=FEW, steps=STEPS, personal_lr=(0.1,))),
    )
}


FORMAT = 2  # of the stored runs: a change in what a run means makes the old ones void
ROUNDS = 50


@dataclass(frozen=True)
class Run(Work):
    """A run, and the part of the data that its figure is about: "valid" or "test"."""

    federation: str
    method: str
    fields: tuple[tuple[str, Any], ...]
    seed: int  # of the data and of the run
    part: str = "valid"
    rounds: int = ROUNDS

    def make(self) -> Method:
        return make_method(self.method, **dict(self.fields))

    def settings(self) -> dict[str, Any]:
        sample = 0 if self.make().traits.hears_all else KINDS[self.federation].heard
        return {
            "rounds": self.rounds,
            "sample": sample,
            "seed": self.seed,
            "eval_every": 0,
            "threads": 1,
        }

    def key(self) -> str:
        """What the result depends on but the code: runs are kept from version to version."""
        method = self.make()
        kind = {"options": KINDS[self.federation].options, "title": self.federation}
        name = type(method).__name__
        parts = [FORMAT, kind, name, method.as_dict(), self.settings(), self.part]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]

    def train(self) -> dict[str, Any]:
        began = time.process_time()
        method = self.make()
        federation = loaded(self.federation, self.seed)
        task = task_of(self.federation, isinstance(method, SplitMethod))
        summary = run(method, task, federation, progress=False, **self.settings()).summary()
        figures = summary if self.part == "test" else summary["valid"]
        return {
            "accuracy": round(figures["accuracy"]["mean"] or 0.0, 4),  # none: it has diverged
            "gradients": round(summary["gradients_per_client"], 1),
            "bytes": summary["bytes"]["up"] + summary["bytes"]["down"],
            "cpu": round(time.process_time() - began, 2),
        }

    def cost(self) -> float:
        """In runs of FedAvg: a method that trains everyone takes about as long as four of them."""
        return 4 if self.make().traits.trains == "everyone" else 1

    def describe(self) -> str:
        fields = ",".join(f"{name}={value}" for name, value in self.fields)
        return f"{self.federation}: {self.method}:{fields}, {self.part}, seed {self.seed}"


@dataclass(frozen=True)
class Runs:
    """Where finished runs are kept, and how many are at work at once."""

    path: Path
    workers: int = 2

    def __call__(self, todo: Sequence[Run]) -> dict[Run, Outcome]:
        """The results of these runs, stored before or run now."""
        with job_progress(todo) as bar:
            return finish(todo, self.path, self.workers, bar.report)


Row = dict[str, Any]


def run_of(
    grid: Grid, candidate: Fields, variant: Fields, title: str, seed: int, **more: Any
) -> Run:
    """The run behind a cell."""
    fields = grid.given(candidate, variant)
    return Run(title, grid.method, tuple(sorted(fields.items())), seed, **more)


def choose(
    runs: Runs, grids: Sequence[Grid], federations: Sequence[str], seeds: int, rounds: int
) -> dict[str, Row]:
    """Every cell of every grid, and the rule's choice, as plain data by method."""
    todo = [
        run_of(grid, candidate, variant, title, seed, rounds=rounds)
        for grid in grids
        for candidate in grid.candidates
        for variant in grid.variants
        for title in federations
        for seed in range(seeds)
    ]
    results = runs(todo)
    return {g.method: _stored(g, results, federations, seeds, rounds) for g in grids}


def _stored(
    grid: Grid, results: Mapping[Run, Outcome], federations: Sequence[str], seeds: int, rounds: int
) -> Row:
    cells: dict[str, list[Row]] = {}
    for variant in grid.variants:
        for title in federations:
            column = []
            for candidate in grid.candidates:
                by_seed = [
                    results[run_of(grid, candidate, variant, title, seed, rounds=rounds)]
                    for seed in range(seeds)
                ]
                column.append(
                    {
                        "accuracy": [f["accuracy"] for f in by_seed],
                        "gradients": _mean([f["gradients"] for f in by_seed]),
                        "bytes": _mean([f["bytes"] for f in by_seed]),
                    }
                )
            cells[cell_name(title, variant)] = column
    rows = rows_of(cells)
    return {
        "candidates": list(grid.candidates),
        "variants": list(grid.variants),
        "cells": cells,
        "regrets": [round(r, 4) for r in regrets(rows)],
        "chosen": chosen(rows),
    }


def cell_name(title: str, variant: Fields) -> str:
    """A column of a grid: a federation, and the variant of the method where it has several."""
    shown = {k: f"{v:g}" if isinstance(v, float | int) else v for k, v in variant.items()}
    return ", ".join([title, *(f"{name} {value}" for name, value in shown.items())])


def rows_of(cells: Mapping[str, Sequence[Row]]) -> list[list[Cell]]:
    """The stored cells as the rule takes them: rows[candidate][federation]."""
    columns = [
        [Cell(_mean(c["accuracy"]), c["gradients"], c["bytes"]) for c in column]
        for column in cells.values()
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# names that stand for a variant of a method of the grids
NAMES = {"lp-proj": ("lp-proj-1", "lp-proj-2"), "feddeper": ("feddeper", "feddeper*")}


def against_local(
    runs: Runs, fields: Mapping[str, Fields], federations: Sequence[str], seeds: int, rounds: int
) -> dict[str, dict[str, Any]]:
    """Federation -> method -> test accuracy, that of Local, and their difference.

    Federations on which collaboration does not clearly help have FedAvg's row alone.
    """
    if not {"local", "fedavg"} <= set(fields):
        return {}
    names = [name for method in fields for name in NAMES.get(method, (method,))]
    names.remove("local")

    def job(name: str, title: str, seed: int, run_fields: Fields, rounds: int = rounds) -> Run:
        return Run(title, name, tuple(sorted(run_fields.items())), seed, "test", rounds)

    def rows(pairs: Sequence[tuple[str, str]], alone: bool) -> dict[tuple[str, str], dict]:
        method_runs = {
            (name, title): [job(name, title, seed, _fields(name, fields)) for seed in range(seeds)]
            for name, title in pairs
        }
        outcomes = runs([run for some in method_runs.values() for run in some])
        equal = {}
        for (name, title), some in method_runs.items():
            gradients = max(outcomes[run]["gradients"] for run in some)
            steps, length = (
                _spread(gradients, rounds) if alone else (fields["local"]["steps"], rounds)
            )
            local = {**fields["local"], "steps": steps}
            equal[name, title] = [job("local", title, s, local, length) for s in range(seeds)]
        outcomes |= runs([run for some in equal.values() for run in some])
        return {
            pair: _row(
                [outcomes[run] for run in method_runs[pair]], [outcomes[run] for run in equal[pair]]
            )
            for pair in pairs
        }

    shared = rows([("fedavg", title) for title in federations], alone=False)
    helps = [title for title in federations if shared["fedavg", title]["verdict"] == "better"]
    every = rows([(name, title) for title in helps for name in names], alone=True)
    by_federation: dict[str, dict[str, Any]] = {}
    for title in federations:
        by_federation[title] = {
            "helps": title in helps,
            "fedavg": shared["fedavg", title],
            "methods": {},
        }
        if title in helps:
            by_federation[title]["methods"] = {name: every[name, title] for name in names}
    return by_federation


def _fields(name: str, fields: Mapping[str, Fields]) -> Fields:
    method = next(m for m in fields if name in NAMES.get(m, (m,)))
    fixed = METHODS.find(name)[1]
    return {k: v for k, v in fields[method].items() if k not in fixed}


def _spread(gradients: float, rounds: int) -> tuple[int, int]:
    """At least so many gradients as (steps per round, rounds).

    >>> _spread(1000.0, 50), _spread(26.4, 50), _spread(1001.0, 50)
    ((20, 50), (1, 27), (21, 50))
    """
    if gradients <= rounds:
        return 1, max(1, math.ceil(gradients))
    return math.ceil(gradients / rounds), rounds


def _row(mine: Sequence[dict], alone: Sequence[dict]) -> dict[str, Any]:
    gaps = [a["accuracy"] - b["accuracy"] for a, b in zip(mine, alone, strict=True)]
    half = interval(gaps) or 0.0
    gap = float(np.mean(gaps))
    verdict = "better" if gap > half else "worse" if gap < -half else "within the interval"
    return {
        "accuracy": round(float(np.mean([m["accuracy"] for m in mine])), 4),
        "gradients": round(float(np.mean([m["gradients"] for m in mine])), 1),
        "local": round(float(np.mean([a["accuracy"] for a in alone])), 4),
        "difference": round(gap, 4),
        "half": round(half, 4),
        "verdict": verdict,
    }


TITLE = "digits, iid"
TIED = (21, 150, 600, 1200, 2410)  # d_sub; the last is d, tied by the identity
# RSA is p = 1 with all of R^d tied. Its default has this λ, and its server, which adds what 10
# clients send, moves by η λ 10 = 0.03 per round: with lp-proj's mean that is η = 3.
AS_RSA = "lp-proj-1 (lam 0.01, lr 3)"
ROWS: dict[str, Fields] = {"lp-proj-1": {}, AS_RSA: {"lam": 0.01, "lr": 3.0}, "lp-proj-2": {}}


def tied_part(
    runs: Runs, fields: Mapping[str, Fields], dims: Sequence[int], seeds: int, rounds: int
) -> list[dict[str, Any]]:
    """Test accuracy of lp-proj-1 and lp-proj-2 for each d_sub, with the chosen settings.

    The tie of p = 1 pulls with λ in each of d_sub directions, however small the gap: for many
    directions it needs a smaller λ, and it is also run with that of RSA.
    """
    if "lp-proj" not in fields:
        return []
    d = task_of(TITLE, parts=False).d
    jobs = {
        (row, dim, seed): _run(row, dim, d, seed, fields["lp-proj"], rounds)
        for row in ROWS
        for dim in dims
        for seed in range(seeds)
    }
    outcomes = runs(list(jobs.values()))

    def mean(row: str, dim: int) -> float:
        accuracies = [outcomes[jobs[row, dim, seed]]["accuracy"] for seed in range(seeds)]
        return round(float(np.mean(accuracies)), 4)

    return [
        {"dim": dim, "share": round(dim / d, 4), **{row: mean(row, dim) for row in ROWS}}
        for dim in dims
    ]


def _run(row: str, dim: int, d: int, seed: int, fields: Fields, rounds: int) -> Run:
    """Projection `contiguous`, whose cost does not grow with d_sub; the identity for d itself."""
    kind = {"projection": "identity", "dim": 0} if dim >= d else {"dim": dim}
    run_fields = {"projection": "contiguous", **fields, **kind}
    run_fields |= ROWS[row]
    return Run(TITLE, row.split(" ")[0], tuple(sorted(run_fields.items())), seed, "test", rounds)
