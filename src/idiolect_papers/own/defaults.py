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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from idiolect import METHODS, Federation, Method, Task, interval, make_method, run
from idiolect.study import finish, job_progress

from ..case import Case, case_for
from ..page import Row, table, write_page
from ..runs import Work
from ..texts import read_text

TIE = 0.01  # of accuracy: smaller differences are noise
SAME = 0.05  # costs that differ by less are the same
ROUNDS = 50
SEEDS = 2  # of the grid
CHECKED = 3  # seeds of the comparison with Local
TEXTS = read_text("defaults")
Fields = dict[str, Any]


# -- the rule -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class CandidateScore:
    """What a candidate has reached on one federation, or one variant of the method on it."""

    accuracy: float  # on validation data, the mean over seeds
    gradients: float  # per client
    bytes: float


def regrets(rows: Sequence[Sequence[CandidateScore]]) -> list[float]:
    """The worst regret of each candidate; rows[candidate][federation].

    >>> good, bad, fair = (CandidateScore(a, 1, 1) for a in (0.9, 0.5, 0.8))
    >>> [round(r, 3) for r in regrets([[good, bad], [fair, good]])]
    [0.4, 0.1]
    """
    best = [max(score.accuracy for score in column) for column in zip(*rows, strict=True)]
    return [max(b - score.accuracy for b, score in zip(best, row, strict=True)) for row in rows]


def chosen(rows: Sequence[Sequence[CandidateScore]]) -> int:
    """The place of the candidate that the rule takes.

    >>> cheap, costly = CandidateScore(0.895, 10, 1), CandidateScore(0.9, 100, 1)
    >>> chosen([[costly], [cheap]]), chosen([[costly], [CandidateScore(0.88, 10, 1)]])
    (1, 0)
    """
    worst = regrets(rows)
    least = min(worst)
    ties = [i for i, regret in enumerate(worst) if regret <= least + TIE + 1e-9]
    for cost in ("gradients", "bytes"):
        costs = {i: sum(getattr(score, cost) for score in rows[i]) for i in ties}
        ties = [i for i in ties if costs[i] <= (1 + SAME) * min(costs.values())]
    return min(ties, key=lambda i: (round(worst[i], 6), i))


# -- the federations ------------------------------------------------------------------------------
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


def _digits(clients_per_round: int, **options: Any) -> Case:
    return Case("digits", "mlp", options, {"hidden": "32"}, clients_per_round)


def _synthetic(**options: Any) -> Case:
    return Case("synthetic", "linear", {"clients": 50, **options}, {}, 10)


FEDERATIONS = {
    "digits, iid": _digits(10, clients=40, partition="iid"),
    "digits, 2 classes": _digits(5, clients=20, classes_per_client=2),
    "digits, 5 classes": _digits(5, clients=20, classes_per_client=5),
    "digits, by form": Case(digits_by_form, "mlp", {}, {"hidden": "32"}, 5),
    "Synthetic(0, 0)": _synthetic(alpha=0.0, beta=0.0),
    "Synthetic(1, 1)": _synthetic(alpha=1.0, beta=1.0),
}


@lru_cache(maxsize=8)
def loaded(title: str, seed: int) -> Federation:
    """Another seed is another draw of the data, and another split."""
    return FEDERATIONS[title].load(seed=seed)[0]


def task_of(title: str, method: Method) -> Task:
    return case_for(method, FEDERATIONS[title]).task(loaded(title, 0))


# -- the grids ------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Grid:
    """The candidates of one method."""

    method: str
    candidates: tuple[Fields, ...]
    variants: tuple[Fields, ...] = ({},)  # the default must serve all of them

    def run(
        self, candidate: Fields, variant: Fields, title: str, seed: int, rounds: int = ROUNDS
    ) -> GridRun:
        """The run behind a cell, without fields that have no effect."""
        fields = {**candidate, **variant}
        if fields.get("p") == 1:
            fields.pop("share", None)  # of lp-proj with p = 2 only
        return GridRun.of(title, self.method, fields, seed, rounds=rounds)


def products(values: Mapping[str, Any]) -> Iterator[Fields]:
    """All combinations of the values of fields; see texts/defaults-grids.toml.

    >>> list(products({"lr": [1, 3], "steps": 5, "personal_lr": "=lr"}))
    [{'lr': 1, 'steps': 5, 'personal_lr': 1}, {'lr': 3, 'steps': 5, 'personal_lr': 3}]
    """
    axes = [value if isinstance(value, list) else [value] for value in values.values()]
    for combination in product(*axes):
        fields: Fields = {}
        for name, value in zip(values, combination, strict=True):
            if isinstance(value, str) and value.startswith("="):
                value = fields[value[1:]]
            fields |= value if isinstance(value, dict) else {name: value}
        yield fields


_DATA = read_text("defaults-grids")
GRIDS = {
    method: Grid(
        method,
        tuple(fields for values in _DATA["candidates"][method] for fields in products(values)),
        tuple(_DATA["variants"].get(method, ({},))),
    )
    for method in METHODS
    if method in _DATA["candidates"]
}


# methods for which the search has not been run, and where their defaults come from
NOT_SEARCHED: dict[str, str] = _DATA["not_searched"]


# -- the runs -------------------------------------------------------------------------------------
FORMAT = 2  # of the stored runs: a change in what a run means makes the old ones void


@dataclass(frozen=True)
class GridRun(Work):
    """A run, and the part of the data that its figure is about: "valid" or "test"."""

    federation: str
    method: str
    fields: tuple[tuple[str, Any], ...]
    seed: int  # of the data and of the run
    part: str = "valid"
    rounds: int = ROUNDS

    @classmethod
    def of(cls, title: str, method: str, fields: Fields, seed: int, **options: Any) -> GridRun:
        return cls(title, method, tuple(sorted(fields.items())), seed, **options)

    def make(self) -> Method:
        return make_method(self.method, **dict(self.fields))

    def settings(self) -> dict[str, Any]:
        case = FEDERATIONS[self.federation]
        return {
            "rounds": self.rounds,
            "sample": 0 if self.make().traits.hears_all else case.clients_per_round,
            "seed": self.seed,
            "eval_every": 0,
            "threads": 1,
        }

    def key(self) -> str:
        """What the result depends on but the code: runs are kept from version to version."""
        method = self.make()
        case = {"options": FEDERATIONS[self.federation].options, "title": self.federation}
        name = type(method).__name__
        parts = [FORMAT, case, name, method.as_dict(), self.settings(), self.part]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]

    def train(self) -> dict[str, Any]:
        began = time.process_time()
        method = self.make()
        federation = loaded(self.federation, self.seed)
        task = task_of(self.federation, method)
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


Outcome = dict[str, Any]  # of a run

# names that stand for a variant of a method of the grids
NAMES = {
    "lp-proj": ("lp-proj-1", "lp-proj-2"),
    "feddeper": ("feddeper", "feddeper*"),
    "fedamp": ("fedamp", "heurfedamp"),
}
TITLE = "digits, iid"
TIED = (21, 150, 600, 1200, 2410)  # d_sub; the last is d, tied by the identity
# RSA is p = 1 with all of R^d tied. Its default has this λ, and its server, which adds what 10
# clients send, moves by η λ 10 = 0.03 per round: with lp-proj's mean that is η = 3.
AS_RSA = "lp-proj-1 (lam 0.01, lr 3)"
ROWS: dict[str, Fields] = {"lp-proj-1": {}, AS_RSA: {"lam": 0.01, "lr": 3.0}, "lp-proj-2": {}}


@dataclass(frozen=True)
class DefaultsStudy:
    """All cells of some grids, and what was chosen against Local."""

    path: Path  # of the finished runs
    federations: Sequence[str] = tuple(FEDERATIONS)
    rounds: int = ROUNDS
    seeds: int = SEEDS
    checked: int = CHECKED
    workers: int = 2
    earlier: Row = field(default_factory=dict)  # the figures of grids that need not be run again

    def results(self, todo: Sequence[GridRun]) -> dict[GridRun, Outcome]:
        """Stored before or run now."""
        with job_progress(todo) as bar:
            return finish(todo, self.path, self.workers, bar.report)

    def has(self, grid: Grid) -> bool:
        """Whether the earlier figures have all cells of this grid."""
        earlier = self.earlier.get("grids", {}).get(grid.method, {})
        return (
            earlier.get("candidates") == list(grid.candidates)
            and earlier["variants"] == list(grid.variants)
            and list(earlier["cells"])
            == [cell_name(title, v) for v in grid.variants for title in self.federations]
        )

    def choose(self, grids: Sequence[Grid]) -> dict[str, Row]:
        """Every cell of every grid, and the rule's choice, as plain data by method."""
        jobs = {
            grid.method: {
                cell_name(title, variant): [
                    [grid.run(c, variant, title, s, self.rounds) for s in range(self.seeds)]
                    for c in grid.candidates
                ]
                for variant in grid.variants
                for title in self.federations
            }
            for grid in grids
            if not self.has(grid)
        }
        every = [
            job
            for columns in jobs.values()
            for column in columns.values()
            for by_seed in column
            for job in by_seed
        ]
        results = self.results(every)
        stored = {}
        for grid in grids:
            if self.has(grid):
                stored[grid.method] = self.earlier["grids"][grid.method]
                continue
            cells = {
                name: [_cell([results[job] for job in by_seed]) for by_seed in column]
                for name, column in jobs[grid.method].items()
            }
            rows = rows_of(cells)
            stored[grid.method] = {
                "candidates": list(grid.candidates),
                "variants": list(grid.variants),
                "cells": cells,
                "regrets": [round(r, 4) for r in regrets(rows)],
                "chosen": chosen(rows),
            }
        return stored

    def against_local(self, fields: Mapping[str, Fields]) -> dict[str, Row]:
        """Federation -> method -> test accuracy, that of Local, and their difference.

        Federations on which collaboration does not clearly help have FedAvg's row alone.
        """
        if not {"local", "fedavg"} <= set(fields):
            return {}
        names = [name for method in fields for name in NAMES.get(method, (method,))]
        names.remove("local")
        titles = self.federations
        shared = self._differences([("fedavg", title) for title in titles], fields, equal=False)
        helps = [title for title in titles if shared["fedavg", title]["verdict"] == "better"]
        every = self._differences([(n, title) for title in helps for n in names], fields, True)
        return {
            title: {
                "helps": title in helps,
                "fedavg": shared["fedavg", title],
                "methods": {n: every[n, title] for n in names} if title in helps else {},
            }
            for title in titles
        }

    def _differences(
        self, pairs: Sequence[tuple[str, str]], fields: Mapping[str, Fields], equal: bool
    ) -> dict[tuple[str, str], Row]:
        """Methods on federations less Local: with equal gradients, or as it was chosen."""
        known = {pair: self._earlier_row(*pair, equal) for pair in pairs}
        mine = {
            (name, title): self._test_runs(title, name, _fields(name, fields), self.rounds)
            for name, title in pairs
            if not known[name, title]
        }
        outcomes = self.results([job for jobs in mine.values() for job in jobs])
        alone = {}
        for (name, title), jobs in mine.items():
            steps, rounds = fields["local"]["steps"], self.rounds
            if equal:
                steps, rounds = _spread(max(outcomes[job]["gradients"] for job in jobs), rounds)
            local = {**fields["local"], "steps": steps}
            alone[name, title] = self._test_runs(title, "local", local, rounds)
        outcomes |= self.results([job for jobs in alone.values() for job in jobs])
        new = {
            pair: _difference([outcomes[j] for j in mine[pair]], [outcomes[j] for j in alone[pair]])
            for pair in mine
        }
        return {pair: known[pair] or new[pair] for pair in pairs}

    def _earlier_row(self, name: str, title: str, equal: bool) -> Row:
        """The earlier difference, if the method's grid and Local's are the same; else nothing."""
        if not (self.has(GRIDS["local"]) and self.has(GRIDS[_grid_of(name)])):
            return {}
        row = self.earlier["local"].get(title, {})
        return row.get("methods", {}).get(name, {}) if equal else row.get("fedavg", {})

    def _test_runs(self, title: str, method: str, fields: Fields, rounds: int) -> list[GridRun]:
        options = {"part": "test", "rounds": rounds}
        return [GridRun.of(title, method, fields, s, **options) for s in range(self.checked)]

    def tied_part(self, fields: Mapping[str, Fields], dims: Sequence[int]) -> list[Row]:
        """Test accuracy of lp-proj-1 and lp-proj-2 for each d_sub, with the chosen settings.

        The tie of p = 1 pulls with λ in each of d_sub directions, however small the gap: for many
        directions it needs a smaller λ, and it is also run with that of RSA. Projection
        `contiguous`, whose cost does not grow with d_sub; the identity for d itself.
        """
        if "lp-proj" not in fields:
            return []
        if self.has(GRIDS["lp-proj"]) and [r["dim"] for r in self.earlier["tied"]] == list(dims):
            return self.earlier["tied"]
        d = task_of(TITLE, make_method("lp-proj")).d
        jobs = {}
        for row, dim in product(ROWS, dims):
            kind = {"projection": "identity", "dim": 0} if dim >= d else {"dim": dim}
            own = {"projection": "contiguous", **fields["lp-proj"], **kind, **ROWS[row]}
            jobs[row, dim] = self._test_runs(TITLE, row.split(" ")[0], own, self.rounds)
        outcomes = self.results([job for by_seed in jobs.values() for job in by_seed])

        def mean(row: str, dim: int) -> float:
            return round(float(np.mean([outcomes[j]["accuracy"] for j in jobs[row, dim]])), 4)

        return [
            {"dim": dim, "share": round(dim / d, 4), **{row: mean(row, dim) for row in ROWS}}
            for dim in dims
        ]


def cell_name(title: str, variant: Fields) -> str:
    """A column of a grid: a federation, and the variant of the method where it has several."""
    return ", ".join([title, *([_words(variant)] if variant else [])])


def _cell(by_seed: Sequence[Outcome]) -> Row:
    return {
        "accuracy": [outcome["accuracy"] for outcome in by_seed],
        "gradients": _mean([outcome["gradients"] for outcome in by_seed]),
        "bytes": _mean([outcome["bytes"] for outcome in by_seed]),
    }


def rows_of(cells: Mapping[str, Sequence[Row]]) -> list[list[CandidateScore]]:
    """The stored cells as the rule takes them: rows[candidate][federation]."""
    columns = [
        [CandidateScore(_mean(c["accuracy"]), c["gradients"], c["bytes"]) for c in column]
        for column in cells.values()
    ]
    return [list(row) for row in zip(*columns, strict=True)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _grid_of(name: str) -> str:
    """The method whose grid has chosen the defaults of this name."""
    return next(method for method in GRIDS if name in NAMES.get(method, (method,)))


def _fields(name: str, fields: Mapping[str, Fields]) -> Fields:
    fixed = METHODS.find(name)[1]
    return {k: v for k, v in fields[_grid_of(name)].items() if k not in fixed}


def _spread(gradients: float, rounds: int) -> tuple[int, int]:
    """At least so many gradients as (steps per round, rounds).

    >>> _spread(1000.0, 50), _spread(26.4, 50), _spread(1001.0, 50)
    ((20, 50), (1, 27), (21, 50))
    """
    if gradients <= rounds:
        return 1, max(1, math.ceil(gradients))
    return math.ceil(gradients / rounds), rounds


def _difference(mine: Sequence[Outcome], alone: Sequence[Outcome]) -> Row:
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


# -- the page -------------------------------------------------------------------------------------
def page(stored: Row) -> str:
    """The whole page."""
    settings = stored["settings"]
    draws = "one draw" if settings["seeds"] == 1 else f"{settings['seeds']} draws"
    parts = [
        TEXTS["head"].format(**settings, draws=draws, table=_federations(settings["federations"])),
        TEXTS["chosen"].format(table=_chosen(stored["grids"])),
        _against_local(stored),
    ]
    if stored["tied"]:
        parts.append(TEXTS["tied_part"].format(title=TITLE, table=tied_table(stored["tied"])))
    parts += [_grids(stored["grids"]), TEXTS["seen"]]
    return "\n".join(part for part in parts if part) + "\n"


def _federations(texts: Mapping[str, str]) -> str:
    rows = []
    for title, text in texts.items():
        case = FEDERATIONS[title]
        hidden = case.model_options.get("hidden")
        rows.append(
            {
                "federation": title,
                "how it differs": text,
                "model": f"{hidden} hidden units" if hidden else case.model,
                "heard per round": case.clients_per_round,
            }
        )
    return "\n".join(table(rows))


def _chosen(grids: Mapping[str, Row]) -> str:
    rows = []
    for method, grid in grids.items():
        place = grid["chosen"]
        rows.append(
            {
                "method": f"`{method}`",
                "default": _words(grid["candidates"][place]),
                "worst regret": f"{grid['regrets'][place]:.3f}",
                "of the first setting": f"{grid['regrets'][0]:.3f}",
                "settings": len(grid["candidates"]),
                "preset": ", ".join(METHODS.find(method)[0].traits.presets) or "–",
            }
        )
    return "\n".join(table(rows))


def _against_local(stored: Row) -> str:
    local = stored["local"]
    if not local:
        return ""
    lines = [TEXTS["alone"].format(**stored["settings"])]
    lines += table(
        [
            {
                "federation": title,
                "FedAvg": f"{row['fedavg']['accuracy']:.3f}",
                **_beside_local(row["fedavg"]),
                "collaboration": "helps" if row["helps"] else "does not clearly help",
            }
            for title, row in local.items()
        ]
    )
    for title, row in local.items():
        if row["helps"]:
            lines += ["", f"### {title}: every method against Local with as many gradients", ""]
            lines += table([_line(name, figures) for name, figures in row["methods"].items()])
    reasons = [f"- {name}: {reason}" for name, reason in TEXTS["explained"].items()]
    lines += ["", "Not better than Local beyond the interval, and why:", "", *reasons, ""]
    return "\n".join(lines)


def _beside_local(row: Row) -> Row:
    difference = f"{row['difference']:+.3f} ± {row['half']:.3f}"
    return {"Local": f"{row['local']:.3f}", "difference": difference}


def _line(name: str, row: Row) -> Row:
    return {
        "method": f"`{name}`",
        "gradients": f"{row['gradients']:,.0f}",
        "accuracy": f"{row['accuracy']:.3f}",
        **_beside_local(row),
        "": f"**{row['verdict']}**" if row["verdict"] == "worse" else row["verdict"],
    }


def tied_table(rows: Sequence[Row]) -> str:
    """Accuracy of lp-proj against the tied part."""
    shown = [
        {"d_sub": f"{row['dim']:,}", "d_sub / d": f"{row['share']:.3f}"}
        | {name: f"{row[name]:.3f}" for name in ROWS}
        for row in rows
    ]
    return "\n".join(table(shown))


def _grids(grids: Mapping[str, Row]) -> str:
    lines = ["## All settings", "", TEXTS["all_settings"]]
    for method, grid in grids.items():
        rows = []
        for i, scores in enumerate(rows_of(grid["cells"])):
            mark = "**" if i == grid["chosen"] else ""
            row: Row = {"setting": f"{mark}{_words(grid['candidates'][i])}{mark}"}
            names = zip(grid["cells"], scores, strict=True)
            row |= {name: f"{score.accuracy:.3f}" for name, score in names}
            row["regret"] = f"{mark}{grid['regrets'][i]:.3f}{mark}"
            row["gradients"] = f"{_mean([score.gradients for score in scores]):,.0f}"
            rows.append(row)
        lines += ["", f"### {method}", "", *table(rows)]
    return "\n".join(lines)


def _words(fields: Fields) -> str:
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float | int) else f"{name} {value}"
        for name, value in fields.items()
    )


def write(
    folder: Path,
    methods: Sequence[str] = tuple(GRIDS),
    dims: Sequence[int] = TIED,
    **sizes: Any,  # of `DefaultsStudy`
) -> list[Path]:
    """Run what is not stored yet and write the page and its figures: some forty minutes."""
    return _write(folder, {}, methods, dims, **sizes)


def write_missing(folder: Path, **options: Any) -> list[Path]:
    """Run only the grids that defaults.json does not have yet, and add them."""
    figures = folder / "defaults.json"
    earlier = json.loads(figures.read_text("utf-8")) if figures.exists() else {}
    return _write(folder, earlier, **options)


def _write(
    folder: Path,
    earlier: Row,
    methods: Sequence[str] = tuple(GRIDS),
    dims: Sequence[int] = TIED,
    **sizes: Any,
) -> list[Path]:
    study = DefaultsStudy(folder / "defaults-runs.jsonl", **sizes)
    settings = {
        "rounds": study.rounds,
        "seeds": study.seeds,
        "checked": study.checked,
        "tie": TIE,
        "federations": {title: TEXTS["federations"][title] for title in study.federations},
    }
    if earlier.get("settings") == settings:
        study = replace(study, earlier=earlier)
    grids = study.choose([GRIDS[m] for m in methods])
    fields = {name: grid["candidates"][grid["chosen"]] for name, grid in grids.items()}
    stored = {
        "settings": settings,
        "grids": grids,
        "local": study.against_local(fields),
        "tied": study.tied_part(fields, dims),
    }
    return write_page(folder, "defaults", page(stored), stored)
