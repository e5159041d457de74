"""Personalisation and fairness: Tables 4 and 10, Figures 2, 3 and 5 to 9 of the lp-proj paper.

`idiolect reproduce lp-proj-table4` (and lp-proj-table10, lp-proj-figure2, ...). All of them are
made of the same runs, which are stored in the folder .runs beside the pages: what one has run, the
others do not run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from idiolect.core.knobs import nearest

from . import figures, pages
from .cases import CASES, VOLUME, Case
from .measure import Outcome, outcome, store, stored

EVERY = tuple(CASES)
DRAWN = ("EMNIST", "CIFAR")  # of Figures 2 and 3
OUTCOME = "outcome.json"
FULL = "full"


def write_table4(folder: Path, scale: str, only: Sequence[str] = ()) -> list[Path]:
    """Run what is not stored yet, all data sets or some, and write the page of what there is."""
    for title in only:
        if title not in CASES:
            raise nearest(title, CASES, "data set of Table 4")
    found = measured(folder, scale, only or EVERY, CASES)
    return pages.table("lp-proj-table4", "Table 4", found, EVERY, scale).write(folder)


def write_table10(folder: Path, scale: str) -> list[Path]:
    title = VOLUME.title
    found = measured(folder, scale, [title], {title: VOLUME})
    return pages.table("lp-proj-table10", "Table 10", found, [title], scale).write(folder)


def write_figure2(folder: Path, scale: str) -> list[Path]:
    found = drawn(folder, scale, {t: CASES[t] for t in DRAWN})
    return figures.fairness("lp-proj-figure2", "Figure 2", found, scale).write(folder)


def write_figure3(folder: Path, scale: str) -> list[Path]:
    found = drawn(folder, scale, {t: CASES[t] for t in DRAWN})
    return figures.training("lp-proj-figure3", "Figure 3", found, scale).write(folder)


def write_figure5(folder: Path, scale: str) -> list[Path]:
    found = drawn(folder, scale, CASES)
    return figures.training("lp-proj-figure5", "Figure 5", found, scale).write(folder)


def write_figure6(folder: Path, scale: str) -> list[Path]:
    found = drawn(folder, scale, CASES)
    return figures.fairness("lp-proj-figure6", "Figure 6", found, scale).write(folder)


def write_figure7(folder: Path, scale: str) -> list[Path]:
    found = drawn(folder, scale, CASES)
    return figures.losses("lp-proj-figure7", "Figure 7", found, scale).write(folder)


def write_figure8(folder: Path, scale: str) -> list[Path]:
    found = drawn(folder, scale, {VOLUME.title: VOLUME})
    return figures.training("lp-proj-figure8", "Figure 8", found, scale).write(folder)


def write_figure9(folder: Path, scale: str) -> list[Path]:
    found = drawn(folder, scale, CASES)
    return figures.collaboration("lp-proj-figure9", "Figure 9", found, scale).write(folder)


def measured(
    folder: Path, scale: str, titles: Sequence[str], cases: dict[str, Case]
) -> dict[str, Outcome]:
    """What there is of every data set: those of `titles` run now, others as they are stored.

    Where a data set was run at the full scale too, that is what is shown.
    """
    for title in titles:
        case = cases[title].here()
        runs = _runs(folder, scale, cases[title])
        store(runs / OUTCOME, outcome(case, case.sizes[scale], runs))
    found = {t: _largest(folder, scale, case) for t, case in cases.items()}
    return {title: one for title, one in found.items() if one}


def _largest(folder: Path, scale: str, case: Case) -> Outcome:
    full = stored(_runs(folder, FULL, case) / OUTCOME) if scale != FULL else {}
    if full:
        return full | {"scale": f"at the full scale, {full['scale']}"}
    return stored(_runs(folder, scale, case) / OUTCOME)


def drawn(folder: Path, scale: str, cases: dict[str, Case]) -> dict[str, Outcome]:
    """What the table has stored of these data sets; what it has not is run."""
    missing = [title for title, case in cases.items() if not _largest(folder, scale, case)]
    return measured(folder, scale, missing, cases)


def _runs(folder: Path, scale: str, case: Case) -> Path:
    name = case.title if case.here() is case else f"{case.title}, own files"
    return folder / ".runs" / f"lp-proj-{scale}" / name
