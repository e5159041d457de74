"""reproduced.md: for each paper, how many of its published cells agree, keep the order, or differ.

It counts the cells and claims of the folder reproduced/ and the claims of the folder theory/.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from .experiment import REPRODUCED, THEORY
from .marks import AGREES, DIFFERS, MARKS, NOT_RUN, ORDER
from .names import EXPERIMENTS
from .reproduced import table

PAPERS = {  # the first word of an experiment's name
    "lp-proj": "lp-proj (Han, Li, Lin and Zhang 2024)",
    "ffgg": "FFGG (Partially personalised federated learning)",
    "feddeper": "FedDeper",
    "chen": "A theorem of the alternative (Chen, Zheng, Long and Su 2021)",
}
Row = dict[str, Any]


def write_glance(docs: Path) -> Path:
    """The page, from what is stored."""
    path = docs / "reproduced.md"
    path.write_text(glance(docs), "utf-8")
    return path


def glance(docs: Path) -> str:
    """Counts by paper, then by table and figure."""
    rows = [*_stored(docs / REPRODUCED, _of_cells), *_stored(docs / THEORY, _of_claims)]
    order = list(EXPERIMENTS)
    rows.sort(key=lambda row: order.index(row["name"]) if row["name"] in order else len(order))
    lines = [HEAD]
    totals = []
    for prefix, title in PAPERS.items():
        mine = [row for row in rows if row["name"].startswith(f"{prefix}-")]
        total = Counter[str]()
        for row in mine:
            total.update({mark: row[mark] for mark in MARKS})
        totals.append({"paper": title, **{mark: total[mark] for mark in MARKS}})
    lines += [*table(totals), ""]
    for prefix, title in PAPERS.items():
        mine = [row for row in rows if row["name"].startswith(f"{prefix}-")]
        if mine:
            lines += [f"## {title}", "", *table([_shown(row) for row in mine]), ""]
    return "\n".join(lines)


def _stored(folder: Path, read: Any) -> list[Row]:
    found = [json.loads(p.read_text("utf-8")) for p in sorted(folder.glob("*.json"))]
    return [{"folder": folder.name, **read(stored)} for stored in found]


def _of_cells(stored: Row) -> Row:
    marks = Counter(cell["mark"] for cell in stored["cells"])
    marks.update(claim["verdict"] for claim in stored.get("claims", ()))
    return {
        "name": stored["name"],
        "title": stored["title"],
        "scale": stored["scale"],
        **{mark: marks[mark] for mark in MARKS},
    }


def _of_claims(stored: Row) -> Row:
    marks = Counter(claim["verdict"] for claim in stored["claims"])
    found = {AGREES: marks[AGREES], ORDER: marks[ORDER], DIFFERS: marks[DIFFERS], NOT_RUN: 0}
    return {"name": stored["name"], "title": stored["title"], "scale": "claims", **found}


def _shown(row: Row) -> Row:
    link = f"[{row['title']}]({row['folder']}/{row['name']}.md)"
    return {
        "": link,
        **{mark: row[mark] for mark in MARKS},
        "scale": row["scale"].partition(":")[0],
    }


HEAD = """\
# Do the published tables and figures come out?

Every table below is made by `idiolect reproduce NAME` (`idiolect reproduce --help` lists the
names). Each published cell has a mark:

- **agrees**: the paper's interval, as far as it prints one, and ours (95 % over seeds, at most a
  tenth of the mean) overlap;
- **same order**: the value is another one, but of the methods that the paper separates from this
  one at least three quarters are on the same side here;
- **differs**: neither; the page says why, or "not found";
- **not run**: the data cannot be had here, or the cell is left for `--scale full`.

For what papers prove, for figures on constructed problems ([theory.md](theory.md)) and for figures
without printed numbers, the statements of the paper are counted. Of one seed there is no interval:
then a cell agrees only to the digits printed. Data that stand in for those of a paper never count
as agreeing.
"""
