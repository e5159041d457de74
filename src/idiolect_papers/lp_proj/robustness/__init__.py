"""Which methods withstand malicious clients? Tables 6 to 9 of the lp-proj paper.

`idiolect reproduce robustness` writes robustness.md, robustness.json and robustness.png;
`robustness-missing` adds only methods and data sets that are not stored yet. MNIST is fetched if it
is not there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...runs import Runs, stored_runs
from .grid import (
    ATTACKS,
    CLIENTS,
    FEDERATIONS,
    FORMAT,
    METHODS,
    ROUNDS,
    SEEDS,
    VOLUME,
    keys,
    outcomes,
    setting,
    stocked,
)
from .page import page
from .picture import need_matplotlib, picture
from .tables import Tables

FIGURES = "robustness.json"
MAIN = tuple(title for title in FEDERATIONS if title != VOLUME)  # of Tables 6 to 9


def write(
    folder: Path,
    rounds: int = ROUNDS,
    seeds: int = SEEDS,
    federations: Sequence[str] = MAIN,
    methods: Sequence[str] = tuple(METHODS),
    attacks: Sequence[str] = tuple(ATTACKS),
    clients: int = CLIENTS,
    jobs: int = 0,
) -> list[Path]:
    """Run the grid and write the page, its figures and its picture.

    The synthetic federations take some 15 to 20 minutes on two cores.
    """
    need_matplotlib()  # refuse now, not after all the runs
    folder = Path(folder)
    sizes: dict[str, Any] = {"rounds": rounds, "seeds": seeds, "clients": clients}
    with stored_runs(folder, "robustness", jobs) as runs:
        tables = measured(runs, federations, methods, attacks, **sizes)
        return _store(folder, tables, sizes, methods)


def measured(
    runs: Runs,
    federations: Sequence[str],
    methods: Sequence[str],
    attacks: Sequence[str],
    rounds: int,
    seeds: int,
    clients: int,
    whole: bool = False,
) -> Tables:
    """The tables of these federations, methods and attacks."""
    cells = keys(federations, methods, attacks)
    todo = {key: setting(key, rounds, clients, whole) for key in cells}
    found = runs(todo, stocked(federations, clients, whole), range(seeds), ("by_client",))
    return Tables.of(outcomes(found), attacks)


def write_missing(
    folder: Path,
    methods: Sequence[str] = tuple(METHODS),
    federations: Sequence[str] = MAIN,
    jobs: int = 0,
) -> list[Path]:
    """Run what robustness.json does not have yet of methods and data sets, at its sizes."""
    need_matplotlib()
    folder = Path(folder)
    figures = folder / FIGURES
    if not figures.exists():
        return write(folder, methods=methods, federations=federations, jobs=jobs)
    stored = json.loads(figures.read_text(encoding="utf-8"))
    tables = Tables.from_dict(stored["tables"])
    sizes = {name: stored["settings"][name] for name in ("rounds", "seeds", "clients")}
    attacks = list(dict.fromkeys(attack for _, attack, _ in tables.rows))
    places = list(dict.fromkeys([*stored["tables"], *federations]))
    have = {(federation, method) for federation, _, method in tables.rows}
    known = [m for m in METHODS if m in methods or any(m == method for _, method in have)]
    with stored_runs(folder, "robustness", jobs) as runs:
        for federation in places:
            missing = [method for method in known if (federation, method) not in have]
            if missing:
                tables.rows |= measured(runs, [federation], missing, attacks, **sizes).rows
        order = [(f, a, m) for f in places for a in attacks for m in known]
        return _store(folder, Tables({key: tables.rows[key] for key in order}), sizes, known)


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
