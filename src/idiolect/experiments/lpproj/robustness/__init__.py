"""Which methods withstand malicious clients? Tables 6 to 9 of the lp-proj paper.

`idiolect reproduce robustness` writes robustness.md, robustness.json and robustness.png;
`robustness-missing` adds only methods that are not stored yet. MNIST is fetched if it is not there.
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
    sizes = {"rounds": rounds, "seeds": seeds, "clients": clients}
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
) -> Tables:
    """The tables of these federations, methods and attacks."""
    todo = {key: setting(key, rounds, clients) for key in keys(federations, methods, attacks)}
    found = runs(todo, stocked(federations, clients), range(seeds), ("by_client",))
    return Tables.of(outcomes(found), attacks)


def write_missing(
    folder: Path, methods: Sequence[str] = tuple(METHODS), jobs: int = 0
) -> list[Path]:
    """Run only the methods that robustness.json does not have yet, at its sizes, and add them."""
    need_matplotlib()
    folder = Path(folder)
    figures = folder / FIGURES
    if not figures.exists():
        return write(folder, methods=methods, jobs=jobs)
    stored = json.loads(figures.read_text(encoding="utf-8"))
    before = Tables.from_dict(stored["tables"])
    sizes = {name: stored["settings"][name] for name in ("rounds", "seeds", "clients")}
    federations = list(stored["tables"])
    attacks = list(stored["tables"][federations[0]])
    have = {method for _, _, method in before.rows}
    missing = [method for method in methods if method not in have]
    with stored_runs(folder, "robustness", jobs) as runs:
        added = measured(runs, federations, missing, attacks, **sizes)
        return _store(folder, _in_order(before, added), sizes, _methods(before, added))


def _methods(*tables: Tables) -> list[str]:
    have = {method for one in tables for _, _, method in one.rows}
    return [method for method in METHODS if method in have]


def _in_order(before: Tables, added: Tables) -> Tables:
    """Both, with methods in the order of the grid."""
    rows = before.rows | added.rows
    return Tables(
        {
            (federation, attack, method): rows[federation, attack, method]
            for federation, attack in dict.fromkeys((f, a) for f, a, _ in before.rows)
            for method in _methods(before, added)
        }
    )


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
