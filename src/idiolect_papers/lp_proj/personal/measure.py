"""One federation: the search on validation data, then the runs that the tables and figures show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from idiolect.core.documents import plain
from idiolect.core.files import write_json
from idiolect.method import Method
from idiolect.study.collaboration import pearson
from idiolect.study.grids import Point
from idiolect.study.sweep import Setting, Stock

from ...runs import Runs
from .cases import Case, Size
from .rows import DEAREST, EQUAL, UNTIED, candidates, lacking, method_of

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
                row: {method_of(row, point, self.case): point for point in found}
                for row, found in self.candidates.items()
            }
        )
        chosen: dict[str, Point] = {row: point for row, (_, point) in points.items()}
        methods = {row: method for row, (method, _) in points.items()}
        more = lacking(chosen, self.case) if {*DEAREST} <= {*chosen} else {}
        extra = self._search({row: dict.fromkeys(found) for row, found in more.items()})
        return self._final(methods | {row: method for row, (method, _) in extra.items()}, chosen)

    def _setting(self, row: str, method: Method, **run: Any) -> Setting:
        sample = 0 if method.traits.hears_all else self.case.sample(self.federation.clients)
        given = {"sample": sample, **run}
        return Setting(method, given, "", "", row, {})

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
        found, spent = self.runs.chosen(settings, self.stock, SEARCH_SEED)
        self.spent += spent
        return {row: (s.method, grid[row][s.method]) for row, s in found.items()}

    def _final(self, methods: dict[str, Method], chosen: dict[str, Point]) -> Outcome:
        rounds = self.size.rounds
        every = max(1, rounds // 40)
        points = {
            row: self._setting(row, method, rounds=rounds, eval_every=every, eval_train=True)
            for row, method in methods.items()
        }
        found = self.runs(points, self.stock, range(self.size.seeds), ("by_round", "by_client"))
        self.spent += sum(s["cpu_seconds"] for summaries in found.values() for s in summaries)
        alone = found.get(EQUAL) or found.get("local")
        return plain(
            {
                "title": self.case.title,
                "clients": self.federation.clients,
                "parameters": self.task.d,
                "heard": self.case.sample(self.federation.clients),
                "scale": self.size.text,
                "note": self.case.note,
                "cpu_seconds": self.spent,
                "rows": {
                    row: {
                        "chosen": _chosen(row, methods[row], chosen),
                        **_figures(summaries),
                        "collaboration": _collaboration(summaries, alone),
                    }
                    for row, summaries in found.items()
                },
            }
        )


def _chosen(row: str, method: Method, chosen: dict[str, Point]) -> str:
    if row == UNTIED:
        return "as lp-proj-1"
    fields = {k: v for k, v in method.as_dict().items() if k in ("lr", "steps")}
    if row in chosen:
        fields = chosen[row].varied
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
) -> list[float]:
    """By seed: the correlation over clients of accuracy alone with accuracy in the end."""

    def each(summary: dict[str, Any]) -> list[float]:
        return [row["test_accuracy"] for row in summary["by_client"]]

    return [pearson(each(b), each(s)) for s, b in zip(summaries, alone or (), strict=False)]


# -- stored ---------------------------------------------------------------------------------------
def stored(path: Path) -> Outcome:
    """What was measured before; {} where nothing was."""
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


def store(path: Path, found: Outcome) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, found)
