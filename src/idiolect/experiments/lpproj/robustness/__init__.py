"""Which methods withstand malicious clients? Tables 6 to 9 of the lp-proj paper.

`idiolect reproduce robustness` writes robustness.md, robustness.json and robustness.png. Every
finished run is a line of robustness-runs.jsonl in the same folder: started again, the grid goes on
where it was, and runs under other settings are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....run.grid import finish
from .grid import ATTACKS, CLIENTS, FEDERATIONS, FORMAT, METHODS, ROUNDS, SEEDS, jobs
from .page import page
from .picture import need_matplotlib, picture
from .progress import Bar
from .tables import Tables

RUNS = "robustness-runs.jsonl"
FIGURES = "robustness.json"


def write(
    folder: Path,
    rounds: int = ROUNDS,
    seeds: int = SEEDS,
    federations: Sequence[str] = tuple(FEDERATIONS),
    methods: Sequence[str] = tuple(METHODS),
    attacks: Sequence[str] = tuple(ATTACKS),
    clients: int = CLIENTS,
    workers: int = 2,
) -> list[Path]:
    """Run what is not stored yet and write the page, its figures and its picture.

    The whole grid takes some 15 to 20 minutes on two cores.
    """
    need_matplotlib()  # refuse now, not after all the runs
    folder = Path(folder)
    todo = list(jobs(federations, methods, attacks, seeds, rounds, clients))
    with Bar(todo) as bar:
        results = finish(todo, folder / RUNS, workers, bar.report)
    sizes = {"rounds": rounds, "seeds": seeds, "clients": clients}
    return _store(folder, Tables.of(results, attacks), sizes, methods)


def write_missing(
    folder: Path, methods: Sequence[str] = tuple(METHODS), workers: int = 2
) -> list[Path]:
    """Run only the methods that robustness.json does not have yet, at its sizes, and add them."""
    need_matplotlib()
    folder = Path(folder)
    figures = folder / FIGURES
    if not figures.exists():
        return write(folder, methods=methods, workers=workers)
    stored = json.loads(figures.read_text(encoding="utf-8"))
    before = Tables.from_dict(stored["tables"])
    sizes = {name: stored["settings"][name] for name in ("rounds", "seeds", "clients")}
    federations = list(stored["tables"])
    attacks = list(stored["tables"][federations[0]])
    have = {method for _, _, method in before.rows}
    missing = [method for method in methods if method not in have]
    todo = list(jobs(federations, missing, attacks, **sizes))
    with Bar(todo) as bar:
        results = finish(todo, folder / RUNS, workers, bar.report)
    rows = before.rows | Tables.of(results, attacks).rows
    now = [method for method in METHODS if method in have or method in missing]
    ordered = {
        (federation, attack, method): rows[federation, attack, method]
        for federation in federations
        for method in now
        for attack in attacks
    }
    return _store(folder, Tables(ordered), sizes, now)


def _store(
    folder: Path, tables: Tables, sizes: dict[str, Any], methods: Sequence[str]
) -> list[Path]:
    """The page, its figures and its picture."""
    text = folder / "robustness.md"
    figures = folder / FIGURES
    text.write_text(page(tables, **sizes), encoding="utf-8")
    settings = {"format": FORMAT, **sizes, "methods": {m: _described(m) for m in methods}}
    stored = {"settings": settings, "tables": tables.as_dict()}
    figures.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return [text, figures, picture(tables, folder / "robustness.png")]


def _described(title: str) -> dict[str, object]:
    competitor = METHODS[title]
    return {"name": competitor.method, **competitor.fields, "rule": competitor.rule}
