"""What do bytes buy? Accuracy at a budget and bytes to a target (Table 5 of the lp-proj paper).

`idiolect reproduce budget` writes budget.md, budget.json and one picture per federation, for
lp-proj and compressed baselines. MNIST and CIFAR-10 are fetched if they are not there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from idiolect.report.plots import curve_picture
from idiolect.report.targets import Curve, Goals
from idiolect.study.sweep import Stock

from ...runs import Runs, stored_runs
from .cases import CASES, MAIN, Case, rows
from .measure import choose, final, reached
from .page import page

SEEDS = 3


def write(
    folder: Path,
    seeds: int = SEEDS,
    rounds: int | None = None,
    titles: tuple[str, ...] = tuple(MAIN),
    only: tuple[str, ...] = (),
    jobs: int = 0,
) -> list[Path]:
    """Measure every row of every federation and write the page, its figures and its pictures."""
    cases = {title: CASES[title] for title in titles}
    text = folder / "budget.md"
    figures = folder / "budget.json"
    with stored_runs(folder, "budget", jobs) as runs:
        stored, curves = measured(runs, cases, seeds, rounds, only)
        pictures = [
            path
            for title, case in cases.items()
            for path in curve_picture(
                curves[title], Goals(case.budget, case.target, "values"), folder / case.picture
            )
        ]
        text.write_text(page(stored), encoding="utf-8")
        figures.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return [text, figures, *pictures]


def measured(
    runs: Runs,
    cases: dict[str, Case],
    seeds: int,
    rounds: int | None = None,
    only: tuple[str, ...] = (),
) -> tuple[dict[str, dict[str, Any]], dict[str, list[Curve]]]:
    """Of every federation: what its rows made of budget and target, and their curves."""
    stock = Stock({}, {})
    for title, case in cases.items():
        stock.data[title], stock.tasks[title] = case.load()
    candidates = {
        (title, label): several
        for title, case in cases.items()
        for label, several in rows(case, stock.tasks[title].d).items()
        if not only or label in only
    }
    stored: dict[str, dict[str, Any]] = {title: {} for title in cases}
    curves: dict[str, list[Curve]] = {title: [] for title in cases}
    chosen = choose(runs, stock, cases, candidates, rounds)
    for (title, label), summaries in final(runs, stock, cases, chosen, seeds, rounds).items():
        goals = Goals(cases[title].budget, cases[title].target)
        drawn, found = reached(label, chosen[title, label], summaries, goals)
        curves[title].append(drawn)
        stored[title][label] = found
    return stored, curves
