"""Tables 6 to 9 and 12 to 15 and Figure 4, cell by cell beside the published ones.

`idiolect reproduce lp-proj-table6` and so on: one grid of runs, stored beside the pages, serves
them all. The page of the whole grid with its findings is that of `robustness`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..marks import Cell, Figure
from ..page import Claim, Page
from ..panels import Line, Panel
from ..runs import Runs
from ..texts import read_text
from .robustness import (
    ATTACKS,
    FEDERATIONS,
    METHODS,
    MNIST,
    VOLUME,
    Row,
    Tables,
    percent,
    read_published,
)
from .robustness_page import measured

TABLES = {
    6: "same-value",
    7: "sign-flip",
    8: "gaussian",
    9: "data-poison",
    12: "same-value",
    13: "sign-flip",
    14: "gaussian",
    15: "data-poison",
}


@dataclass(frozen=True)
class Size:
    """How much is run."""

    rounds: int
    seeds: int
    federations: tuple[str, ...]
    clients: int = 100
    whole: bool = False  # MNIST as well


SIZES = {
    "quick": Size(100, 2, ("Synthetic(0, 0)", MNIST)),
    "full": Size(200, 10, ("Synthetic(0, 0)", "Synthetic(1, 1)", MNIST), whole=True),
}
PLACES = ("Synthetic(0, 0)", "Synthetic(1, 1)", "EMNIST", "CIFAR", "MNIST", "FASHIONMNIST")


def write_table(
    number: int, folder: Path, scale: str, size: Size | None = None, jobs: int = 0
) -> list[Path]:
    """One of the tables."""
    size = size or SIZES[scale]
    attack = TABLES[number]
    titles = PLACES if number < 12 else (VOLUME,)
    tables = _measured(folder, scale, number >= 12, size, jobs)
    page = Page(
        name=f"lp-proj-table{number}",
        title=f"lp-proj, Table {number}: accuracy of benign clients under {attack} attacks",
        scale=f"{scale}: {size.rounds} rounds{_few(size, titles)}, {size.seeds} seeds",
        opening=_opening(tables, attack),
        printed=PRINTED,
        chosen=CHOSEN,
        cells=_cells(tables, attack, titles),
        reasons=REASONS if size.whole else REASONS | {MNIST: FEW},
    )
    return page.write(folder)


write_table6 = partial(write_table, 6)
write_table7 = partial(write_table, 7)
write_table8 = partial(write_table, 8)
write_table9 = partial(write_table, 9)
write_table12 = partial(write_table, 12)
write_table13 = partial(write_table, 13)
write_table14 = partial(write_table, 14)
write_table15 = partial(write_table, 15)


def write_figure4(folder: Path, scale: str, size: Size | None = None, jobs: int = 0) -> list[Path]:
    """Accuracy over the share of malicious clients."""
    size = size or SIZES[scale]
    tables = _measured(folder, scale, False, size, jobs)
    panels = [
        Panel(
            f"{federation}: {attack}",
            "malicious clients, %",
            "accuracy of benign clients",
            [
                line
                for place, method in enumerate(METHODS)
                if (line := _line(tables, federation, attack, method, place))
            ],
        )
        for federation in size.federations
        for attack in ATTACKS
    ]
    page = Page(
        name="lp-proj-figure4",
        title="lp-proj, Figure 4: robustness",
        scale=f"{scale}: the runs of lp-proj-table6 to lp-proj-table9",
        printed=PRINTED,
        chosen=CHOSEN,
        claims=[claim for f in size.federations for claim in _claims(tables, f)],
        pictures={"Accuracy of benign clients; a line ends where the models collapse": panels},
        figures={p.title: {line.label: [[*line.x], [*line.y]] for line in p.lines} for p in panels},
    )
    return page.write(folder)


def _measured(folder: Path, scale: str, volume: bool, size: Size, jobs: int) -> Tables:
    federations = (VOLUME,) if volume else size.federations
    name = "volume" if volume else "attacked"
    runs = Runs(folder / ".runs" / f"lp-proj-{name}-{scale}", jobs)
    sizes = {"rounds": size.rounds, "seeds": size.seeds, "clients": size.clients}
    return measured(runs, federations, tuple(METHODS), tuple(ATTACKS), **sizes, whole=size.whole)


def _few(size: Size, titles: Sequence[str]) -> str:
    """What is smaller of MNIST, where the table has it."""
    place = FEDERATIONS[MNIST]
    if size.whole or MNIST not in titles or place.few is None:
        return ""
    everyone, others = place.few
    return (
        f" (MNIST: {place.many(size.clients)} clients, {everyone} rounds of methods that train "
        f"everyone, {others} of the others)"
    )


def _cells(tables: Tables, attack: str, titles: Sequence[str]) -> list[Cell]:
    published = read_published()
    shares = (0.0, *ATTACKS[attack].shares)
    cells = []
    for title in titles:
        rows = [method for f, a, method in published if (f, a) == (title, attack)]
        if (title, attack, "Local") in tables.rows:
            rows.append("Local")
        for method in rows:
            printed = published.get((title, attack, method))
            ours = tables.rows.get((title, attack, method))
            for place, share in enumerate(shares):
                column = percent(share) if share else "clean"
                paper = _printed(printed[place]) if printed else None
                cells.append(Cell(title, method, column, paper, _ours(ours, share)))
    return cells


def _printed(cell: tuple[float, float] | None) -> Figure:
    return Figure(None, None, 3) if cell is None else Figure(cell[0], None, 3)


def _ours(row: Row | None, share: float) -> Figure | None:
    if row is None:
        return None
    cell = row[share]
    return Figure(None, None, 3, True) if cell.collapsed else Figure.of(cell.by_seed, 3)


def _opening(tables: Tables, attack: str) -> str:
    """How lp-proj stands beside what no attack reaches."""
    lines = [OPENING, ""]
    for federation in dict.fromkeys(f for f, _, _ in tables.rows):
        share = ATTACKS[attack].shares[-1]
        names = ("Local", "lp-proj-1", "lp-proj-2")
        shown = "; ".join(f"{m} {_ours(tables.rows[federation, attack, m], share)}" for m in names)
        lines.append(f"- {federation}, {percent(share)} malicious: {shown}")
    return "\n".join(lines)


def _line(tables: Tables, federation: str, attack: str, method: str, place: int) -> Line | None:
    row = tables.rows[federation, attack, method]
    points = [(100 * share, cell.accuracy) for share, cell in row.items() if not cell.collapsed]
    if not points:
        return None
    x, y = zip(*points, strict=True)
    return Line(method, x, y, style=place, points=True)


def _claims(tables: Tables, federation: str) -> list[Claim]:
    """What Section 5.4 says of Figure 4."""

    def drop(method: str, attack: str) -> float:
        row = tables.rows[federation, attack, method]
        last = row[ATTACKS[attack].shares[-1]]
        return 1.0 if last.collapsed else row[0.0].accuracy - last.accuracy

    claims = []
    for attack in ("same-value", "gaussian"):
        ours = max(drop("lp-proj-1", attack), drop("lp-proj-2", attack))
        others = max(drop(m, attack) for m in ("Ditto", "Global+Mean"))
        good = ours < FALL and others > ours
        claims.append(
            Claim(
                f"{federation}: under {attack} attacks lp-proj rarely decays, others drop",
                f"lp-proj falls by at most {ours:.3f} at 80 %, Ditto or FedAvg by {others:.3f}",
                "agrees" if good else "differs",
                "" if good else "not found",
            )
        )
    row = {m: tables.rows[federation, "sign-flip", m][0.8] for m in METHODS if m != "Local"}
    working = [m for m, cell in row.items() if not cell.collapsed and cell.accuracy > WORKS]
    expected = {"lp-proj-1", "RSA"}
    claims.append(
        Claim(
            f"{federation}: with 80 % sign-flipping only lp-proj-1 and RSA reach the accuracy",
            "those that do: " + (", ".join(working) or "none"),
            "agrees" if set(working) == expected else "differs",
            "" if set(working) == expected else "not found",
        )
    )
    return claims


FALL = 0.05  # of accuracy: "rarely decays"
WORKS = 0.7  # an accuracy that a model in use has on these data
TEXTS = read_text("lp-proj-robustness")
OPENING = TEXTS["opening"]
PRINTED = TEXTS["printed"]
CHOSEN = TEXTS["chosen"]
FEW = "not found; MNIST has few rounds and clients at this scale"
REASONS = {
    "Global+Krum": "Krum is told how many malicious clients it may expect, as far as n >= 2 f + 3 "
    "allows; the authors' code gives it f = 0 on clean runs and unsquared distances",
    "Global+Median": "one full step of FedAvg per round here; the paper's settings are not printed",
    "Global+Mean": "one full step of FedAvg per round here; the paper's settings are not printed",
}
