"""Tables 1, 5 and 11, cell by cell beside the published ones: `idiolect reproduce lp-proj-table5`.

A budget and a target are in 32-bit words, which the paper calls bytes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ...marks import Cell, Figure
from ...page import Page
from ...runs import Runs
from . import measured
from .cases import CASES, FINETUNED, MAIN, TUNED, VOLUME, Case
from .published import read_published

SEEDS = {"quick": 2, "full": 10}
FULL: dict[str, Any] = {
    "everyone_rounds": 200,
    "sampled_rounds": 700,
}  # Table 5's QSGD needs 590 rounds
COLUMNS = {"accuracy at the budget": "at_budget_values", "words to the target": "to_target_values"}
OURS = "Local (sends nothing)"
TITLES = {  # as the paper calls them -> here
    "Synthetic(0, 0)": "Synthetic(0, 0)",
    "CIFAR": "CIFAR-10, 2 classes per client",
    "MNIST": "MNIST, 2 classes per client",
    VOLUME: VOLUME,
}


def write_table5(folder: Path, scale: str, jobs: int = 0) -> list[Path]:
    titles = [title for title, _ in read_published() if title != VOLUME]
    found = _measured(folder, scale, {t: CASES[t] for t in MAIN}, jobs)
    return _page(5, found, list(dict.fromkeys(titles)), scale).write(folder)


def write_table1(folder: Path, scale: str, jobs: int = 0) -> list[Path]:
    found = _measured(folder, scale, {t: CASES[t] for t in MAIN}, jobs)
    return _page(1, found, ["Synthetic(0, 0)", "EMNIST"], scale).write(folder)


def write_table11(folder: Path, scale: str, jobs: int = 0) -> list[Path]:
    found = _measured(folder, scale, {VOLUME: CASES[VOLUME]}, jobs)
    return _page(11, found, [VOLUME], scale).write(folder)


def _measured(
    folder: Path, scale: str, cases: dict[str, Case], jobs: int
) -> dict[str, dict[str, Any]]:
    if scale == "full":
        cases = {title: replace(case, **FULL) for title, case in cases.items()}
    name = "volume-budget" if VOLUME in cases else "budget"
    runs = Runs(folder / ".runs" / f"lp-proj-{name}-{scale}", jobs)
    stored, _ = measured(runs, cases, SEEDS[scale])
    return stored


def _page(number: int, found: dict[str, dict[str, Any]], titles: list[str], scale: str) -> Page:
    return Page(
        name=f"lp-proj-table{number}",
        title=f"lp-proj, Table {number}: accuracy at a budget, and words to a target",
        scale=f"{scale}: {SEEDS[scale]} seeds, the rounds of docs/budget.md"
        if scale == "quick"
        else f"{scale}: {SEEDS[scale]} seeds, 200 rounds of methods that train everyone, 700 of "
        "the others",
        opening=_opening(found),
        printed=PRINTED,
        chosen=CHOSEN,
        cells=_cells(found, titles),
        reasons=REASONS,
    )


def _cells(found: dict[str, dict[str, Any]], titles: list[str]) -> list[Cell]:
    published = read_published()
    cells = []
    for title in titles:
        rows = found.get(TITLES.get(title, ""), {})
        known = [row for data, row in published if data == title]
        for row in [*known, *([OURS] if OURS in rows else [])]:
            paper = published.get((title, row), {})
            for column, key in COLUMNS.items():
                ours = _ours(rows.get(label_of(row)), key)
                cells.append(Cell(title, row, column, paper.get(column), ours))
    return cells


def label_of(row: str) -> str:
    """Our row: compressed methods tuned by C.2 and personalised, as in the paper.

    >>> label_of("QSGD"), label_of("lp-proj-1")
    ('QSGD, tuned, fine-tuned', 'lp-proj-1')
    """
    return f"{row}{TUNED}{FINETUNED}" if row in ("Sketch", "LBGM", "QSGD", "DGC") else row


def _ours(row: dict[str, Any] | None, key: str) -> Figure | None:
    """A ★ where a seed has none; nothing where the rounds ended before the budget was spent."""
    if row is None:
        return None
    if row[key].get("unspent"):
        return None
    return Figure.of(row[key]["by_seed"], 3 if key.startswith("at_budget") else 0)


def _opening(found: dict[str, dict[str, Any]]) -> str:
    lines = [OPENING, ""]
    for title, rows in found.items():
        local, tied = rows.get(OURS), rows.get("lp-proj-1")
        if local and tied:
            words = _ours(tied, "to_target_values")
            lines.append(
                f"- {title}: Local reaches {local['last']:.3f} with 0 words, lp-proj-1 "
                f"{tied['last']:.3f} in the end; its first round, {words} words, is already above "
                "the target"
                if tied["to_target_values"]["rounds"][0] == 1
                else f"- {title}: Local reaches {local['last']:.3f} with 0 words, lp-proj-1 "
                f"{tied['last']:.3f} in the end and the target after {words} words"
            )
    return "\n".join(lines)


OPENING = """\
The table lacks Local at equal gradients, which sends nothing: a target that a client reaches alone
says nothing about what messages are worth."""
PRINTED = """\
Budgets and targets of each data set; "bytes" are counts of 32-bit numbers, both ways, of all
clients that receive or send; compressed methods are personalised by gradient steps from the shared
model; settings by the grid of C.2."""
CHOSEN = """\
Compressed methods are FedAvg through a channel, tuned by C.2 on validation data in a short search
and fine-tuned by two steps, the number of the authors' code; lp-proj has λ = lr = personal_lr =
0.1, R = 1. Synthetic(1, 1), EMNIST and FASHIONMNIST are not run here, nor is a budget that the
rounds of this scale do not spend. See [budget.md](../budget.md)."""
_LATE = "the authors' code evaluates before each round: its count has one round more than ours"
REASONS = {
    "lp-proj-1/words to the target": _LATE,
    "lp-proj-2/words to the target": _LATE,
    "words to the target": "everyone trains 20 steps before the first message, and two steps of "
    "fine-tuning reach the target from any shared model: one round is enough here",
    "LG-FedAvg": "the paper charges all clients for what is sent down, here those that are heard",
    "QSGD": "in the authors' code only one client is evaluated for QSGD and DGC",
    "DGC": "in the authors' code only one client is evaluated for QSGD and DGC",
}
