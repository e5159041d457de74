"""The page of a reproduced table or figure: the paper's claims, and beside them what came out.

An experiment writes NAME.md, NAME.json and NAME.png. The page of all of them, theory.md, is written
anew from the stored NAME.json files whenever one of them changes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .panels import Panel, draw

VERDICTS = ("agrees", "same order", "differs", "not stated by the paper")
Row = dict[str, Any]


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, what came out, and whether the two agree."""

    paper: str
    ours: str
    verdict: str
    reason: str = ""  # where they differ: the reason found, or "not found"

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict: {self.verdict!r} is not one of {', '.join(VERDICTS)}")
        if self.verdict == "differs" and not self.reason:
            raise ValueError("reason: a claim that differs needs one, or 'not found'")


@dataclass(frozen=True)
class Reproduced:
    """All that the page of one table or figure says."""

    name: str  # ffgg-figure1a
    title: str
    settings: str  # as printed, what the paper leaves open, and what was chosen
    claims: Sequence[Claim]
    tables: dict[str, list[Row]]  # title -> rows
    figures: dict[str, Any] = field(default_factory=dict)  # plain data behind tables and pictures
    panels: Sequence[Panel] = ()
    seconds: float = 0.0  # how long it took
    order: int = 0  # its place in theory.md
    claimed: str = "the paper"  # by whom

    def write(self, folder: Path) -> list[Path]:
        """Page, figures and picture; and the page of all experiments of this folder anew."""
        picture = draw(self.panels, folder / f"{self.name}.png") if self.panels else None
        stored = {
            "name": self.name,
            "title": self.title,
            "settings": self.settings,
            "claims": [asdict(claim) for claim in self.claims],
            "tables": self.tables,
            "figures": self.figures,
            "picture": picture.name if picture else "",
            "seconds": round(self.seconds),
            "order": self.order,
            "claimed": self.claimed,
        }
        figures = folder / f"{self.name}.json"
        figures.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        page = folder / f"{self.name}.md"
        page.write_text(page_of(stored), encoding="utf-8")
        return [page, figures, *([picture] if picture else []), write_index(folder)]


def page_of(stored: Row) -> str:
    """The page of a stored experiment."""
    lines = [f"# {stored['title']}", "", stored["settings"].strip(), ""]
    if stored["picture"]:
        lines += [f"![{stored['title']}]({stored['picture']})", ""]
    lines += claimed(stored)
    for title, rows in stored["tables"].items():
        lines += ["", title, "", *table(rows)]
    minutes = stored["seconds"] / 60
    took = f" ({minutes:.1f} minutes)" if minutes >= 0.1 else ""
    return "\n".join([*lines, "", f"Written by `idiolect reproduce {stored['name']}`{took}.", ""])


def write_index(folder: Path) -> Path:
    """theory.md beside the folder: every stored experiment with its picture and its claims."""
    found = [json.loads(p.read_text(encoding="utf-8")) for p in sorted(folder.glob("*.json"))]
    found.sort(key=lambda stored: (stored["order"], stored["name"]))
    lines = [INDEX]
    for stored in found:
        page = f"{folder.name}/{stored['name']}.md"
        lines += [f"## {stored['title']}", ""]
        if stored["picture"]:
            picture = f"{folder.name}/{stored['picture']}"
            lines += [f"[![{stored['title']}]({picture})]({page})", ""]
        lines += [*claimed(stored), "", f"Settings and tables: [{stored['name']}]({page}).", ""]
    index = folder.parent / "theory.md"
    index.write_text("\n".join(lines), encoding="utf-8")
    return index


def claimed(stored: Row) -> list[str]:
    """The table of claims, what came out, and the verdicts."""
    if not stored["claims"]:
        return []
    rows = [
        {
            stored.get("claimed", "the paper"): c["paper"],
            "here": c["ours"],
            "": f"**{c['verdict']}**" + (f": {c['reason']}" if c["reason"] else ""),
        }
        for c in stored["claims"]
    ]
    return table(rows)


def table(rows: Sequence[Row]) -> list[str]:
    """Lines of a Markdown table."""
    if not rows:
        return []
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return [
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
        *(f"| {' | '.join(_cell(row.get(c)) for c in columns)} |" for row in rows),
    ]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "–" if value is None else str(value).replace("|", "\\|")


INDEX = """\
# What the papers prove and show, measured

Each figure is made by `idiolect reproduce NAME` with the settings the paper prints; beside each
claim stands what came out, agreeing or not.
"""
