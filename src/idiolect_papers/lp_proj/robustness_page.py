"""What the tables say about the claims of the paper, and where its figures are others."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from idiolect import SettingError

from ..runs import Runs, stored_runs
from ..texts import read_text
from .robustness import (
    ATTACKS,
    CLIENTS,
    EVERY,
    FEDERATIONS,
    FORMAT,
    METHODS,
    MNIST,
    ROUNDS,
    SEEDS,
    VOLUME,
    Cell,
    Published,
    Row,
    Tables,
    heard_per_round,
    keys,
    outcomes,
    percent,
    read_published,
    setting,
    stocked,
)

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
    answers = [
        f"{federation}: {_yes(bool(cell.collapsed) or cell.accuracy < USEFUL)}, {cell.text()}"
        for federation, cell in _cells(tables, method, attack, share)
    ]
    claim = f"**{method} falls below {USEFUL:g} at {percent(share)} {attack}**"
    return f"{claim}: {'; '.join(answers) or 'not run'}."


def breaks(
    tables: Tables, method: str = "lp-proj-2", attack: str = "sign-flip", share: float = 0.5
) -> str:
    """Does the method collapse there?"""
    answers = [
        f"{federation}: {_yes(bool(cell.collapsed))}, {cell.text()}"
        for federation, cell in _cells(tables, method, attack, share)
    ]
    claim = f"**{method} collapses at {percent(share)} {attack}**"
    return f"{claim}: {'; '.join(answers) or 'not run'}."


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
                entry = f"{where} {cell.short()} / {shown}"
                out[federation, method][entry] = None
    return [f"{f}, {m}: {', '.join(cells)}" for (f, m), cells in out.items() if cells]


def _differ(cell: Cell, paper: tuple[float, float] | None) -> bool:
    if cell.collapsed or paper is None:
        return bool(cell.collapsed) != (paper is None)
    return abs(cell.accuracy - paper[0]) > FAR


# -- robustness.md: findings, settings, one table per federation and attack, differences --


def page(tables: Tables, rounds: int, seeds: int, clients: int) -> str:
    """The whole page."""
    with_mnist = any(federation == MNIST for federation, _, _ in tables.rows)
    head = HEAD.format(
        more=AND_MNIST if with_mnist else "",
        rounds=rounds,
        seeds="1 seed" if seeds == 1 else f"{seeds} seeds",
        clients=clients,
        heard=heard_per_round(clients),
        every=EVERY,
    )
    published = read_published()
    findings = [unmoved(tables), above(tables), useless(tables), breaks(tables)]
    lines = [head, "## What it shows", "", *(f"- {text}" for text in findings), "", SETTINGS]
    few = FEDERATIONS[MNIST].few
    if few and with_mnist:
        everyone, others = (min(rounds, number) for number in few)
        who = {"clients": FEDERATIONS[MNIST].many(clients)}
        who["heard"] = heard_per_round(clients)
        lines.append(MNIST_SETTINGS.format(everyone=everyone, others=others, **who))
    for federation, attack in dict.fromkeys((f, a) for f, a, _ in tables.rows):
        lines += [*_table(tables, published, federation, attack), ""]
    far = differences(tables, published)
    lines += [FAR_APART.format(far=FAR), *(f"- {text}" for text in far), ""]
    return "\n".join([*lines, WHY])


def _table(tables: Tables, published: Published, federation: str, attack: str) -> Iterator[str]:
    shares = (0.0, *ATTACKS[attack].shares)
    yield f"## {federation}, {attack}"
    yield ""
    yield "| method | " + " | ".join(percent(s) if s else "clean" for s in shares) + " |"
    yield "|---" * (len(shares) + 1) + "|"
    for (f, a, method), row in tables.rows.items():
        if (f, a) == (federation, attack):
            cells = [row[s].text() for s in shares]
            if theirs := published.get((f, a, method)):
                pairs = zip(cells, theirs, strict=True)
                cells = [f"{ours}<br><sub>{_paper(t)}</sub>" for ours, t in pairs]
            yield f"| {method} | " + " | ".join(cells) + " |"


def _paper(cell: tuple[float, float] | None) -> str:
    return "★" if cell is None else f"{cell[0]:.3f} ({cell[1]:.3f})"


# -- robustness.png: accuracy over the share of malicious clients --

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


def need_matplotlib() -> tuple[Any, Any]:
    """Matplotlib's Figure and canvas, or an error that says how to get them."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise SettingError("pictures need matplotlib: pip install 'idiolect[plot]'") from None
    return Figure, FigureCanvasAgg


def picture(tables: Tables, path: Path) -> Path:
    """Small multiples, federations by attacks, one line per method.

    A star at the foot marks a collapse.
    """
    figure_class, canvas_class = need_matplotlib()
    federations = list(dict.fromkeys(f for f, _, _ in tables.rows))
    attacks = list(dict.fromkeys(a for _, a, _ in tables.rows))
    methods = list(dict.fromkeys(m for _, _, m in tables.rows))
    width = 1.2 + 2.7 * len(attacks)
    height = 1.1 + 2.5 * len(federations)
    figure = figure_class(figsize=(width, height), layout="constrained")
    canvas_class(figure)
    grid = figure.subplots(len(federations), len(attacks), sharey=True, squeeze=False)
    for i, federation in enumerate(federations):
        grid[i][0].set_ylabel(f"{federation}\naccuracy of benign clients")
        for j, attack in enumerate(attacks):
            shares = (0.0, *ATTACKS[attack].shares)
            here = [m for m in methods if (federation, attack, m) in tables.rows]
            for n, method in enumerate(here):
                shift = 0.095 * (
                    n - (len(methods) - 1) / 2
                )  # stars of several methods side by side
                _line(grid[i][j], tables.rows[federation, attack, method], shares, method, shift)
            _frame(grid[i][j], shares)
    for j, attack in enumerate(attacks):
        grid[0][j].set_title(attack, fontsize=11)
        grid[-1][j].set_xlabel("malicious clients")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9
    )
    figure.savefig(path, dpi=130)
    return path


def _line(axes: Any, row: Row, shares: tuple[float, ...], method: str, shift: float) -> None:
    colour, dash, mark = STYLES[method]
    axes.plot(
        range(len(shares)),
        [float("nan") if row[s].collapsed else row[s].accuracy for s in shares],
        color=colour,
        linestyle=dash,
        marker=mark,
        markersize=4,
        linewidth=3.0 if method == "lp-proj-1" else 1.3,  # lp-proj-2 often lies on lp-proj-1
        zorder=3 if method == "Local" else 2,  # and lp-proj-1 on Local
        label=method,
    )
    stars = [x + shift for x, s in enumerate(shares) if row[s].collapsed]
    feet = [-0.06] * len(stars)
    axes.plot(stars, feet, color=colour, linestyle="", marker="*", markersize=8)


def _frame(axes: Any, shares: tuple[float, ...]) -> None:
    axes.set_xticks(range(len(shares)), [percent(s) if s else "clean" for s in shares])
    axes.set_xlim(-0.4, len(shares) - 0.6)
    axes.set_ylim(-0.12, 1)
    axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


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
    by_key = runs(todo, stocked(federations, clients, whole), range(seeds), ("by_client",))
    return Tables.of(outcomes(by_key), attacks)


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
    row_methods = [m for m in METHODS if m in methods or any(m == method for _, method in have)]
    with stored_runs(folder, "robustness", jobs) as runs:
        for federation in places:
            missing = [method for method in row_methods if (federation, method) not in have]
            if missing:
                tables.rows |= measured(runs, [federation], missing, attacks, **sizes).rows
        order = [(f, a, m) for f in places for a in attacks for m in row_methods]
        return _store(folder, Tables({key: tables.rows[key] for key in order}), sizes, row_methods)


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


TEXTS = read_text("robustness")
HEAD = TEXTS["head"]

SETTINGS = TEXTS["settings"]

AND_MNIST = ",\nand on MNIST as the settings below say"
MNIST_SETTINGS = TEXTS["mnist_settings"]

FAR_APART = TEXTS["far_apart"]

WHY = TEXTS["why"]
