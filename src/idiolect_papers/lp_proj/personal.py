"""Every method of Table 4 of the lp-proj paper on one federation, tuned by its Appendix C.2."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from idiolect import Local, Method, Plan, make_method
from idiolect.study import Stock, grid_of

from ..case import Case, Scale
from ..runs import Runs, Summary, column, cpu_seconds
from ..texts import read_text


@dataclass(frozen=True)
class SearchScale(Scale):
    """How much is run, and how settings are chosen."""

    search_rounds: int = 200  # of every candidate; 0: the first candidate, without a search
    grid: str = "whole"  # "whole": Appendix C.2; "R = 1": of it, R = 1; "few": of that, a part

    @property
    def words(self) -> str:
        """For the page."""
        search = f"{GRIDS[self.grid]} searched with {self.search_rounds} rounds of one more seed"
        if not self.search_rounds:
            search = "no search: lr = personal_lr = λ = 0.1, R = 1"
        part = ", ".join(f"{k} {v}" for k, v in self.options.items())
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"{self.rounds} rounds, {seeds}, {search}" + (part and f"; {part}")


TEXTS = read_text("lp-proj-personal")
GRIDS = TEXTS["grids"]
NOTES: dict[str, str] = TEXTS["notes"]  # of data that are not those of the paper
QUICK = {
    "synthetic": SearchScale(200, 3, search_rounds=25),
    "quickdraw": SearchScale(20, 2, search_rounds=5, grid="few"),
    "emnist": SearchScale(20, 2, {"clients": 24, "share": 0.1}, 2, "few"),
    "cifar10": SearchScale(15, 1, {"clients": 20, "share": 0.1}, 3, "few"),
    "mnist": SearchScale(60, 2, {"clients": 20, "share": 0.2}, 5, "R = 1"),
    "fashion-mnist": SearchScale(5, 1, {"clients": 5, "share": 0.05}, 0, "few"),
}
FULL = SearchScale(200, 10)


def scale_of(case: Case, scale: str) -> SearchScale:
    """How much of a case is run."""
    if scale == "quick":
        return QUICK[str(case.data)]
    return replace(FULL, options={"clients": 248}) if case.data == "emnist" else FULL


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
ADDED = (EQUAL, UNTIED)  # rows that the paper's table lacks
RATES = (0.05, 0.1, 0.5)
FEW = {"lr": (0.1,), "personal_lr": (0.05, 0.1), "lam": (0.1, 1.0)}
FIRST = {"lr": 0.1, "personal_lr": 0.1, "lam": 0.1}  # of a row without a search
SEARCH_SEED = 1000  # never a seed of the final runs
P = TypeVar("P")
Outcome = dict[str, Any]  # of one federation, plain data: what pages are made of


# -- candidates -----------------------------------------------------------------------------------
def candidates(scale: SearchScale, d: int) -> dict[str, list[Plan]]:
    """Label of a row -> its candidates at this scale, for a model of d numbers."""
    by_row = {
        row: [p for p in grid_of("lp-proj", name).plans(d) if _wanted(p, scale.grid)]
        for row, name in METHODS.items()
    }
    if scale.search_rounds:
        return by_row
    return {row: [p for p in points if _first(p)][:1] for row, points in by_row.items()}


def alternations(point: Plan) -> int:
    """R of C.2: of methods that alternate it says how long a round takes."""
    return point.method_fields.get("alternations", 1)


def _wanted(point: Plan, grid: str) -> bool:
    """Whether a candidate is in a part of C.2."""
    long = alternations(point) > 1 or point.method_fields.get("steps", 1) > INNER  # R = 5
    if grid != "whole" and long:
        return False
    pairs = ((name, point.varied.get(name)) for name in FEW)
    return grid != "few" or all(v is None or v in FEW[name] for name, v in pairs)


def _first(point: Plan) -> bool:
    return all(point.varied.get(name, value) == value for name, value in FIRST.items())


def method_of(row: str, point: Plan, case: Case) -> Method:
    """The method of a row with these fields."""
    dim = {"dim": case.dim} if row.startswith("lp-proj") else {}
    return make_method(METHODS[row], **dim, **point.method_fields)


def lacking(winners: Mapping[str, Plan], case: Case) -> dict[str, list[Method]]:
    """The rows that the table lacks, from what was chosen: their candidates.

    Local with as many gradients as the dearest of lp-proj and pFedMe, its step size from the same
    three; and lp-proj-1 as it was chosen, but without its tie to the subspace.
    """
    most = max(alternations(winners[row]) for row in DEAREST)
    untied = make_method(
        "lp-proj-1", **{**winners["lp-proj-1"].method_fields, "dim": case.dim, "lam": 0.0}
    )
    return {EQUAL: [Local(lr=lr, steps=INNER * most) for lr in RATES], UNTIED: [untied]}


# -- runs -----------------------------------------------------------------------------------------
def outcome(
    title: str,
    case: Case,
    scale: SearchScale,
    folder: Path,
    jobs: int = 0,
    rows: Sequence[str] = (),
) -> Outcome:
    """Everything the pages need of one federation; what is stored is not run again."""
    federation, task = case.load(**scale.options)
    stock = Stock({"": federation}, {"": task})
    runs = Runs(folder / "runs", jobs)
    sample = case.sample(federation.clients)
    search_seconds = 0.0  # CPU seconds

    def setting(row: str, method: Method, **run: Any) -> Plan:
        per_round = 0 if method.traits.hears_all else sample
        return Plan.of(method, settings={"sample": per_round, **run}, name=row)

    def search(grid: Mapping[str, Mapping[Method, P]]) -> dict[str, Method]:
        """Of each row the candidate that does best on validation data; test data are not there."""
        nonlocal search_seconds
        if not scale.search_rounds:
            return {row: next(iter(several)) for row, several in grid.items()}
        settings = {
            row: [
                replace(
                    setting(row, method, rounds=scale.search_rounds), varied={"candidate": place}
                )
                for place, method in enumerate(several)
            ]
            for row, several in grid.items()
        }
        best, seconds = runs.chosen(settings, stock, SEARCH_SEED)
        search_seconds += seconds
        return {row: chosen.make_method() for row, chosen in best.items()}

    has_parts = case.model != "linear"  # LG-FedAvg is for models that have parts
    grid = {
        row: {method_of(row, point, case): point for point in points}
        for row, points in candidates(scale, task.d).items()
        if (has_parts or row != "LG-FedAvg") and (not rows or row in rows)
    }
    methods = search(grid)
    winners = {row: grid[row][method] for row, method in methods.items()}
    if {*DEAREST} <= {*winners}:
        more = lacking(winners, case)
        methods |= search({row: dict.fromkeys(several) for row, several in more.items()})
    run = {"rounds": scale.rounds, "eval_every": max(1, scale.rounds // 40), "eval_train": True}
    settings = {row: setting(row, method, **run) for row, method in methods.items()}
    by_row = runs(settings, stock, range(scale.seeds), ("by_round", "by_client"))
    alone = by_row.get(EQUAL) or by_row.get("local") or ()
    return {
        "title": title,
        "clients": federation.clients,
        "parameters": task.d,
        "heard": sample,
        "scale": scale.words,
        "note": NOTES.get(str(case.data), ""),
        "cpu_seconds": search_seconds + cpu_seconds(by_row),
        "rows": {
            row: {
                "chosen": _chosen(row, methods[row], winners),
                **_figures(summaries),
                "collaboration": _collaboration(summaries, alone),
            }
            for row, summaries in by_row.items()
        },
    }


def _chosen(row: str, method: Method, winners: dict[str, Plan]) -> str:
    if row == UNTIED:
        return "as lp-proj-1"
    fields = {k: v for k, v in method.as_dict().items() if k in ("lr", "steps")}
    if row in winners:
        fields = winners[row].varied
    names = {"lam": "λ", "personal_lr": "own lr", "alternations": "R"}
    return ", ".join(f"{names.get(k, k)} {v:g}" for k, v in fields.items())


FIGURES = {
    "train loss": ("train", "loss", "mean"),
    "variance of train loss": ("train", "loss", "variance"),
    "accuracy": ("accuracy", "mean"),
    "variance of accuracy": ("accuracy", "variance"),
    "test loss": ("loss", "mean"),
    "variance of test loss": ("loss", "variance"),
}


def _figures(summaries: Sequence[Summary]) -> dict[str, Any]:
    """By seed: the figures of the table, of the best late round, and the curves."""
    late = [s.get("best_after_20") or {} for s in summaries]
    return {
        **{name: column(summaries, *path) for name, path in FIGURES.items()},
        "late": {
            name: [one.get(name) for one in late]
            for name in ("accuracy", "variance", "loss", "loss_variance")
        },
        "rounds": column(summaries[0]["by_round"], "round"),
        "curves": {
            name: [column(s["by_round"], name) for s in summaries]
            for name in ("train_loss", "accuracy")
        },
        "gradients": summaries[0]["gradients_per_client"],
        "bytes": sum(summaries[0]["bytes"].values()),
        "collapsed": [s["collapsed"][0] for s in summaries],
    }


def _collaboration(summaries: Sequence[Summary], alone: Sequence[Summary]) -> list[float | None]:
    """By seed: the correlation over clients of accuracy alone with accuracy in the end."""

    def deviations(summary: Summary) -> np.ndarray:
        accuracy = np.array(column(summary["by_client"], "test_accuracy"), float)
        return accuracy - accuracy.mean()

    correlations: list[float | None] = []
    for summary, own in zip(summaries, alone, strict=False):
        a, b = deviations(own), deviations(summary)
        size = math.sqrt(float(a @ a) * float(b @ b))
        correlations.append(float(np.clip(a @ b / size, -1, 1)) if size > 0 else None)
    return correlations
