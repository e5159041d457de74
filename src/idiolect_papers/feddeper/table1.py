"""Table 1 of the FedDeper paper: test accuracy of the global model, beside four other methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from idiolect.data.federation import Federation

from ..marks import Cell, Figure
from ..page import Claim, Page
from ..published import read_rows
from .runs import (
    CASES,
    CHOSEN,
    LOCAL,
    PRINTED,
    SIZES,
    Case,
    Outcome,
    Size,
    counted,
    diverges,
    methods,
    outcome,
    smaller,
    too_few,
    why,
)

NAME = "feddeper-table1"
MAJORITY = "own majority class"
BASELINES = ("Avg", "Prox", "SCAF")


def read_published() -> dict[tuple[Case, str], float]:
    """Accuracy in per cent, by case and method.

    >>> read_published()[Case("CIFAR-10", 100, "CNN", 5), "Deper"]
    68.19
    """
    return {
        (
            Case(row["data"], int(row["clients"]), row["model"], int(row["heard"])),
            row["method"],
        ): float(row["accuracy"])
        for row in read_rows("feddeper-table1")
    }


def write(folder: Path, scale: str) -> list[Path]:
    """Run what Figures 4 to 7 have not run already, and write the page."""
    return page(folder, scale, SIZES[scale]).write(folder)


def page(folder: Path, scale: str, size: Size, jobs: int = 0) -> Page:
    """Run what is missing, and compare."""
    results = outcome(folder, scale, size, CASES, jobs)
    return Page(
        NAME,
        "FedDeper, Table 1: test accuracy of the global model",
        scale=size.said,
        printed=PRINTED,
        chosen=CHOSEN,
        cells=_cells(results),
        claims=_claims(results),
        opening=OPENING,
        reasons=_reasons(results),
        more=_more(results),
        seconds=results.seconds,
    )


def _reasons(results: Outcome) -> dict[str, str]:
    """Of a method that diverges, and of whole cases."""
    of_cases = {
        f"{_title(c)}/{c.model}": too_few(results, [c]) or why(results, [c]) for c in results.cases
    }
    of_cells = {
        f"{_title(c)}/{m}/{c.model}": words
        for c in results.cases
        for m in methods(c.clients)
        if (words := diverges(results, c, m))
    }
    return of_cases | of_cells


def _title(case: Case) -> str:
    return f"{case.data}, n = {case.clients}, m = {case.heard}"


def _cells(results: Outcome) -> list[Cell]:
    published = read_published()
    cells = [
        Cell(_title(c), m, c.model, Figure(paper, None, 2), results.accuracy(c, m))
        for (c, m), paper in published.items()
    ]
    alone = [Cell(_title(c), r, c.model, None, None) for c in CASES for r in (LOCAL, MAJORITY)]
    slower = [
        Cell(_title(c), m, c.model, None, results.accuracy(c, m))
        for c in CASES
        for m in smaller(c.clients)
    ]
    return cells + slower + alone


def _more(results: Outcome) -> dict[tuple[str, str], dict[str, Any]]:
    """What the paper does not have: personal models on their clients' own test data."""
    more: dict[tuple[str, str], dict[str, Any]] = {}
    majorities: dict[str, Figure] = {}
    for case in results.cases:
        name = results.size.data_name(case)
        if name not in majorities:
            majorities[name] = Figure(100 * majority(results.stock.federation(name)), None, 2)
        own: dict[str, Figure | None] = {MAJORITY: majorities[name]}
        with_own = ("Deper", "Deper*", *smaller(case.clients), LOCAL)
        own |= {m: results.own(case, m) for m in with_own}
        for row, figure in own.items():
            cell = more.setdefault((_title(case), row), {})
            cell[f"{case.model}: own model, own data"] = str(figure)
    return more


def majority(federation: Federation) -> float:
    """The pooled test accuracy of answering the commonest class of one's training data."""
    hits = 0
    for k in range(federation.clients):
        _, train = federation.part(k, "train")
        _, test = federation.part(k, "test")
        hits += int((test == torch.mode(train).values).sum())
    return hits / int(federation.sizes("test").sum())


def _claims(results: Outcome) -> list[Claim]:
    rows = {"FedDeper": "Deper", "FedDeper*": "Deper*"}
    best: dict[str, list[str]] = {name: [] for name in rows}
    for case in results.learnt:
        final = {m: _mean(results.accuracy(case, m)) for m in methods(case.clients)}
        for name, row in rows.items():
            if final[row] >= max(final[m] for m in BASELINES):
                best[name].append(str(case))
    many = len(results.learnt)
    if not many:
        return []
    claims = [
        _most(
            f"{name} outperforms the other baselines across most cases",
            f"of {many} cases in which something was learnt, it has a higher accuracy than all "
            f"three baselines in {len(where)}" + (f": {'; '.join(where)}" if where else ""),
            len(where),
            many,
            why(results, results.learnt, [rows[name]]),
        )
        for name, where in best.items()
    ]
    large = [c for c in results.learnt if (c.data, c.model) == ("CIFAR-10", "CNN")]
    if large:
        gaps = [
            _mean(results.accuracy(c, "Deper"))
            - max(_mean(results.accuracy(c, m)) for m in BASELINES)
            for c in large
        ]
        words = ", ".join(f"{g:+.2f}" for g in gaps)
        claims.append(
            counted(
                "significant advantages for CIFAR-10 with the CNN",
                f"points above the best baseline for m = 5 and 10: {words}",
                sum(g > 5 for g in gaps),
                len(gaps),
            )
        )
    return claims


def _most(paper: str, ours: str, holds: int, of: int, reason: str) -> Claim:
    """A claim about most cases."""
    if 2 * holds > of:
        return Claim(paper, ours, "agrees")
    return Claim(paper, ours, "differs", reason)


def _mean(figure: Figure | None) -> float:
    return float("-inf") if figure is None or figure.mean is None else figure.mean


OPENING = """\
Accuracy in per cent on the test data of all clients together. FedDeper has two models: the global
one, which the paper compares, and each client's own one, in the last columns on the test data of
its own two classes. There stand also Local with the gradients of FedAvg per client (which has no
global model) and the answer "the commonest class of my training data". Statements are about
cases in which some method comes below nine tenths of the training loss of a guess, a limit that was
set after the first runs of the quick scale; cells are compared in all cases."""
