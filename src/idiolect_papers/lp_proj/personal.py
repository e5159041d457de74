"""The federations of Table 3 of the lp-proj paper, and how much of them each scale runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from idiolect import Federation, Local, Method, Task, data, make_method, models
from idiolect.data import where
from idiolect.study import GridPoint as Point
from idiolect.study import Setting, Stock, grid_of

from ..runs import Runs


@dataclass(frozen=True)
class Size:
    """How much is run."""

    rounds: int
    seeds: int
    search_rounds: int  # of every candidate; 0: the first candidate, without a search
    grid: str = "whole"  # "whole": Appendix C.2; "R = 1": of it, R = 1; "few": of that, a part
    options: dict[str, Any] = field(default_factory=dict)  # of the data

    @property
    def text(self) -> str:
        """In words, for the page."""
        grids = {
            "whole": "the grid of C.2",
            "R = 1": "the part R = 1 of C.2",
            "few": "lr = 0.1, R = 1, personal_lr 0.05 and 0.1, λ 0.1 and 1 of C.2",
        }
        search = f"{grids[self.grid]} searched with {self.search_rounds} rounds of one more seed"
        if not self.search_rounds:
            search = "no search: lr = personal_lr = λ = 0.1, R = 1"
        part = ", ".join(f"{k} {v}" for k, v in self.options.items())
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"{self.rounds} rounds, {seeds}, {search}" + (part and f"; {part}")


@dataclass(frozen=True)
class Case:
    """A federation, its model, and the dimension of lp-proj's subspace."""

    title: str  # as the paper calls it
    data: str
    model: str
    dim: int
    sizes: dict[str, Size]
    options: dict[str, Any] = field(default_factory=dict)
    model_options: dict[str, Any] = field(default_factory=dict)
    heard: float = 0.1  # of the clients, per round
    note: str = ""  # where the data are not those of the paper
    own: Case | None = None  # with the paper's data, where the user's files of them are there

    def here(self) -> Case:
        """This case, or the one with the paper's own data where they are in the data cache."""
        return self.own if self.own and (where() / self.own.data).is_dir() else self

    def load(self, size: Size) -> tuple[Federation, Task]:
        federation = data.load(self.data, **{**self.options, **size.options})
        return federation, self.task(federation)

    def task(self, federation: Federation) -> Task:
        make = partial(
            models.make, self.model, federation.shape, federation.classes, **self.model_options
        )
        return Task(make)

    def sample(self, clients: int) -> int:
        return max(1, round(self.heard * clients))

    @property
    def parts(self) -> bool:
        """Whether the model has parts: LG-FedAvg is for those."""
        return self.model != "linear"


_SYNTHETIC = {"quick": Size(200, 3, 25), "full": Size(200, 10, 200)}
SYNTHETIC = Case(
    "Synthetic(0, 0)", "synthetic", "linear", 21, _SYNTHETIC, {"alpha": 0.0, "beta": 0.0}
)
VOLUME = Case(
    "Synthetic, by volume",
    "synthetic",
    "linear",
    21,
    _SYNTHETIC,
    {"alpha": 0.0, "beta": 0.0, "sizes": "power", "minimum": 100},
)
_EMNIST = Case(
    "EMNIST",
    "emnist",
    "mlp",
    80,
    {
        "quick": Size(20, 2, 2, "few", {"clients": 24, "share": 0.1}),
        "full": Size(200, 10, 200, options={"clients": 248}),
    },
    {"partition": "classes", "classes_per_client": 10},
    {"hidden": "100,100"},
)
CASES = {
    case.title: case
    for case in (
        SYNTHETIC,
        Case("Synthetic(1, 1)", "synthetic", "linear", 21, _SYNTHETIC, {"alpha": 1.0, "beta": 1.0}),
        Case(
            "EMNIST",
            "quickdraw",
            "mlp",
            80,
            {"quick": Size(20, 2, 5, "few"), "full": Size(200, 10, 200)},
            {"partition": "classes", "classes_per_client": 10},
            {"hidden": "100,100"},
            note="QuickDraw-62 stands in for EMNIST: 50 clients with 70 training drawings each "
            "in place of 248 with 2,000; levels cannot agree, orders may",
            own=_EMNIST,
        ),
        Case(
            "CIFAR",
            "cifar10",
            "lenet",
            60,
            {
                "quick": Size(15, 1, 3, "few", {"clients": 20, "share": 0.1}),
                "full": Size(200, 10, 200),
            },
        ),
        Case(
            "MNIST",
            "mnist",
            "mlp",
            50,
            {
                "quick": Size(60, 2, 5, "R = 1", {"clients": 20, "share": 0.2}),
                "full": Size(200, 10, 200),
            },
            heard=0.2,
        ),
        Case(
            "FASHIONMNIST",
            "fashion-mnist",
            "resnet-small",
            600,
            {
                "quick": Size(5, 1, 0, "few", {"clients": 5, "share": 0.05}),
                "full": Size(200, 10, 200),
            },
            heard=0.2,
        ),
    )
}


METHODS = {  # as the table calls them -> here
    "Ditto": "ditto",
    "pFedMe": "pfedme",
    "Per-FedAvg": "per-fedavg",
    "FedAvg": "fedavg",
    "local": "local",
    "lp-proj-1": "lp-proj-1",
    "lp-proj-2": "lp-proj-2",
    "RSA": "rsa",
    "LG-FedAvg": "lg-fedavg",
}
DEAREST = ("lp-proj-1", "lp-proj-2", "pFedMe")
INNER = 20  # gradient steps of one inner problem: the authors' code has 20; ν = 1e-10 as printed
EQUAL = "Local, equal gradients"
UNTIED = "lp-proj-1, λ = 0"
RATES = (0.05, 0.1, 0.5)
FEW = {"lr": (0.1,), "personal_lr": (0.05, 0.1), "lam": (0.1, 1.0)}
FIRST = {"lr": 0.1, "personal_lr": 0.1, "lam": 0.1}  # of a row without a search


def candidates(size: Size, d: int) -> dict[str, list[Point]]:
    """Label of a row -> its candidates at this size, for a model of d numbers."""
    by_row = {
        row: [p for p in grid_of("lp-proj", name).points(d) if _wanted(p, size.grid)]
        for row, name in METHODS.items()
    }
    if size.search_rounds:
        return by_row
    return {row: [p for p in points if _first(p)][:1] for row, points in by_row.items()}


def alternations(point: Point) -> int:
    """R of C.2: of methods that alternate it says how long a round takes."""
    return point.fields.get("alternations", 1)


def _wanted(point: Point, grid: str) -> bool:
    """Whether a candidate is in a part of C.2."""
    long = alternations(point) > 1 or point.fields.get("steps", 1) > INNER  # R = 5
    if grid != "whole" and long:
        return False
    pairs = ((name, point.varied.get(name)) for name in FEW)
    return grid != "few" or all(v is None or v in FEW[name] for name, v in pairs)


def _first(point: Point) -> bool:
    return all(point.varied.get(name, value) == value for name, value in FIRST.items())


def method_of(row: str, point: Point, case: Case) -> Method:
    """The method of a row with these fields."""
    dim = {"dim": case.dim} if row.startswith("lp-proj") else {}
    return make_method(METHODS[row], **dim, **point.fields)


def lacking(winners: Mapping[str, Point], case: Case) -> dict[str, list[Method]]:
    """The rows that the table lacks, from what was chosen: their candidates.

    Local with as many gradients as the dearest of lp-proj and pFedMe, its step size from the same
    three; and lp-proj-1 as it was chosen, but without its tie to the subspace.
    """
    most = max(alternations(winners[row]) for row in DEAREST)
    untied = make_method(
        "lp-proj-1", **{**winners["lp-proj-1"].fields, "dim": case.dim, "lam": 0.0}
    )
    return {EQUAL: [Local(lr=lr, steps=INNER * most) for lr in RATES], UNTIED: [untied]}


SEARCH_SEED = 1000  # never a seed of the final runs
P = TypeVar("P")
Outcome = dict[str, Any]  # of one federation, plain data: what pages are made of


def outcome(case: Case, size: Size, folder: Path, jobs: int = 0, rows: Sequence[str] = ()) -> Any:
    """Everything the pages need of one federation; what is stored is not run again."""
    return _Measuring(case, size, folder, jobs, rows).outcome()


class _Measuring:
    def __init__(self, case: Case, size: Size, folder: Path, jobs: int, rows: Sequence[str]):
        self.case, self.size = case, size
        federation, task = case.load(size)
        self.stock = Stock({"": federation}, {"": task})
        self.federation, self.task = federation, task
        self.runs = Runs(folder / "runs", jobs)
        self.spent = 0.0  # CPU seconds of all runs
        wanted = candidates(size, task.d)
        wanted = {n: c for n, c in wanted.items() if case.parts or n != "LG-FedAvg"}
        self.candidates = {n: c for n, c in wanted.items() if not rows or n in rows}

    def outcome(self) -> Outcome:
        points = self._search(
            {
                row: {method_of(row, point, self.case): point for point in candidates}
                for row, candidates in self.candidates.items()
            }
        )
        winners: dict[str, Point] = {row: point for row, (_, point) in points.items()}
        methods = {row: method for row, (method, _) in points.items()}
        more = lacking(winners, self.case) if {*DEAREST} <= {*winners} else {}
        extra = self._search({row: dict.fromkeys(candidates) for row, candidates in more.items()})
        return self._final(methods | {row: method for row, (method, _) in extra.items()}, winners)

    def _setting(self, row: str, method: Method, **run: Any) -> Setting:
        sample = 0 if method.traits.hears_all else self.case.sample(self.federation.clients)
        run_settings = {"sample": sample, **run}
        return Setting(method, run_settings, "", "", row, {})

    def _search(self, grid: Mapping[str, Mapping[Method, P]]) -> dict[str, tuple[Method, P]]:
        """Of each row the candidate that does best on validation data; test data are not there."""
        if not self.size.search_rounds:
            return {row: next(iter(several.items())) for row, several in grid.items()}
        settings = {
            row: [
                replace(
                    self._setting(row, method, rounds=self.size.search_rounds),
                    varied={"candidate": place},
                )
                for place, method in enumerate(several)
            ]
            for row, several in grid.items()
        }
        best, seconds = self.runs.chosen(settings, self.stock, SEARCH_SEED)
        self.spent += seconds
        return {row: (s.method, grid[row][s.method]) for row, s in best.items()}

    def _final(self, methods: dict[str, Method], winners: dict[str, Point]) -> Outcome:
        rounds = self.size.rounds
        every = max(1, rounds // 40)
        points = {
            row: self._setting(row, method, rounds=rounds, eval_every=every, eval_train=True)
            for row, method in methods.items()
        }
        by_row = self.runs(points, self.stock, range(self.size.seeds), ("by_round", "by_client"))
        self.spent += sum(s["cpu_seconds"] for summaries in by_row.values() for s in summaries)
        alone = by_row.get(EQUAL) or by_row.get("local")
        return {
            "title": self.case.title,
            "clients": self.federation.clients,
            "parameters": self.task.d,
            "heard": self.case.sample(self.federation.clients),
            "scale": self.size.text,
            "note": self.case.note,
            "cpu_seconds": self.spent,
            "rows": {
                row: {
                    "chosen": _chosen(row, methods[row], winners),
                    **_figures(summaries),
                    "collaboration": _collaboration(summaries, alone),
                }
                for row, summaries in by_row.items()
            },
        }


def _chosen(row: str, method: Method, winners: dict[str, Point]) -> str:
    if row == UNTIED:
        return "as lp-proj-1"
    fields = {k: v for k, v in method.as_dict().items() if k in ("lr", "steps")}
    if row in winners:
        fields = winners[row].varied
    names = {"lam": "λ", "personal_lr": "own lr", "alternations": "R"}
    return ", ".join(f"{names.get(k, k)} {v:g}" for k, v in fields.items())


def _figures(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By seed: the figures of the table, of the best late round, and the curves."""
    late = [s.get("best_after_20") or {} for s in summaries]
    rounds = [row["round"] for row in summaries[0]["by_round"]]
    return {
        "train loss": [s["train"]["loss"]["mean"] for s in summaries],
        "variance of train loss": [s["train"]["loss"]["variance"] for s in summaries],
        "accuracy": [s["accuracy"]["mean"] for s in summaries],
        "variance of accuracy": [s["accuracy"]["variance"] for s in summaries],
        "test loss": [s["loss"]["mean"] for s in summaries],
        "variance of test loss": [s["loss"]["variance"] for s in summaries],
        "late": {
            name: [one.get(name) for one in late]
            for name in ("accuracy", "variance", "loss", "loss_variance")
        },
        "rounds": rounds,
        "curves": {
            name: [[row[name] for row in s["by_round"]] for s in summaries]
            for name in ("train_loss", "accuracy")
        },
        "gradients": summaries[0]["gradients_per_client"],
        "bytes": sum(summaries[0]["bytes"].values()),
        "collapsed": [s["collapsed"][0] for s in summaries],
    }


def _collaboration(
    summaries: Sequence[dict[str, Any]], alone: Sequence[dict[str, Any]] | None
) -> list[float | None]:
    """By seed: the correlation over clients of accuracy alone with accuracy in the end."""

    def deviations(summary: dict[str, Any]) -> np.ndarray:
        accuracy = np.array([row["test_accuracy"] for row in summary["by_client"]], float)
        return accuracy - accuracy.mean()

    correlations: list[float | None] = []
    for summary, own in zip(summaries, alone or (), strict=False):
        a, b = deviations(own), deviations(summary)
        size = math.sqrt(float(a @ a) * float(b @ b))
        correlations.append(float(np.clip(a @ b / size, -1, 1)) if size > 0 else None)
    return correlations


# -- stored ---------------------------------------------------------------------------------------
def stored(path: Path) -> Outcome:
    """What was measured before; {} where nothing was."""
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def store(path: Path, measurements: Outcome) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(measurements), "utf-8")
