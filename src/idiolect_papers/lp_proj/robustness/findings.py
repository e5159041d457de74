"""What the tables say about the claims of the paper, and where its figures are others."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .grid import percent
from .published import Published
from .tables import Cell, Tables

NEAR = 0.03  # as good as without malicious clients
USEFUL = 0.6  # below this a model is of no use
FAR = 0.1  # further from the paper than this is a difference


def unmoved(tables: Tables, method: str = "lp-proj-1") -> str:
    """Is the method within NEAR of its clean accuracy wherever it is attacked?

    And of the clean accuracy of the same clients? At 80 % the benign clients are other ones.
    """
    attacked = [
        (f"{federation}, {attack} {percent(share)}", cell, row[0.0].accuracy)
        for federation, attack, row in tables.of_method(method)
        for share, cell in row.items()
        if share
    ]
    same = [(where, cell, cell.same_clients or clean) for where, cell, clean in attacked]
    return (
        f"**{method} stays within {NEAR:g} of its clean accuracy** in {_near(attacked)} attacked "
        f"cells; of the clean accuracy of the same benign clients in {_near(same)}."
    )


def _near(cells: Sequence[tuple[str, Cell, float]]) -> str:
    """How many of the (where, cell, clean accuracy) are NEAR, and which are not."""
    off = [
        f"{where}: {cell.short()} against {clean:.3f}"
        for where, cell, clean in cells
        if cell.collapsed or abs(cell.accuracy - clean) > NEAR
    ]
    exceptions = f" (not {'; '.join(off)})" if off else ""
    return f"{len(cells) - len(off)} of {len(cells)}{exceptions}"


def above(tables: Tables, method: str = "Local", other: str = "lp-proj-1") -> str:
    """Is a method that sends nothing above another one, cell by cell? Both have the same clients.

    A clean cell is the same in the table of every attack, and counts once.
    """
    cells = {}
    for federation, attack, row in tables.of_method(method):
        theirs = tables.rows.get((federation, attack, other), {})
        for share in set(row) & set(theirs):
            clean_once = (federation, attack if share else "", share)
            gap = row[share].accuracy - theirs[share].accuracy
            cells[clean_once] = math.inf if theirs[share].collapsed else gap
    if not cells:
        return f"**{method} is above {other}**: not run."
    higher = sum(gap > 0 for gap in cells.values())
    finite = [gap for gap in cells.values() if math.isfinite(gap)]
    mean = sum(finite) / len(finite)
    return (
        f"**{method}, which sends nothing and hears nobody, is above {other}** in {higher} of "
        f"{len(cells)} cells, by {mean:.4f} on average ({min(finite):.4f} to {max(finite):.4f}): "
        "on these data withstanding an attack is worth no more than staying away from it."
    )


def useless(
    tables: Tables, method: str = "Global+Mean", attack: str = "sign-flip", share: float = 0.1
) -> str:
    """Is the method below USEFUL there?"""
    told = [
        f"{federation}: {_yes(bool(cell.collapsed) or cell.accuracy < USEFUL)}, {cell.text()}"
        for federation, cell in _cells(tables, method, attack, share)
    ]
    claim = f"**{method} falls below {USEFUL:g} at {percent(share)} {attack}**"
    return f"{claim}: {'; '.join(told) or 'not run'}."


def breaks(
    tables: Tables, method: str = "lp-proj-2", attack: str = "sign-flip", share: float = 0.5
) -> str:
    """Does the method collapse there?"""
    told = [
        f"{federation}: {_yes(bool(cell.collapsed))}, {cell.text()}"
        for federation, cell in _cells(tables, method, attack, share)
    ]
    claim = f"**{method} collapses at {percent(share)} {attack}**"
    return f"{claim}: {'; '.join(told) or 'not run'}."


def _cells(tables: Tables, method: str, attack: str, share: float) -> list[tuple[str, Cell]]:
    rows = tables.of_method(method)
    return [(f, row[share]) for f, a, row in rows if a == attack and share in row]


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"


def differences(tables: Tables, published: Published) -> list[str]:
    """The cells more than FAR from the paper's, ours first; clean ones once.

    One line per federation and method.
    """
    out: dict[tuple[str, str], dict[str, None]] = {(f, m): {} for f, _, m in tables.rows}
    for (federation, attack, method), row in tables.rows.items():
        theirs = published.get((federation, attack, method), ())
        for (share, cell), paper in zip(row.items(), theirs, strict=False):
            if _differ(cell, paper):
                where = f"{attack} {percent(share)}" if share else "clean"
                shown = "★" if paper is None else f"{paper[0]:.3f}"
                told = f"{where} {cell.short()} / {shown}"
                out[federation, method][told] = None
    return [f"{f}, {m}: {', '.join(cells)}" for (f, m), cells in out.items() if cells]


def _differ(cell: Cell, paper: tuple[float, float] | None) -> bool:
    if cell.collapsed or paper is None:
        return bool(cell.collapsed) != (paper is None)
    return abs(cell.accuracy - paper[0]) > FAR
