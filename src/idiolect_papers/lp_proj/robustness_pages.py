"""What withstands malicious clients: docs/robustness.md, Tables 6 to 9 and 12 to 15, and Figure 4.

`idiolect reproduce robustness` writes the page of the whole grid with its findings; `idiolect
reproduce lp-proj-table6` and so on compare cell by cell, on one grid of runs that is stored beside
the pages and serves them all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..marks import Cell, Figure, beside
from ..page import Claim, claim_of, page_from_text, write_page
from ..page import table as markdown_table
from ..panels import Line, Panel, lines_of, new_picture
from ..runs import scaled_runs, stored_runs
from ..texts import read_text
from .cases import MAIN, VOLUME
from .robustness import (
    ATTACKS,
    EVERY,
    METHODS,
    MNIST,
    MNIST_CLIENTS,
    MNIST_ROUNDS,
    SHARES,
    AttackedCell,
    AttackGrid,
    Published,
    Row,
    Tables,
    percent,
    read_published,
)

FORMAT = 2  # of the stored figures: a change in what they mean makes the old ones void
FIGURES = "robustness.json"
NEAR = 0.03  # as good as without malicious clients
USEFUL = 0.6  # below this a model is of no use
FAR = 0.1  # further from the paper than this is a difference
WORDS = read_text("robustness")


# -- robustness.md: findings, settings, one table per federation and attack, differences ----------
def write(folder: Path, grid: AttackGrid | None = None, jobs: int = 0) -> list[Path]:
    """Run the grid and write the page, its figures and its picture.

    The synthetic federations take some 15 to 20 minutes on two cores.
    """
    new_picture(1, 1)  # refuse now, not after all the runs
    grid = grid or AttackGrid(200, 2)
    with stored_runs(Path(folder), "robustness", jobs) as runs:
        return _store(Path(folder), grid.measure(runs), grid)


def write_missing(folder: Path, grid: AttackGrid | None = None, jobs: int = 0) -> list[Path]:
    """Run what robustness.json does not have yet of methods and data sets, at its sizes."""
    new_picture(1, 1)
    grid = grid or AttackGrid(200, 2)
    folder = Path(folder)
    if not (folder / FIGURES).exists():
        return write(folder, grid, jobs)
    stored = json.loads((folder / FIGURES).read_text(encoding="utf-8"))
    tables = Tables.from_dict(stored["tables"])
    have = {(federation, method) for federation, _, method in tables.rows}
    grid = replace(
        grid,
        **{name: stored["settings"][name] for name in ("rounds", "seeds", "clients")},
        federations=tuple(dict.fromkeys([*tables.federations, *grid.federations])),
        methods=tuple(m for m in METHODS if m in grid.methods or m in tables.methods),
        attacks=tuple(tables.attacks),
    )
    with stored_runs(folder, "robustness", jobs) as runs:
        for title in grid.federations:
            if missing := tuple(m for m in grid.methods if (title, m) not in have):
                part = replace(grid, federations=(title,), methods=missing)
                tables.rows |= part.measure(runs).rows
        order = [(f, a, m) for f in grid.federations for a in grid.attacks for m in grid.methods]
        return _store(folder, Tables({key: tables.rows[key] for key in order}), grid)


def _store(folder: Path, tables: Tables, grid: AttackGrid) -> list[Path]:
    """The page, its figures and its picture."""
    settings = {
        "format": FORMAT,
        "rounds": grid.rounds,
        "seeds": grid.seeds,
        "clients": grid.clients,
        "methods": {title: METHODS[title].as_dict() for title in grid.methods},
    }
    stored = {"settings": settings, "tables": tables.as_dict()}
    paths = write_page(folder, "robustness", page(tables, grid), stored)
    return [*paths, picture(tables, folder / "robustness.png")]


def page(tables: Tables, grid: AttackGrid) -> str:
    """The whole page; of the grid, rounds, seeds and clients."""
    with_mnist = MNIST in tables.federations
    everyone, others = (min(grid.rounds, rounds) for rounds in MNIST_ROUNDS)
    head = WORDS["head"].format(
        more=WORDS["and_mnist"] if with_mnist else "",
        rounds=grid.rounds,
        seeds="1 seed" if grid.seeds == 1 else f"{grid.seeds} seeds",
        clients=grid.clients,
        heard=grid.per_round,
        every=EVERY,
    )
    published = read_published()
    findings = [unmoved(tables), above(tables), useless(tables), breaks(tables)]
    settings = WORDS["settings"]
    lines = [head, "## What it shows", "", *(f"- {text}" for text in findings), "", settings]
    if with_mnist:
        lines.append(
            WORDS["mnist_settings"].format(
                everyone=everyone,
                others=others,
                clients=min(grid.clients, MNIST_CLIENTS),
                heard=grid.per_round,
            )
        )
    for federation in tables.federations:
        for attack in tables.attacks:
            rows = [
                {"method": method, **_shown(row, published.get((federation, attack, method)))}
                for method in tables.methods
                if (row := tables.rows.get((federation, attack, method)))
            ]
            lines += [f"## {federation}, {attack}", "", *markdown_table(rows), ""]
    far = differences(tables, published)
    lines += [WORDS["far_apart"].format(far=FAR), *(f"- {text}" for text in far), ""]
    return "\n".join([*lines, WORDS["why"]])


def _shown(row: Row, published: Sequence[tuple[float, float] | None] | None) -> dict[str, str]:
    """The cells of a row, the paper's in small print below ours."""
    cells = {percent(share): cell.text() for share, cell in row.items()}
    if not published:
        return cells
    theirs = ["★" if paper is None else f"{paper[0]:.3f} ({paper[1]:.3f})" for paper in published]
    pairs = zip(cells.items(), theirs, strict=True)
    return {name: f"{ours}<br><sub>{paper}</sub>" for (name, ours), paper in pairs}


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
    facts = {"method": method, "near": NEAR, "attacked": _near(attacked), "same": _near(same)}
    return WORDS["unmoved"].format_map(facts)


def _near(cells: Sequence[tuple[str, AttackedCell, float]]) -> str:
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
    gaps = {}
    for federation, attack, row in tables.of_method(method):
        theirs = tables.rows.get((federation, attack, other), {})
        for share in set(row) & set(theirs):
            clean_once = (federation, attack if share else "", share)
            gap = row[share].accuracy - theirs[share].accuracy
            gaps[clean_once] = math.inf if theirs[share].collapsed else gap
    if not gaps:
        return f"**{method} is above {other}**: not run."
    finite = [gap for gap in gaps.values() if math.isfinite(gap)]
    return WORDS["above"].format(
        method=method,
        other=other,
        higher=sum(gap > 0 for gap in gaps.values()),
        cells=len(gaps),
        mean=sum(finite) / len(finite),
        least=min(finite),
        most=max(finite),
    )


def useless(
    tables: Tables, method: str = "Global+Mean", attack: str = "sign-flip", share: float = 0.1
) -> str:
    """Is the method below USEFUL there?"""
    cells = _cells_of(tables, method, attack, share)
    answers = _answers((f, cell, cell.accuracy < USEFUL) for f, cell in cells)
    facts = {"method": method, "attack": attack, "share": percent(share), "useful": USEFUL}
    return WORDS["useless"].format_map(facts | {"answers": answers})


def breaks(
    tables: Tables, method: str = "lp-proj-2", attack: str = "sign-flip", share: float = 0.5
) -> str:
    """Does the method collapse there?"""
    answers = _answers((f, cell, False) for f, cell in _cells_of(tables, method, attack, share))
    facts = {"method": method, "attack": attack, "share": percent(share), "answers": answers}
    return WORDS["breaks"].format_map(facts)


def _cells_of(
    tables: Tables, method: str, attack: str, share: float
) -> list[tuple[str, AttackedCell]]:
    rows = tables.of_method(method)
    return [(f, row[share]) for f, a, row in rows if a == attack and share in row]


def _answers(cells: Iterable[tuple[str, AttackedCell, bool]]) -> str:
    """Yes where a cell has collapsed or is otherwise bad, by federation."""
    answers = [
        f"{federation}: {'yes' if cell.collapsed or bad else 'no'}, {cell.text()}"
        for federation, cell, bad in cells
    ]
    return "; ".join(answers) or "not run"


def differences(tables: Tables, published: Published) -> list[str]:
    """The cells more than FAR from the paper's, ours first; clean ones once.

    One line per federation and method.
    """
    lines: dict[tuple[str, str], dict[str, None]] = {(f, m): {} for f, _, m in tables.rows}
    for (federation, attack, method), row in tables.rows.items():
        theirs = published.get((federation, attack, method), ())
        for (share, cell), paper in zip(row.items(), theirs, strict=False):
            if _differ(cell, paper):
                where = f"{attack} {percent(share)}" if share else "clean"
                shown = "★" if paper is None else f"{paper[0]:.3f}"
                lines[federation, method][f"{where} {cell.short()} / {shown}"] = None
    return [f"{f}, {m}: {', '.join(cells)}" for (f, m), cells in lines.items() if cells]


def _differ(cell: AttackedCell, paper: tuple[float, float] | None) -> bool:
    if cell.collapsed or paper is None:
        return bool(cell.collapsed) != (paper is None)
    return abs(cell.accuracy - paper[0]) > FAR


# -- robustness.png: accuracy over the share of malicious clients ---------------------------------
# Colours that the colour-blind can tell apart (Okabe and Ito); dashes for the global models.
STYLES = {
    "Local": ("#000000", ":", "."),
    "Ditto": ("#E69F00", "-", "s"),
    "Global+Mean": ("#999999", "--", "v"),
    "Global+Median": ("#56B4E9", "--", "^"),
    "Global+Krum": ("#CC79A7", "--", "D"),
    "RSA": ("#009E73", "-", "P"),
    "lp-proj-1": ("#D55E00", "-", "o"),
    "lp-proj-2": ("#0072B2", "-", "X"),
}


def picture(tables: Tables, path: Path) -> Path:
    """Small multiples, federations by attacks, one line per method.

    A star at the foot marks a collapse.
    """
    federations, attacks, methods = tables.federations, tables.attacks, tables.methods
    figure = new_picture(1.2 + 2.7 * len(attacks), 1.1 + 2.5 * len(federations))
    grid = figure.subplots(len(federations), len(attacks), sharey=True, squeeze=False)
    for i, federation in enumerate(federations):
        grid[i][0].set_ylabel(f"{federation}\naccuracy of benign clients")
        for j, attack in enumerate(attacks):
            here = [m for m in methods if (federation, attack, m) in tables.rows]
            for n, method in enumerate(here):  # stars of several methods side by side
                shift = 0.095 * (n - (len(methods) - 1) / 2)
                _line(grid[i][j], tables.rows[federation, attack, method], method, shift)
            _frame(grid[i][j], (0.0, *SHARES[attack]))
    for j, attack in enumerate(attacks):
        grid[0][j].set_title(attack, fontsize=11)
        grid[-1][j].set_xlabel("malicious clients")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9
    )
    figure.savefig(path, dpi=130)
    return path


def _line(axes: Any, row: Row, method: str, shift: float) -> None:
    colour, dash, mark = STYLES[method]
    axes.plot(
        range(len(row)),
        [math.nan if cell.collapsed else cell.accuracy for cell in row.values()],
        color=colour,
        linestyle=dash,
        marker=mark,
        markersize=4,
        linewidth=3.0 if method == "lp-proj-1" else 1.3,  # lp-proj-2 often lies on lp-proj-1
        zorder=3 if method == "Local" else 2,  # and lp-proj-1 on Local
        label=method,
    )
    stars = [x + shift for x, cell in enumerate(row.values()) if cell.collapsed]
    feet = [-0.06] * len(stars)
    axes.plot(stars, feet, color=colour, linestyle="", marker="*", markersize=8)


def _frame(axes: Any, shares: tuple[float, ...]) -> None:
    axes.set_xticks(range(len(shares)), [percent(share) for share in shares])
    axes.set_xlim(-0.4, len(shares) - 0.6)
    axes.set_ylim(-0.12, 1)
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


# -- Tables 6 to 9 and 12 to 15, cell by cell beside the published ones ---------------------------
TEXT = "lp-proj-robustness"
TEXTS = read_text(TEXT)
SCALES = {
    "quick": AttackGrid(100, 2, federations=("Synthetic(0, 0)", MNIST)),
    "full": AttackGrid(200, 10, whole=True),
}
FALL = 0.05  # of accuracy: "rarely decays"
WORKS = 0.7  # an accuracy that a model in use has on these data


def write_table(
    folder: Path, number: int, scale: str, grid: AttackGrid | None = None, jobs: int = 0
) -> list[Path]:
    """Table 6, 7, 8 or 9, one for each attack; or 12 to 15, with volumes by a power law."""
    by_volume = number >= 12
    attack = tuple(ATTACKS)[number - (12 if by_volume else 6)]
    titles = (VOLUME,) if by_volume else MAIN
    grid = grid or SCALES[scale]
    tables = _measured(folder, scale, grid, by_volume, jobs)
    few = (
        ""
        if grid.whole or by_volume
        else TEXTS["few"].format(
            clients=min(grid.clients, MNIST_CLIENTS),
            everyone=MNIST_ROUNDS[0],
            others=MNIST_ROUNDS[1],
        )
    )
    share = SHARES[attack][-1]
    lines = [
        f"- {federation}, {percent(share)} malicious: "
        + "; ".join(
            f"{method} {_ours(tables.rows[federation, attack, method][share])}"
            for method in ("Local", "lp-proj-1", "lp-proj-2")
        )
        for federation in tables.federations
    ]
    return page_from_text(
        f"lp-proj-table{number}",
        {},
        shared=TEXT,
        title=f"lp-proj, Table {number}: accuracy of benign clients under {attack} attacks",
        scale=f"{scale}: {grid.rounds} rounds{few}, {grid.seeds} seeds",
        opening="\n".join([TEXTS["opening"], "", *lines]),
        cells=cells(tables, attack, titles),
        reasons={} if grid.whole else {MNIST: TEXTS["few_reason"]},
    ).write(folder)


def _measured(folder: Path, scale: str, grid: AttackGrid, by_volume: bool, jobs: int) -> Tables:
    name = "lp-proj-volume" if by_volume else "lp-proj-attacked"
    grid = replace(grid, federations=(VOLUME,)) if by_volume else grid
    return grid.measure(scaled_runs(folder, name, scale, jobs))


def cells(tables: Tables, attack: str, titles: Sequence[str]) -> list[Cell]:
    """Of every data set the rows of the paper, and Local."""
    published = read_published()
    columns = [percent(share) for share in (0.0, *SHARES[attack])]
    compared = []
    for title in titles:
        printed = {
            method: dict(zip(columns, map(_printed, row), strict=True))
            for (federation, at, method), row in published.items()
            if (federation, at) == (title, attack)
        }
        ours = {
            method: {percent(share): _ours(cell) for share, cell in row.items()}
            for (federation, at, method), row in tables.rows.items()
            if (federation, at) == (title, attack)
        }
        compared += beside(title, printed, ours, columns)
    return compared


def _printed(cell: tuple[float, float] | None) -> Figure:
    return Figure(None if cell is None else cell[0], None, 3)


def _ours(cell: AttackedCell) -> Figure:
    return Figure.of([None] if cell.collapsed else cell.by_seed, 3)


# -- Figure 4 -------------------------------------------------------------------------------------
def write_figure4(
    folder: Path, scale: str, grid: AttackGrid | None = None, jobs: int = 0
) -> list[Path]:
    """Accuracy over the share of malicious clients."""
    grid = grid or SCALES[scale]
    tables = _measured(folder, scale, grid, False, jobs)
    panels = []
    for federation in grid.federations:
        for attack in grid.attacks:
            lines = []
            for style, method in enumerate(grid.methods):
                row = tables.rows[federation, attack, method]
                shares = [share for share, cell in row.items() if not cell.collapsed]
                if shares:
                    x = [100 * share for share in shares]
                    y = [row[share].accuracy for share in shares]
                    lines.append(Line(method, x, y, style=style, points=True))
            title = f"{federation}: {attack}"
            panels.append(Panel(title, "malicious clients, %", "accuracy of benign clients", lines))
    return page_from_text(
        "lp-proj-figure4",
        {},
        more_claims=[claim for title in grid.federations for claim in _claims(tables, title)],
        shared=TEXT,
        title="lp-proj, Figure 4: robustness",
        scale=f"{scale}: the runs of lp-proj-table6 to lp-proj-table9",
        opening="",
        pictures={TEXTS["caption"]: panels},
        figures=lines_of(panels),
    ).write(folder)


def _claims(tables: Tables, federation: str) -> list[Claim]:
    """What Section 5.4 says of Figure 4."""

    def drop(method: str, attack: str) -> float:
        row = tables.rows[federation, attack, method]
        last = row[SHARES[attack][-1]]
        return 1.0 if last.collapsed else row[0.0].accuracy - last.accuracy

    claims = []
    for attack in ("same-value", "gaussian"):
        ours = max(drop("lp-proj-1", attack), drop("lp-proj-2", attack))
        others = max(drop(m, attack) for m in ("Ditto", "Global+Mean"))
        facts = {"federation": federation, "attack": attack, "fall": ours, "others": others}
        claims.append(claim_of(TEXTS["claims"]["decay"], facts, ours < FALL and others > ours))
    working = [
        method
        for method in tables.methods
        if method != "Local"
        and not (cell := tables.rows[federation, "sign-flip", method][0.8]).collapsed
        and cell.accuracy > WORKS
    ]
    facts = {"federation": federation, "working": ", ".join(working) or "none"}
    only_those = set(working) == {"lp-proj-1", "RSA"}
    return [*claims, claim_of(TEXTS["claims"]["sign_flip"], facts, only_those)]
