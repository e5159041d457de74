"""Which methods withstand malicious clients? Tables 6 to 9 of the lp-proj paper.

`idiolect reproduce robustness` writes robustness.md, robustness.json and robustness.png. Every
finished run is a line of robustness-runs.jsonl in the same folder: started again, the grid goes on
where it was, and runs under other settings are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ...run.grid import finish
from .grid import ATTACKS, CLIENTS, FEDERATIONS, FORMAT, METHODS, ROUNDS, SEEDS, jobs
from .page import page
from .picture import need_matplotlib, picture
from .progress import Bar
from .tables import Tables

RUNS = "robustness-runs.jsonl"


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
    tables = Tables.of(results, attacks)
    text = folder / "robustness.md"
    figures = folder / "robustness.json"
    text.write_text(page(tables, rounds, seeds, clients), encoding="utf-8")
    settings = {
        "format": FORMAT,
        "rounds": rounds,
        "seeds": seeds,
        "clients": clients,
        "methods": {m: _described(m) for m in methods},
    }
    stored = {"settings": settings, "tables": tables.as_dict()}
    figures.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return [text, figures, picture(tables, folder / "robustness.png")]


def _described(title: str) -> dict[str, object]:
    competitor = METHODS[title]
    return {"name": competitor.method, **competitor.fields, "rule": competitor.rule}
