"""The runs of Table 1 and Figures 4 to 7 of the FedDeper paper: who trains what on which data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from idiolect import (
    FedAvg,
    FedDeper,
    Federation,
    FedProx,
    Local,
    Method,
    Moment,
    Plan,
    Scaffold,
    Task,
    models,
)
from idiolect.data import load
from idiolect.study import Stock

from ..marks import Figure
from ..page import Claim
from ..runs import Runs, Summary

LR = 0.01  # η of all methods
STEPS = 10  # τ
LAM = 0.5  # λ
RHO = {10: 0.03, 100: 0.005}  # ϱ by the number of clients, as Figure 7 has it
BATCH = 10
COLUMNS = (  # of Table 1: data, n, model
    ("MNIST", 10, "MLP"),
    ("MNIST", 10, "CNN"),
    ("MNIST", 100, "MLP"),
    ("MNIST", 100, "CNN"),
    ("CIFAR-10", 100, "MLP"),
    ("CIFAR-10", 100, "CNN"),
)
HEARD = (5, 10)
ROUNDS = {"MNIST": 500, "CIFAR-10": 2000}  # K of the paper
SOURCES = {"MNIST": "mnist", "CIFAR-10": "cifar10"}
LOCAL = "Local"
SMALLER_RHO = 0.001  # where Figure 7 has 0.005: its n = 100
SMALLER = f"Deper, ϱ = {SMALLER_RHO}"
Options = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One column of Table 1 with one number of clients heard."""

    data: str
    clients: int  # n
    model: str
    heard: int  # m

    def __str__(self) -> str:
        return f"{self.data}, n = {self.clients}, {self.model}, m = {self.heard}"

    @property
    def of_figure7(self) -> bool:
        """Figure 7 has the personal models of this case."""
        return (self.data, self.model, self.heard) == ("MNIST", "MLP", HEARD[0])


CASES = tuple(Case(*column, per_round) for per_round in HEARD for column in COLUMNS)


@dataclass(frozen=True)
class Size:
    """How much is run."""

    said: str  # in words, for the page
    rounds: Mapping[Case, int]  # K of every case that is run
    seeds: int = 1
    points: int = 10  # evaluated rounds
    learnt: float = 0.9  # of the loss of a guess: claims are about cases that come below it
    shares: Mapping[tuple[str, str], float] = field(default_factory=dict)  # of the images
    sources: Mapping[str, str] = field(default_factory=lambda: SOURCES)  # names of data sets

    def federation(self, case: Case) -> Federation:
        """Two classes per client, all images of the share; no validation data: nothing is tuned."""
        share = self.shares.get((case.data, case.model), 1.0)
        options = {} if share == 1 else {"share": share}
        name = self.sources[case.data]
        return load(name, clients=case.clients, level=False, valid=0.0, **options)

    def stock(self, cases: Mapping[Case, int]) -> Stock:
        """The data and models of some cases, by name."""
        data: dict[str, Federation] = {}
        tasks: dict[str, Task] = {}
        for case in cases:
            if self.data_name(case) not in data:
                data[self.data_name(case)] = self.federation(case)
            if task_name(case) not in tasks:
                tasks[task_name(case)] = task_of(case, data[self.data_name(case)])
        return Stock(dict(data), tasks)

    def data_name(self, case: Case) -> str:
        share = self.shares.get((case.data, case.model), 1.0)
        return f"{case.data}, n = {case.clients}, {share:g}"

    def settings(self, cases: Mapping[Case, int]) -> dict[tuple[Case, str], Plan]:
        """Every method in every case, a smaller ϱ of many clients, and Local, equal gradients."""
        settings = {}
        for case, rounds in cases.items():
            every = max(1, rounds // self.points)
            for name, method in (methods(case.clients) | smaller(case.clients)).items():
                run: Options = {"sample": case.heard, "batch": BATCH}
                run |= {"rounds": rounds, "eval_every": every}
                if case.of_figure7 and not isinstance(method, FedDeper):
                    # the local models of a round: the global one after τ steps at home
                    run |= {"finetune_steps": STEPS, "finetune_lr": LR}
                settings[case, name] = self._setting(case, method, run, name)
            alone: Options = {"batch": BATCH, "eval_every": 0}
            alone["rounds"] = rounds * case.heard // case.clients
            local = Local(lr=LR, steps=STEPS)  # all clients in every round
            settings[case, LOCAL] = self._setting(case, local, alone, LOCAL)
        return settings

    def _setting(self, case: Case, method: Method, run: Options, name: str) -> Plan:
        return Plan.of(
            method,
            settings=run,
            data=self.data_name(case),
            model=task_name(case),
            name=f"{name} ({case})",
        )


def methods(clients: int) -> dict[str, Method]:
    """The rows of Table 1, with the printed settings."""
    rho = RHO[clients]
    return {
        "Deper": FedDeper(lr=LR, steps=STEPS, rho=rho, lam=LAM),
        "Deper*": FedDeper(lr=LR, steps=STEPS // 2, rho=rho, lam=LAM),
        "Avg": FedAvg(lr=LR, steps=STEPS, weighting="equal"),
        "Prox": FedProx(lr=LR, steps=STEPS, mu=1.0, weighting="equal"),
        "SCAF": Scaffold(lr=LR, steps=STEPS, server_rate=1.0),
    }


def smaller(clients: int) -> dict[str, Method]:
    """FedDeper with a smaller ϱ, where clients are many and rarely heard."""
    if clients < max(RHO):
        return {}
    return {SMALLER: FedDeper(lr=LR, steps=STEPS, rho=SMALLER_RHO, lam=LAM)}


def task_name(case: Case) -> str:
    return f"{case.data}, {case.model}"


def task_of(case: Case, federation: Federation) -> Task:
    """The paper's network for these data."""
    shape = federation.shape
    if case.model == "MLP":
        return Task(partial(models.make, "mlp", shape, 10, hidden="512,256"))
    return Task(partial(models.make, "feddeper-cnn", shape, 10))


SIZES = {
    "quick": Size(
        "quick: one seed, m = 5; the paper's 500 rounds for MNIST with the MLP, 30 with the CNN "
        "(n = 10, a tenth of the images), 150 for CIFAR-10 with the MLP (a fifth of the images)",
        {
            Case("MNIST", 10, "MLP", 5): 500,
            Case("MNIST", 10, "CNN", 5): 30,
            Case("MNIST", 100, "MLP", 5): 500,
            Case("CIFAR-10", 100, "MLP", 5): 150,
        },
        shares={("MNIST", "CNN"): 0.1, ("CIFAR-10", "MLP"): 0.2},
    ),
    "full": Size(
        "full: three seeds, the paper's rounds, all images",
        {case: ROUNDS[case.data] for case in CASES},
        seeds=3,
        points=50,
    ),
}
PRINTED = """\
η = 0.01 for all methods, τ = 10 local steps (5 for FedDeper*), K = 500 rounds for MNIST and 2000
for CIFAR-10, n = 10 or 100 clients of which m = 5 or 10 are heard per round, FedProx with μ = 1,
SCAFFOLD with global step 1, λ = 0.5 and ϱ = 0.03 (n = 10) or 0.005 (n = 100) for FedDeper
(Figure 7). MLP: 512 and 256 hidden neurons. CNN for MNIST: 32 and 64 filters of 3x3, then 1024 and
512 neurons; for CIFAR-10: 64 and 128 filters of 5x5, then 1024, 512 and 256. "Non-i.i.d. splits as
(McMahan et al. 2017)"."""
CHOSEN = """\
mini-batches of 10 with replacement, one for lines 7 and 8 of a step (the paper names no size;
McMahan et al. have 10); every client holds two classes and all images are dealt out, which is what
two shards of sorted labels come to, but for shards at the border of a class; ϱ and λ outside
Figures 3 and 7, where FedDeper "is carefully tuned": those of Figure 7; convolutions without
padding, 2x2 max pooling after each; pixels in [0, 1]; SCAFFOLD's option II; the initialisation of
torch; the number of repeats. No public code was found."""


# -- figures of the global and the personal models ------------------------------------------------

MOST = 5000  # samples of a split: more would take longer than the training between two of these
AT_ONCE = 500  # samples of one forward pass


class GlobalRounds:
    """Hears of evaluated rounds, and has loss and accuracy of the global model in each."""

    name: ClassVar[str] = "global_by_round"

    def __init__(self, task: Task, federation: Federation):
        self.task = task
        self.federation = federation
        self.rows: list[dict[str, Any]] = []

    def __call__(self, moment: Moment) -> None:
        w = moment.state().get("w")
        if w is None or len(w) != self.task.d:
            return
        row: dict[str, Any] = {"seed": moment.seed, "round": moment.round}
        for split in ("train", "test"):
            loss, accuracy = self._figures(w.to(self.task.x0), split)
            row |= {f"{split}_loss": loss, f"{split}_accuracy": accuracy}
        self.rows.append(row)

    def _figures(self, w: Tensor, split: str) -> tuple[float, float]:
        """Means over all samples of a split, or over `MOST` of them that are evenly spaced."""
        offsets = self.federation.offsets[split]
        low, high = int(offsets[0]), int(offsets[-1])
        places = list(range(low, high, max(1, -(-(high - low) // MOST))))
        loss = hits = 0.0
        for start in range(0, len(places), AT_ONCE):
            some = places[start : start + AT_ONCE]
            outputs = self.task.outputs_of_one(w, self.federation.inputs[some])
            hit, lost = self.task.criterion.scores(outputs, self.federation.targets[some])
            hits += float(hit.sum())
            loss += float(lost.sum())
        return loss / len(places), hits / len(places)


KEEP = ("by_round", GlobalRounds)
CLASSES = 10
DIVERGED = 2  # times the loss of a guess


@dataclass(frozen=True)
class Outcome:
    """All runs of some cases."""

    size: Size
    stock: Stock
    summaries: Mapping[tuple[Case, str], list[Summary]]

    @property
    def cases(self) -> list[Case]:
        return list(dict.fromkeys(case for case, _ in self.summaries))

    @property
    def seconds(self) -> float:
        return sum(s["cpu_seconds"] for summaries in self.summaries.values() for s in summaries)

    def accuracy(self, case: Case, method: str) -> Figure | None:
        """Of the global model on the pooled test data, in per cent; None where it was not run."""
        summaries = self.summaries.get((case, method))
        if not summaries or "global_model" not in summaries[0]:
            return None
        return _percent([s["global_model"]["accuracy"]["mean"] for s in summaries])

    def own(self, case: Case, method: str) -> Figure | None:
        """Of personal models on their clients' own test data."""
        summaries = self.summaries.get((case, method))
        return None if not summaries else _percent([s["accuracy"]["mean"] for s in summaries])

    def rounds(self, case: Case, method: str) -> list[int]:
        """The evaluated ones."""
        return [row["round"] for row in self.summaries[case, method][0]["global_by_round"]]

    def curve(self, case: Case, method: str, name: str) -> list[float]:
        """A figure of the global model in every evaluated round, the mean over seeds."""
        return self._mean(case, method, "global_by_round", name)

    def own_curve(self, case: Case, method: str) -> list[float]:
        """The accuracy of personal models in every evaluated round, the mean over seeds."""
        return self._mean(case, method, "by_round", "accuracy")

    def _mean(self, case: Case, method: str, table: str, name: str) -> list[float]:
        rows = [[row[name] for row in s[table]] for s in self.summaries[case, method]]
        values = np.array([[np.nan if v is None else v for v in row] for row in rows])
        return [float(v) for v in values.mean(0)]

    @property
    def learnt(self) -> list[Case]:
        """The cases in which some method has learnt something in the rounds that were run."""
        guess = self.size.learnt * math.log(CLASSES)
        return [case for case in self.cases if self.lowest(case) < guess]

    def lowest(self, case: Case) -> float:
        """The lowest training loss of all methods."""
        curves = [self.curve(case, m, "train_loss") for m in methods(case.clients)]
        return min(loss for curve in curves for loss in curve if math.isfinite(loss))

    def fewer(self, case: Case) -> str:
        """A reason why a figure may be another one, where fewer rounds were run."""
        run, paper = self.size.rounds[case], ROUNDS[case.data]
        return "" if run == paper else f"{run} of the paper's {paper} rounds"


def outcome(folder: Path, scale: str, size: Size, cases: Iterable[Case], jobs: int = 0) -> Outcome:
    """The runs of those cases that are run at this size; stored ones are not run again.

    Table 1 and the figures have their runs in common, in a directory that stays.
    """
    run = {c: size.rounds[c] for c in CASES if c in set(cases) and c in size.rounds}
    settings = size.settings(run)
    runs = Runs(directory(folder, scale), jobs)
    stock = size.stock(run)
    return Outcome(size, stock, runs(settings, stock, range(size.seeds), KEEP))


def directory(folder: Path, scale: str) -> Path:
    """Where runs are stored: beside the folder of pages."""
    return folder.parent / ".runs" / f"feddeper-{scale}"


def why(results: Outcome, cases: Iterable[Case], of: Sequence[str] = ()) -> str:
    """The reason why something differs in these cases, as far as it is known; `of` some methods."""
    cases = list(cases)
    rounds = " and ".join(sorted({results.fewer(c) for c in cases} - {""}))
    fled = [
        f"{m} diverges ({c})"
        for c in cases
        for m in of or methods(c.clients)
        if diverges(results, c, m)
    ]
    reasons = [*fled, *([f"{rounds} were run"] if rounds else [])]
    return "; ".join(reasons if fled else ["not found", *reasons])


def diverges(results: Outcome, case: Case, method: str) -> str:
    """That a method's training loss ends far above that of a guess; "" where it does not."""
    curve = results.curve(case, method, "train_loss")
    if curve[-1] <= DIVERGED * math.log(CLASSES):
        return ""
    rounds = results.rounds(case, method)
    lowest = int(np.nanargmin(curve))
    text = (
        f"it diverges: its training loss is {curve[lowest]:.2f} in round {rounds[lowest]} and "
        f"{curve[-1]:,.0f} in round {rounds[-1]}"
    )
    algorithm = methods(case.clients)[method]
    if not isinstance(algorithm, FedDeper):
        return text
    waits = case.clients / case.heard
    text += (
        f". A client's own model waits {waits:.0f} rounds for its turn, and ϱ then pushes by how "
        "far the shared one has moved away from it: with steady movement by ϱτn/(mλ) = "
        f"{algorithm.rho * algorithm.steps * waits / algorithm.lam:.1f} times as much as it moves "
        "per round. The likely reason, not a proof: the pull of the loss is not in this picture"
    )
    if (case, SMALLER) not in results.summaries:
        return text
    return text + (
        f". With ϱ = {SMALLER_RHO}, the one other value tried, after this was seen, it ends at "
        f"{results.accuracy(case, SMALLER)} %. The paper prints ϱ for Figure 7 alone"
    )


def too_few(results: Outcome, cases: Iterable[Case]) -> str:
    """That no method has learnt anything yet in some cases; "" where there is no such case."""
    early = [c for c in cases if c not in results.learnt]
    return "; ".join(
        f"{c}: after {results.fewer(c)} the lowest training loss is {results.lowest(c):.2f}, and "
        f"that of a guess {math.log(CLASSES):.2f}: too few to compare methods"
        for c in early
    )


def counted(paper: str, ours: str, holds: int, of: int, reason: str = "not found") -> Claim:
    """A claim about several panels: it agrees in all of them, in most of them, or it differs."""
    if holds == of:
        return Claim(paper, ours, "agrees")
    return Claim(paper, ours, "same order" if 2 * holds >= of else "differs", reason)


def _percent(values: Sequence[Any]) -> Figure:
    return Figure.of([None if v is None else 100 * v for v in values], digits=2)
