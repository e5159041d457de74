"""The page of a published table or of a figure drawn from trained models: the paper beside ours.

An experiment writes NAME.md, NAME.json and its pictures; the page of all, reproduced.md, is written
anew from the stored files whenever one of them changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .glance import write_glance
from .marks import DIFFERS, MARKS, Cell, counts, marked, tables
from .panels import Panel, draw
from .reproduced import Claim, Row, claimed, table

NOT_FOUND = "not found"


@dataclass(frozen=True)
class Tabled:
    """All that the page says."""

    name: str  # lp-proj-table4
    title: str
    scale: str  # "quick" or "full", with what that means: "quick: 1 seed, 20 rounds"
    printed: str  # the settings as the paper prints them
    chosen: str  # what it leaves open, and what was chosen
    cells: Sequence[Cell] = ()
    claims: Sequence[Claim] = ()  # what the paper says in words, and what came out
    opening: str = ""  # what the page opens with
    reasons: Mapping[str, str] = field(default_factory=dict)  # why a cell differs: by key, below
    more: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    tables: Mapping[str, list[Row]] = field(default_factory=dict)  # of ours alone, by title
    pictures: Mapping[str, Sequence[Panel]] = field(default_factory=dict)  # by what they show
    figures: Mapping[str, Any] = field(default_factory=dict)  # plain data behind the pictures
    seconds: float = 0.0  # of CPU time that the runs took

    def write(self, folder: Path) -> list[Path]:
        """Page, figures and pictures; and the page of all of them anew."""
        marks = marked(self.cells)
        drawn: dict[str, str] = {}
        paths: list[Path] = []
        for number, (caption, panels) in enumerate(self.pictures.items()):
            suffix = "" if number == 0 else f"-{number + 1}"
            paths.append(draw(panels, folder / f"{self.name}{suffix}.png"))
            drawn[caption] = paths[-1].name
        stored = {
            "name": self.name,
            "title": self.title,
            "scale": self.scale,
            "opening": self.opening,
            "printed": self.printed,
            "chosen": self.chosen,
            "cells": [
                asdict(c) | {"mark": m, "reason": self._reason(c) if m == DIFFERS else ""}
                for c, m in zip(self.cells, marks, strict=True)
            ],
            "claims": [asdict(claim) for claim in self.claims],
            "compared": tables(self.cells, marks, self.more),
            "tables": dict(self.tables),
            "pictures": drawn,
            "figures": dict(self.figures),
            "seconds": round(self.seconds),
        }
        figures = folder / f"{self.name}.json"
        figures.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", "utf-8")
        page = folder / f"{self.name}.md"
        page.write_text(page_of(stored), "utf-8")
        return [page, figures, *paths, write_glance(folder.parent)]

    def _reason(self, cell: Cell) -> str:
        """The reason of the cell, its row and column, its table, row or column; the first found."""
        names = (
            f"{cell.table}/{cell.row}/{cell.column}",
            f"{cell.row}/{cell.column}",
            f"{cell.table}/{cell.row}",
            cell.row,
            f"{cell.table}/{cell.column}",
            cell.column,
            cell.table,
            "",
        )
        return next((self.reasons[n] for n in names if n in self.reasons), NOT_FOUND)


def page_of(stored: Row) -> str:
    """The page of a stored table."""
    lines = [f"# {stored['title']}", ""]
    if stored["opening"]:
        lines += [stored["opening"].strip(), ""]
    for caption, picture in stored["pictures"].items():
        lines += [f"![{caption}]({picture})", "", caption, ""]
    if stored.get("claims"):
        lines += [*claimed(stored), ""]
    if stored["cells"]:
        lines += [_counted(stored["cells"]), ""]
    for title, rows in stored["compared"].items():
        lines += [f"**{title}**", "", *table(rows), ""]
    lines += _differing(stored["cells"])
    for title, rows in stored["tables"].items():
        lines += [title, "", *table(rows), ""]
    lines += ["## Settings", "", f"Scale: {stored['scale']}.", ""]
    lines += ["As printed: " + stored["printed"].strip(), ""]
    lines += ["Left open by the paper, and chosen here: " + stored["chosen"].strip(), ""]
    minutes = stored["seconds"] / 60
    took = f" ({minutes:.0f} minutes of CPU time)" if minutes >= 0.5 else ""
    scale = stored["scale"].split(":")[0]
    command = f"idiolect reproduce {stored['name']} --scale {scale}"
    return "\n".join([*lines, f"Written by `{command}`{took}.", ""])


def _counted(cells: Sequence[Row]) -> str:
    found = counts([cell["mark"] for cell in cells])
    many = sum(found.values())
    text = ", ".join(f"{found[m]} {MARKS[m]} {m}" for m in MARKS if found[m])
    return f"Of {many} published cells: {text}. A ★ is a run without a result." if many else ""


def _differing(cells: Sequence[Row]) -> list[str]:
    """Why cells differ: a line per reason."""
    by_reason: dict[str, list[str]] = {}
    for cell in cells:
        if cell["reason"]:
            name = f"{cell['row']}, {cell['column']} ({cell['table']})"
            by_reason.setdefault(cell["reason"], []).append(name)
    if not by_reason:
        return []
    lines = [f"- {'; '.join(names)}: {reason}" for reason, names in by_reason.items()]
    return ["Where cells differ, and the reason found:", "", *lines, ""]
