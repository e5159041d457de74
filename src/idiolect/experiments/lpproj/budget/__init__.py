"""What do bytes buy? Accuracy at a budget and bytes to a target (Table 5 of the lp-proj paper).

`idiolect reproduce budget` writes budget.md, budget.json and one picture per federation, for
lp-proj and compressed baselines. MNIST is fetched if it is not there.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from .... import data, models
from ....data.federation import Federation
from ....methods import name_of
from ....report.curve_picture import picture
from ....report.curves import curve
from ....report.goals import Curve, Goals
from ....run.kept import Kept, kept
from ....run.run import run
from ....run.tune import Candidate, choose
from ....task.task import Task
from .cases import CASES, Case, rows
from .page import line, page

SEEDS = 3


def measure(
    title: str,
    case: Case,
    seeds: int,
    keep: Kept,
    rounds: int | None = None,
    only: tuple[str, ...] = (),
) -> tuple[list[Curve], dict[str, Any]]:
    """The curves of one federation, and for every row what it made of the budget and the target."""
    console = Console(stderr=True)
    federation = data.load(case.data)
    shape = tuple(federation.inputs.shape[1:])
    task = Task(partial(models.make, case.model, shape, federation.classes))
    goals = Goals(case.budget, case.target)
    drawn: list[Curve] = []
    figures: dict[str, Any] = {}
    for label, candidates in rows(case.dim).items():
        if only and label not in only:
            continue
        settings: dict[str, Any] = {
            "rounds": rounds or case.rounds_of(label),
            "sample": 10,
            "threads": 1,
        }
        make = partial(_row, label, candidates, task, federation, settings, seeds, goals)
        described = [[name_of(method), method.as_dict(), own] for method, own in candidates]
        drawn_row, figures[label] = keep(make, title, label, described, settings, seeds)
        drawn.append(drawn_row)
        console.print(f"{title}: {label}: {line(figures[label])}", highlight=False, soft_wrap=True)
    return drawn, figures


def _row(
    label: str,
    candidates: list[Candidate],
    task: Task,
    federation: Federation,
    settings: dict[str, Any],
    seeds: int,
    goals: Goals,
) -> tuple[Curve, dict[str, Any]]:
    """The curve of one row, and what it made of the goals."""
    choice = choose(candidates, task, federation, settings)
    more = {**settings, **choice.settings, "seeds": seeds, "progress": False}
    result = run(choice.method, task, federation, **more)
    drawn = curve(label, result.rounds_table())
    figures = {
        "lr": choice.method.as_dict()["lr"],
        **goals.reached(drawn),
        "last": result.summary()["accuracy"]["mean"],
    }
    return drawn, figures


def write(
    folder: Path,
    seeds: int = SEEDS,
    rounds: int | None = None,
    titles: tuple[str, ...] = tuple(CASES),
    only: tuple[str, ...] = (),
) -> list[Path]:
    """Measure every row of every federation and write the page, its figures and its pictures."""
    stored: dict[str, Any] = {}
    pictures: list[Path] = []
    text = folder / "budget.md"
    figures = folder / "budget.json"
    with kept(folder / ".budget.jsonl") as keep:
        for title in titles:
            case = CASES[title]
            drawn, stored[title] = measure(title, case, seeds, keep, rounds, only)
            in_words = Goals(case.budget, case.target, "values")
            pictures += picture(drawn, in_words, folder / case.picture)
        text.write_text(page(stored), encoding="utf-8")
        figures.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return [text, figures, *pictures]
