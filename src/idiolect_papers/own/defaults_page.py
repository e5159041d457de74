"""Methods whose default is no better than Local at equal gradients where collaboration helps.

And why: their pages say the same. A test holds this list to the stored figures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from idiolect import METHODS

from ..page import table
from ..texts import read_text
from .defaults import (
    GRIDS,
    HIDDEN,
    KINDS,
    ROUNDS,
    ROWS,
    TIE,
    TIED,
    TITLE,
    Runs,
    against_local,
    choose,
    rows_of,
    tied_part,
)

_SUBSPACE = (
    "21 of 2,410 directions are tied; in the others a client has its own data alone, and Local's "
    "loss. The gain grows with d_sub / d, see below and [choose.md](choose.md)."
)
EXPLAINED = {
    "lp-proj-1": _SUBSPACE,
    "lp-proj-2": _SUBSPACE,
    "ffgg": (
        "the private part, here the whole output layer, is solved for anew from a random start by "
        "20 steps before each use, on 29 samples; more steps and smaller private parts help "
        "(`steps=100`: see its grid, and `local-ffgg`)."
    ),
}


Stored = Mapping[str, Any]


def page(stored: Stored) -> str:
    """The whole page."""
    parts = [
        _head(stored["settings"]),
        _chosen(stored["grids"]),
        _against_local(stored),
        _tied(stored["tied"]),
        _grids(stored["grids"]),
        SEEN,
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _head(settings: Stored) -> str:
    rows = [
        {
            "federation": title,
            "how it differs": text,
            "model": "linear" if KINDS[title].linear else f"{HIDDEN} hidden units",
            "heard per round": KINDS[title].heard,
        }
        for title, text in settings["federations"].items()
    ]
    draws = "one draw" if settings["seeds"] == 1 else f"{settings['seeds']} draws"
    return HEAD.format(**settings, draws=draws, table="\n".join(table(rows)))


def _chosen(grids: Stored) -> str:
    rows = []
    for method, grid in grids.items():
        cells = rows_of(grid["cells"])
        place = grid["chosen"]
        rows.append(
            {
                "method": f"`{method}`",
                "default": _fields(grid["candidates"][place]),
                "worst regret": f"{grid['regrets'][place]:.3f}",
                "of the first setting": f"{grid['regrets'][0]:.3f}",
                "settings": len(cells),
                "preset": ", ".join(METHODS.find(method)[0].traits.presets) or "–",
            }
        )
    return CHOSEN.format(table="\n".join(table(rows)))


def _against_local(stored: Stored) -> str:
    local = stored["local"]
    if not local:
        return ""
    lines = [ALONE.format(**stored["settings"])]
    lines += table(
        [
            {
                "federation": title,
                "FedAvg": _three(row["fedavg"]["accuracy"]),
                "Local": _three(row["fedavg"]["local"]),
                "difference": _difference(row["fedavg"]),
                "collaboration": "helps" if row["helps"] else "does not clearly help",
            }
            for title, row in local.items()
        ]
    )
    for title, row in local.items():
        if row["helps"]:
            lines += ["", f"### {title}: every method against Local with as many gradients", ""]
            lines += table([_line(name, figures) for name, figures in row["methods"].items()])
    reasons = [f"- {name}: {reason}" for name, reason in EXPLAINED.items()]
    lines += ["", "Not better than Local beyond the interval, and why:", "", *reasons, ""]
    return "\n".join(lines)


def _line(name: str, row: Stored) -> dict[str, Any]:
    return {
        "method": f"`{name}`",
        "gradients": f"{row['gradients']:,.0f}",
        "accuracy": _three(row["accuracy"]),
        "Local": _three(row["local"]),
        "difference": _difference(row),
        "": f"**{row['verdict']}**" if row["verdict"] == "worse" else row["verdict"],
    }


def tied_table(rows: Sequence[Stored]) -> str:
    """Accuracy of lp-proj against the tied part."""
    shown = [
        {
            "d_sub": f"{row['dim']:,}",
            "d_sub / d": f"{row['share']:.3f}",
            **{name: _three(row[name]) for name in ROWS},
        }
        for row in rows
    ]
    return "\n".join(table(shown))


def _tied(rows: Sequence[Stored]) -> str:
    return TIED_PART.format(title=TITLE, table=tied_table(rows)) if rows else ""


def _grids(grids: Stored) -> str:
    lines = [
        "## All settings",
        "",
        "Validation accuracy, the mean over draws; the default is bold.",
    ]
    for method, grid in grids.items():
        names = list(grid["cells"])
        rows = []
        for i, (candidate, cells) in enumerate(
            zip(grid["candidates"], rows_of(grid["cells"]), strict=True)
        ):
            mark = "**" if i == grid["chosen"] else ""
            row: dict[str, Any] = {"setting": f"{mark}{_fields(candidate)}{mark}"}
            row |= {n: _three(cell.accuracy) for n, cell in zip(names, cells, strict=True)}
            row["regret"] = f"{mark}{grid['regrets'][i]:.3f}{mark}"
            gradients = sum(cell.gradients for cell in cells) / len(cells)
            rows.append(row | {"gradients": f"{gradients:,.0f}"})
        lines += ["", f"### {method}", "", *table(rows)]
    return "\n".join(lines)


def _fields(fields: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float | int) else f"{name} {value}"
        for name, value in fields.items()
    )


def _three(value: float) -> str:
    return f"{value:.3f}"


def _difference(row: Stored) -> str:
    return f"{row['difference']:+.3f} ± {row['half']:.3f}"


TEXTS = read_text("defaults")
HEAD = TEXTS["head"]
CHOSEN = TEXTS["chosen"]
ALONE = TEXTS["alone"]
TIED_PART = TEXTS["tied_part"]
SEEN = TEXTS["seen"]


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
