"""Defaults by a written rule: `idiolect reproduce defaults` writes defaults.md and defaults.json.

Every method runs with every candidate of its grid on six federations; validation data choose
(rule.py). With what was chosen, every method is compared with Local at equal gradients on test data
where collaboration helps (alone.py). Finished runs are lines of defaults-runs.jsonl in the same
folder: started again, the command goes on where it was, and a changed grid runs what is new.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from .alone import against_local
from .choose import choose
from .federations import KINDS
from .grids import GRIDS
from .jobs import ROUNDS
from .page import page
from .progress import Runs
from .rule import TIE
from .tied import TIED, tied_part

RUNS = "defaults-runs.jsonl"
SEEDS = 2  # of the grid
CHECKED = 3  # seeds of the comparison with Local


def write(
    folder: Path,
    seeds: int = SEEDS,
    checked: int = CHECKED,
    federations: Sequence[str] = tuple(KINDS),
    methods: Sequence[str] = tuple(GRIDS),
    rounds: int = ROUNDS,
    dims: Sequence[int] = TIED,
    workers: int = 2,
) -> list[Path]:
    """Run what is not stored yet and write the page and its figures: some twelve minutes."""
    runs = Runs(Path(folder) / RUNS, workers)
    grids = choose(runs, [GRIDS[m] for m in methods], federations, seeds, rounds)
    fields = {name: grid["candidates"][grid["chosen"]] for name, grid in grids.items()}
    stored = {
        "settings": {
            "rounds": rounds,
            "seeds": seeds,
            "checked": checked,
            "tie": TIE,
            "federations": {title: KINDS[title].text for title in federations},
        },
        "grids": grids,
        "local": against_local(runs, fields, federations, checked, rounds),
        "tied": tied_part(runs, fields, dims, checked, rounds),
    }
    figures = Path(folder) / "defaults.json"
    figures.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    text = Path(folder) / "defaults.md"
    text.write_text(page(stored), encoding="utf-8")
    return [text, figures]
