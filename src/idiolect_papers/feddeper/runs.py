"""The runs of Table 1 and Figures 4 to 7 of the FedDeper paper: who trains what on which data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
)
from idiolect.study import Stock

from ..case import Case
from ..marks import Figure
from ..page import NOT_FOUND, ORDER
from ..runs import Summary, cpu_seconds, scaled_runs
from ..texts import read_text

Options = dict[str, Any]
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
MODELS: dict[str, tuple[str, Options]] = {
    "MLP": ("mlp", {"hidden": "512,256"}),
    "CNN": ("feddeper-cnn", {}),
}
LOCAL = "Local"
BASELINES = ("Avg", "Prox", "SCAF")
WORDS = read_text("feddeper")
SMALLER_RHO = 0.001  # where Figure 7 has 0.005: its n = 100
SMALLER = f"Deper, ϱ = {SMALLER_RHO}"


@dataclass(frozen=True)
class DeperCase:
    """One column of Table 1 with one number of clients heard."""

    data: str
    clients: int  # n
    model: str
    heard: int  # m

    def __str__(self) -> str:
        return f"{self.data}, n = {self.clients}, {self.model}, m = {self.heard}"

    @property
    def title(self) -> str:
        """Without the model: the title of a table."""
        return f"{self.data}, n = {self.clients}, m = {self.heard}"

    @property
    def of_figure7(self) -> bool:
        """Figure 7 has the personal models of this case."""
        return (self.data, self.model, self.heard) == ("MNIST", "MLP", HEARD[0])


CASES = tuple(DeperCase(*column, per_round) for per_round in HEARD for column in COLUMNS)


@dataclass(frozen=True)
class DeperSize:
    """How much is run."""

    text: str  # for the page
    rounds: Mapping[DeperCase, int]  # K of every case that is run
    seeds: int = 1
    points: int = 10  # evaluated rounds
    learnt: float = 0.9  # of the loss of a guess: claims are about cases that come below it
    shares: Mapping[tuple[str, str], float] = field(default_factory=dict)  # of the images
    sources: Mapping[str, str] = field(default_factory=lambda: SOURCES)  # names of data sets

    def source(self, case: DeperCase) -> Case:
        """Two classes per client, all images of the share; no validation data: nothing is tuned."""
        share = self.shares.get((case.data, case.model), 1.0)
        options = {"clients": case.clients, "level": False, "valid": 0.0}
        options |= {} if share == 1 else {"share": share}
        model, model_options = MODELS[case.model]
        return Case(self.sources[case.data], model, options, model_options)

    def stock(self, cases: Iterable[DeperCase]) -> Stock:
        """The data and models of some cases, by name."""
        stock = Stock({}, {})
        for case in cases:
            source, data, model = self.source(case), self.data_name(case), model_name(case)
            if data not in stock.data:
                stock.data[data], stock.tasks[model] = source.load()
            elif model not in stock.tasks:
                stock.tasks[model] = source.task(stock.federation(data))
        return stock

    def data_name(self, case: DeperCase) -> str:
        share = self.shares.get((case.data, case.model), 1.0)
        return f"{case.data}, n = {case.clients}, {share:g}"

    def plans(self, cases: Mapping[DeperCase, int]) -> dict[tuple[DeperCase, str], Plan]:
        """Every method in every case, a smaller ϱ of many clients, and Local, equal gradients."""
        plans = {}
        for case, rounds in cases.items():
            every = max(1, rounds // self.points)
            for name, method in (methods(case.clients) | smaller(case.clients)).items():
                run: Options = {"sample": case.heard, "rounds": rounds, "eval_every": every}
                if case.of_figure7 and not isinstance(method, FedDeper):
                    # the local models of a round: the global one after τ steps at home
                    run |= {"finetune_steps": STEPS, "finetune_lr": LR}
                plans[case, name] = self.plan(case, method, f"{name} ({case})", **run)
            local = Local(lr=LR, steps=STEPS)  # all clients in every round
            alone = {"rounds": rounds * case.heard // case.clients, "eval_every": 0}
            plans[case, LOCAL] = self.plan(case, local, f"{LOCAL} ({case})", **alone)
        return plans

    def plan(self, case: DeperCase, method: Method, name: str, **run: Any) -> Plan:
        data, model = self.data_name(case), model_name(case)
        return Plan.of(method, settings={"batch": BATCH, **run}, data=data, model=model, name=name)


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


def model_name(case: DeperCase) -> str:
    return f"{case.data}, {case.model}"


SIZES = {
    "quick": DeperSize(
        "quick: one seed, m = 5; the paper's 500 rounds for MNIST with the MLP, 30 with the CNN "
        "(n = 10, a tenth of the images), 150 for CIFAR-10 with the MLP (a fifth of the images)",
        {
            DeperCase("MNIST", 10, "MLP", 5): 500,
            DeperCase("MNIST", 10, "CNN", 5): 30,
            DeperCase("MNIST", 100, "MLP", 5): 500,
            DeperCase("CIFAR-10", 100, "MLP", 5): 150,
        },
        shares={("MNIST", "CNN"): 0.1, ("CIFAR-10", "MLP"): 0.2},
    ),
    "full": DeperSize(
        "full: three seeds, the paper's rounds, all images",
        {case: ROUNDS[case.data] for case in CASES},
        seeds=3,
        points=50,
    ),
}
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
            each = self.task.criterion.scores(outputs, self.federation.targets[some])
            hits += float(each.hits.sum())
            loss += float(each.loss.sum())
        return loss / len(places), hits / len(places)


KEEP = ("by_round", GlobalRounds)
CLASSES = 10
DIVERGED = 2  # times the loss of a guess


@dataclass(frozen=True)
class DeperResults:
    """All runs of some cases."""

    size: DeperSize
    stock: Stock
    summaries: Mapping[tuple[DeperCase, str], list[Summary]]

    @property
    def cases(self) -> list[DeperCase]:
        return list(dict.fromkeys(case for case, _ in self.summaries))

    @property
    def seconds(self) -> float:
        return cpu_seconds(self.summaries)

    def accuracy(self, case: DeperCase, method: str) -> Figure | None:
        """Of the global model on the pooled test data, in per cent; None where it was not run."""
        summaries = self.summaries.get((case, method))
        if not summaries or "global_model" not in summaries[0]:
            return None
        return _percent([s["global_model"]["accuracy"]["mean"] for s in summaries])

    def own(self, case: DeperCase, method: str) -> Figure | None:
        """Of personal models on their clients' own test data."""
        summaries = self.summaries.get((case, method))
        return None if not summaries else _percent([s["accuracy"]["mean"] for s in summaries])

    def rounds(self, case: DeperCase, method: str) -> list[int]:
        """The evaluated ones."""
        return [row["round"] for row in self.summaries[case, method][0]["global_by_round"]]

    def curve(self, case: DeperCase, method: str, name: str) -> list[float]:
        """A figure of the global model in every evaluated round, the mean over seeds."""
        return self._mean(case, method, "global_by_round", name)

    def own_curve(self, case: DeperCase, method: str) -> list[float]:
        """The accuracy of personal models in every evaluated round, the mean over seeds."""
        return self._mean(case, method, "by_round", "accuracy")

    def _mean(self, case: DeperCase, method: str, table: str, name: str) -> list[float]:
        rows = [[row[name] for row in s[table]] for s in self.summaries[case, method]]
        values = np.array([[np.nan if v is None else v for v in row] for row in rows])
        return [float(v) for v in values.mean(0)]

    @property
    def learnt(self) -> list[DeperCase]:
        """The cases in which some method has learnt something in the rounds that were run."""
        guess = self.size.learnt * math.log(CLASSES)
        return [case for case in self.cases if self.lowest(case) < guess]

    def lowest(self, case: DeperCase) -> float:
        """The lowest training loss of all methods."""
        curves = [self.curve(case, m, "train_loss") for m in methods(case.clients)]
        return min(loss for curve in curves for loss in curve if math.isfinite(loss))

    def fewer(self, case: DeperCase) -> str:
        """A reason why a figure may be another one, where fewer rounds were run."""
        run, paper = self.size.rounds[case], ROUNDS[case.data]
        return "" if run == paper else WORDS["fewer"].format(run=run, paper=paper)


def outcome(
    folder: Path, scale: str, size: DeperSize, cases: Iterable[DeperCase], jobs: int = 0
) -> DeperResults:
    """The runs of those cases that are run at this size; stored ones are not run again.

    Table 1 and the figures have their runs in common, in a directory that stays.
    """
    run = {c: size.rounds[c] for c in CASES if c in set(cases) and c in size.rounds}
    stock = size.stock(run)
    runs = scaled_runs(folder.parent, "feddeper", scale, jobs)
    return DeperResults(size, stock, runs(size.plans(run), stock, range(size.seeds), KEEP))


def why(results: DeperResults, cases: Iterable[DeperCase], of: Sequence[str] = ()) -> str:
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
    return "; ".join(reasons if fled else [NOT_FOUND, *reasons])


def diverges(results: DeperResults, case: DeperCase, method: str) -> str:
    """That a method's training loss ends far above that of a guess; "" where it does not."""
    curve = results.curve(case, method, "train_loss")
    if curve[-1] <= DIVERGED * math.log(CLASSES):
        return ""
    points = list(zip(results.rounds(case, method), curve, strict=True))
    text = WORDS["diverges"].format(low=points[int(np.nanargmin(curve))], last=points[-1])
    algorithm = methods(case.clients)[method]
    if isinstance(algorithm, FedDeper):
        waits = case.clients / case.heard
        push = algorithm.rho * algorithm.steps * waits / algorithm.lam
        text += WORDS["waits"].format(waits=waits, push=push)
        if (case, SMALLER) in results.summaries:
            accuracy = results.accuracy(case, SMALLER)
            text += WORDS["smaller"].format(rho=SMALLER_RHO, accuracy=accuracy)
    return text


def too_few(results: DeperResults, cases: Iterable[DeperCase]) -> str:
    """That no method has learnt anything yet in some cases; "" where there is no such case."""
    guess = math.log(CLASSES)
    return "; ".join(
        WORDS["too_few"].format(
            case=c, fewer=results.fewer(c), lowest=results.lowest(c), guess=guess
        )
        for c in cases
        if c not in results.learnt
    )


def counted(holds: int, of: int) -> bool | str:
    """A claim about several panels: it agrees in all of them, in most of them, or it differs."""
    return holds == of or (ORDER if 2 * holds >= of else False)


def _percent(values: Sequence[Any]) -> Figure:
    return Figure.of([None if v is None else 100 * v for v in values], digits=2)
