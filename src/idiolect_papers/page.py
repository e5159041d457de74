"""The page of an experiment: what a paper states or prints, and what came out here.

An experiment writes NAME.md, NAME.json and its pictures into one of two folders of the
documentation: theory/ has what papers prove or show on constructed problems, reproduced/ published
tables and figures of trained models. The pages that list them, theory.md and reproduced.md, are
written from the stored NAME.json files whenever one of these changes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .experiments import EXPERIMENTS, REPRODUCED, THEORY
from .marks import AGREES, DIFFERS, MARKS, ORDER, Cell, marked, tables
from .panels import Panel, draw
from .texts import read_text

NOT_STATED = "not stated by the paper"
VERDICTS = (AGREES, ORDER, DIFFERS, NOT_STATED)
NOT_FOUND = "not found"
Row = dict[str, Any]
Facts = Mapping[str, Any]  # what was measured, for the templates of a page
Verdict = bool | str | Sequence[tuple[bool | str, Facts]] | None
WORDS = ("title", "settings", "claimed", "opening", "printed", "chosen")  # templates of a page


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, what came out, and whether the two agree."""

    paper: str
    ours: str
    verdict: str
    reason: str = ""  # where they differ: the reason, or "not found"

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict must be one of {', '.join(VERDICTS)}, got {self.verdict!r}")
        if self.verdict == DIFFERS and not self.reason:
            raise ValueError("reason must be given for a claim that differs, or be 'not found'")


def claim_of(statement: Mapping[str, str], facts: Facts, verdict: bool | str) -> Claim:
    """A statement of texts/NAME.toml, filled with facts: whether it holds, or a verdict in words.

    >>> statement = {"paper": "slope -1", "ours": "slope {slope:g}", "reason": "few rounds"}
    >>> claim_of(statement, {"slope": -0.5}, False)
    Claim(paper='slope -1', ours='slope -0.5', verdict='differs', reason='few rounds')
    """
    paper, ours, reason = (
        statement.get(part, "").format_map(facts) for part in ("paper", "ours", "reason")
    )
    if isinstance(verdict, str):
        return Claim(paper, ours, verdict, "" if verdict == NOT_STATED else reason)
    if verdict:
        return Claim(paper, ours, AGREES)
    return Claim(paper, ours, DIFFERS, reason or "see the tables")


@dataclass(frozen=True)
class Page:
    """Everything on the page of one table, figure or theorem.

    With `scale` it is a page of reproduced/, else of theory/.
    """

    name: str  # lp-proj-table4
    title: str
    claims: Sequence[Claim] = ()
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)  # of ours alone, by title
    panels: Sequence[Panel] = ()  # of its only picture
    pictures: Mapping[str, Sequence[Panel]] = field(default_factory=dict)  # by caption
    figures: Mapping[str, Any] = field(default_factory=dict)  # plain data behind the rest
    seconds: float = 0.0  # of CPU time, in theory/ by the clock
    # in theory/
    settings: str = ""  # as printed, what the paper leaves open, and what was chosen
    order: int = 0  # its place in theory.md
    claimed: str = "the paper"  # who states the claims
    # in reproduced/
    scale: str = ""  # "quick" or "full", with what that means: "quick: 1 seed, 20 rounds"
    opening: str = ""
    printed: str = ""  # the settings as the paper prints them
    chosen: str = ""  # what it leaves open, and what was chosen
    cells: Sequence[Cell] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)  # why a cell differs: `_reason`
    more: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)

    def write(self, folder: Path) -> list[Path]:
        """Page, figures and pictures; and the page that lists all of its folder."""
        pictures: dict[str, Path] = {}
        drawings = {self.title: self.panels} if self.panels else self.pictures
        for number, (caption, panels) in enumerate(drawings.items(), 1):
            suffix = "" if number == 1 else f"-{number}"
            pictures[caption] = draw(panels, folder / f"{self.name}{suffix}.png")
        stored = self.as_dict({caption: path.name for caption, path in pictures.items()})
        figures = folder / f"{self.name}.json"
        text = json.dumps(stored, indent=1, ensure_ascii=not self.scale)
        figures.write_text(text + "\n", encoding="utf-8")
        page = folder / f"{self.name}.md"
        page.write_text(page_of(stored), encoding="utf-8")
        if self.scale:
            index = folder.parent / "reproduced.md"
            index.write_text(glance(folder.parent), encoding="utf-8")
        else:
            index = write_index(folder)
        return [page, figures, *pictures.values(), index]

    def as_dict(self, pictures: Mapping[str, str]) -> Row:
        """The content of NAME.json, given the file names of the pictures by caption."""
        claims = [asdict(claim) for claim in self.claims]
        if not self.scale:
            return {
                "name": self.name,
                "title": self.title,
                "settings": self.settings,
                "claims": claims,
                "tables": dict(self.tables),
                "figures": dict(self.figures),
                "picture": next(iter(pictures.values()), ""),
                "seconds": round(self.seconds),
                "order": self.order,
                "claimed": self.claimed,
            }
        marks = marked(self.cells)
        return {
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
            "claims": claims,
            "compared": tables(self.cells, marks, self.more),
            "tables": dict(self.tables),
            "pictures": dict(pictures),
            "figures": dict(self.figures),
            "seconds": round(self.seconds),
        }

    def _reason(self, cell: Cell) -> str:
        """The reason of the cell, its row and column, its table, row or column: the first one."""
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


def page_from_text(
    name: str,
    facts: Facts,
    verdicts: Mapping[str, Verdict] | None = None,
    more_claims: Sequence[Claim] = (),
    shared: str = "",
    **parts: Any,
) -> Page:
    """The page whose words are in texts/NAME.toml, filled with the measured `facts`.

    `verdicts` has for every statement whether it holds, or a verdict in words; a statement whose
    verdict is None is left out, and one that is made several times, of every data set, has a
    verdict and facts for each. `more_claims` follow those of the file. `parts` are the tables (by
    title, or by its key in the file), panels and figures of `Page`, and words that go before those
    of the file.

    With `shared`, the words are in that file, which has statements of other pages too.
    """
    words = read_text(shared or name)
    verdicts = verdicts or {}
    claims = []
    for key, statement in words.get("claims", {}).items():
        verdict = verdicts.get(key) if shared else verdicts[key]
        if isinstance(verdict, bool | str):
            claims.append(claim_of(statement, facts, verdict))
        elif verdict is not None:
            claims += [claim_of(statement, {**facts, **own}, one) for one, own in verdict]
    filled = {key: words[key].format_map(facts) for key in WORDS if key in words.keys() - parts}
    if "order" in words:
        filled["order"] = words["order"]
    reasons = words.get("reasons", {}) | parts.pop("reasons", {})
    titles = {key: title.format_map(facts) for key, title in words.get("tables", {}).items()}
    tables = {titles.get(key, key): rows for key, rows in parts.pop("tables", {}).items()}
    return Page(
        name, claims=[*claims, *more_claims], reasons=reasons, tables=tables, **filled, **parts
    )


# -- a page from its stored figures ---------------------------------------------------------------
def page_of(stored: Row) -> str:
    """The text of NAME.md, from NAME.json."""
    lines = [f"# {stored['title']}", ""]
    command = f"idiolect reproduce {stored['name']}"
    minutes = stored["seconds"] / 60
    if "settings" in stored:  # of theory/
        lines += [stored["settings"].strip(), ""]
        if stored["picture"]:
            lines += [f"![{stored['title']}]({stored['picture']})", ""]
        lines += claim_table(stored)
        for title, rows in stored["tables"].items():
            lines += ["", title, "", *table(rows)]
        duration = f" ({minutes:.1f} minutes)" if minutes >= 0.1 else ""
        return "\n".join([*lines, "", f"Written by `{command}`{duration}.", ""])
    if stored["opening"]:
        lines += [stored["opening"].strip(), ""]
    for caption, picture in stored["pictures"].items():
        lines += [f"![{caption}]({picture})", "", caption, ""]
    if stored.get("claims"):
        lines += [*claim_table(stored), ""]
    if stored["cells"]:
        lines += [_mark_counts(stored["cells"]), ""]
    for title, rows in stored["compared"].items():
        lines += [f"**{title}**", "", *table(rows), ""]
    lines += _differences(stored["cells"])
    for title, rows in stored["tables"].items():
        lines += [title, "", *table(rows), ""]
    lines += ["## Settings", "", f"Scale: {stored['scale']}.", ""]
    lines += ["As printed: " + stored["printed"].strip(), ""]
    lines += ["Left open by the paper, and chosen here: " + stored["chosen"].strip(), ""]
    duration = f" ({minutes:.0f} minutes of CPU time)" if minutes >= 0.5 else ""
    scale = stored["scale"].partition(":")[0]
    return "\n".join([*lines, f"Written by `{command} --scale {scale}`{duration}.", ""])


def claim_table(stored: Row) -> list[str]:
    """Claims, what came out, and verdicts."""
    return table(
        [
            {
                stored.get("claimed", "the paper"): c["paper"],
                "here": c["ours"],
                "": f"**{c['verdict']}**" + (f": {c['reason']}" if c["reason"] else ""),
            }
            for c in stored["claims"]
        ]
    )


def _mark_counts(cells: Sequence[Row]) -> str:
    numbers = Counter(cell["mark"] for cell in cells)
    total = sum(numbers[mark] for mark in MARKS)
    text = ", ".join(f"{numbers[m]} {MARKS[m]} {m}" for m in MARKS if numbers[m])
    return f"Of {total} published cells: {text}. A ★ is a run without a result." if total else ""


def _differences(cells: Sequence[Row]) -> list[str]:
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


def write_page(folder: Path, name: str, text: str, figures: Any) -> list[Path]:
    """A page of another form, NAME.md, and the figures behind it, NAME.json."""
    paths = [folder / f"{name}.md", folder / f"{name}.json"]
    paths[0].write_text(text, "utf-8")
    paths[1].write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", "utf-8")
    return paths


# -- the pages that list all others ---------------------------------------------------------------
def _stored(folder: Path) -> list[Row]:
    return [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]


def write_index(folder: Path) -> Path:
    """theory.md: every experiment of its folder with its picture and its claims."""
    lines = [INDEX]
    for stored in sorted(_stored(folder), key=lambda stored: (stored["order"], stored["name"])):
        page = f"{folder.name}/{stored['name']}.md"
        lines += [f"## {stored['title']}", ""]
        if stored["picture"]:
            picture = f"{folder.name}/{stored['picture']}"
            lines += [f"[![{stored['title']}]({picture})]({page})", ""]
        lines += [*claim_table(stored), "", f"Settings and tables: [{stored['name']}]({page}).", ""]
    index = folder.parent / "theory.md"
    index.write_text("\n".join(lines), encoding="utf-8")
    return index


def glance(docs: Path) -> str:
    """reproduced.md: how many published cells and claims agree, by paper and by page."""
    rows = [
        _counted(name, stored) for name in (REPRODUCED, THEORY) for stored in _stored(docs / name)
    ]
    order = list(EXPERIMENTS)
    rows.sort(key=lambda row: order.index(row["name"]) if row["name"] in order else len(order))
    by_paper = {
        title: [row for row in rows if row["name"].startswith(f"{prefix}-")]
        for prefix, title in PAPERS.items()
    }
    totals = [
        {"paper": title, **{mark: sum(row[mark] for row in own) for mark in MARKS}}
        for title, own in by_paper.items()
    ]
    lines = [GLANCE, *table(totals), ""]
    for title, own in by_paper.items():
        if own:
            shown = [{k: v for k, v in row.items() if k != "name"} for row in own]
            lines += [f"## {title}", "", *table(shown), ""]
    return "\n".join(lines)


def _counted(folder: str, stored: Row) -> Row:
    """A row of reproduced.md: how many cells and claims of a page have each mark."""
    marks = Counter(cell["mark"] for cell in stored.get("cells", ()))
    marks.update(claim["verdict"] for claim in stored.get("claims", ()))
    return {
        "name": stored["name"],
        "": f"[{stored['title']}]({folder}/{stored['name']}.md)",
        **{mark: marks[mark] for mark in MARKS},
        "scale": stored.get("scale", "claims").partition(":")[0],
    }


PAPERS = {  # the first word of an experiment's name
    "lp-proj": "lp-proj (Han, Li, Lin and Zhang 2024)",
    "ffgg": "FFGG (Partially personalised federated learning)",
    "feddeper": "FedDeper",
    "chen": "A theorem of the alternative (Chen, Zheng, Long and Su 2021)",
}
TEXTS = read_text("pages")
INDEX = TEXTS["index"]
GLANCE = TEXTS["glance"]
