"""Table 1 of the FedDeper paper: test accuracy of the global model, beside four other methods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..case import majority_accuracy
from ..marks import Cell, Figure
from ..page import Page, Verdict, page_from_text
from ..published import read_rows
from .runs import (
    BASELINES,
    CASES,
    LOCAL,
    SIZES,
    WORDS,
    DeperCase,
    DeperResults,
    DeperSize,
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


def read_published() -> dict[tuple[DeperCase, str], float]:
    """Accuracy in per cent, by case and method.

    >>> read_published()[DeperCase("CIFAR-10", 100, "CNN", 5), "Deper"]
    68.19
    """
    return {
        (
            DeperCase(row["data"], int(row["clients"]), row["model"], int(row["heard"])),
            row["method"],
        ): float(row["accuracy"])
        for row in read_rows("feddeper-table1")
    }


def write(folder: Path, scale: str) -> list[Path]:
    """Run what Figures 4 to 7 have not run already, and write the page."""
    return page(folder, scale, SIZES[scale]).write(folder)


def page(folder: Path, scale: str, size: DeperSize, jobs: int = 0) -> Page:
    """Run what is missing, and compare."""
    results = outcome(folder, scale, size, CASES, jobs)
    return page_from_text(
        NAME,
        facts={"words": WORDS, "learnt": len(results.learnt)},
        verdicts=_verdicts(results),
        scale=size.text,
        cells=_cells(results),
        reasons=_reasons(results),
        more=_more(results),
        seconds=results.seconds,
    )


def _reasons(results: DeperResults) -> dict[str, str]:
    """Of a method that diverges, and of whole cases."""
    of_cases = {
        f"{c.title}/{c.model}": too_few(results, [c]) or why(results, [c]) for c in results.cases
    }
    of_cells = {
        f"{c.title}/{m}/{c.model}": words
        for c in results.cases
        for m in methods(c.clients)
        if (words := diverges(results, c, m))
    }
    return of_cases | of_cells


def _cells(results: DeperResults) -> list[Cell]:
    published = read_published()
    cells = [
        Cell(c.title, m, c.model, Figure(paper, None, 2), results.accuracy(c, m))
        for (c, m), paper in published.items()
    ]
    alone = [Cell(c.title, r, c.model, None, None) for c in CASES for r in (LOCAL, MAJORITY)]
    slower = [
        Cell(c.title, m, c.model, None, results.accuracy(c, m))
        for c in CASES
        for m in smaller(c.clients)
    ]
    return cells + slower + alone


def _more(results: DeperResults) -> dict[tuple[str, str], dict[str, Any]]:
    """What the paper does not have: personal models on their clients' own test data."""
    more: dict[tuple[str, str], dict[str, Any]] = {}
    majorities: dict[str, Figure] = {}
    for case in results.cases:
        name = results.size.data_name(case)
        if name not in majorities:
            majorities[name] = Figure(
                100 * majority_accuracy(results.stock.federation(name)), None, 2
            )
        own: dict[str, Figure | None] = {MAJORITY: majorities[name]}
        with_own = ("Deper", "Deper*", *smaller(case.clients), LOCAL)
        own |= {m: results.own(case, m) for m in with_own}
        for row, figure in own.items():
            cell = more.setdefault((case.title, row), {})
            cell[f"{case.model}: own model, own data"] = str(figure)
    return more


def _verdicts(results: DeperResults) -> dict[str, Verdict]:
    learnt = results.learnt
    final = {(c, m): _mean(results.accuracy(c, m)) for c in learnt for m in methods(c.clients)}
    baseline = {c: max(final[c, m] for m in BASELINES) for c in learnt}
    claims = []
    for name, row in {"FedDeper": "Deper", "FedDeper*": "Deper*"}.items():
        best = [str(c) for c in learnt if final[c, row] >= baseline[c]]
        facts = {"name": name, "reason": why(results, learnt, [row])}
        facts["best"] = f"{len(best)}" + (f": {'; '.join(best)}" if best else "")
        claims.append((2 * len(best) > len(learnt), facts))
    large = [c for c in learnt if (c.data, c.model) == ("CIFAR-10", "CNN")]
    gaps = [final[c, "Deper"] - baseline[c] for c in large]
    words = {"gaps": ", ".join(f"{gap:+.2f}" for gap in gaps)}
    return {
        "best": claims if learnt else None,
        "large": [(counted(sum(gap > 5 for gap in gaps), len(gaps)), words)] if large else None,
    }


def _mean(figure: Figure | None) -> float:
    return float("-inf") if figure is None or figure.mean is None else figure.mean
