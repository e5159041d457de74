"""Tables 4 and 10 of the lp-proj paper (Han, Li, Lin and Zhang, JMLR 2024), as published.

A ? is a number that the text of the paper we have does not give reliably.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from idiolect import paired_difference

from ..experiments import unknown
from ..marks import Cell, Figure
from ..page import Claim, Page
from ..panels import Line, Panel
from ..published import read_figure, read_rows
from ..texts import read_text
from .personal import CASES, EQUAL, METHODS, UNTIED, VOLUME, Case, Outcome, outcome, store, stored

COLUMNS = ("train loss", "variance of train loss", "accuracy", "variance of accuracy")


def read_published() -> dict[tuple[str, str], dict[str, Figure | None]]:
    """Tables 4 and 10: [data set, method] -> figures by column, None where one is not legible.

    >>> str(read_published()["MNIST", "Ditto"]["accuracy"])
    '0.9863 ± 0.0004'
    >>> read_published()["Synthetic(1, 1)", "local"]["accuracy"]
    """
    return {
        (row["data"], row["method"]): {column: read_figure(row[column]) for column in COLUMNS}
        for table in ("lp-proj-table4", "lp-proj-table10")
        for row in read_rows(table)
    }


ADDED = (EQUAL, UNTIED)


def table(
    name: str, number: str, outcomes: dict[str, Outcome], titles: Sequence[str], scale: str
) -> Page:
    """The published table beside ours, as far as it was run."""
    cells = [
        Cell(
            _title(title, outcomes.get(title)),
            row,
            column,
            paper,
            ours,
            _stands_in(outcomes, title),
        )
        for title in titles
        for row in _rows(title, outcomes.get(title))
        for column, paper, ours in _columns(title, row, outcomes.get(title))
    ]
    more = {
        (_title(title, one), row): {
            "chosen": figures["chosen"],
            "gradients/client": f"{figures['gradients']:,.0f}",
        }
        for title, one in outcomes.items()
        for row, figures in one["rows"].items()
    }
    return Page(
        name=name,
        title=f"lp-proj, {number}: personalisation and fairness",
        scale=f"{scale}: " + "; ".join(f"{t}: {one['scale']}" for t, one in outcomes.items()),
        opening=opening(outcomes),
        printed=PRINTED,
        chosen=CHOSEN,
        cells=cells,
        reasons=REASONS
        | {_title(t, one): one["note"] for t, one in outcomes.items() if one["note"]},
        more=more,
        seconds=sum(one["cpu_seconds"] for one in outcomes.values()),
    )


def _stands_in(outcomes: dict[str, Outcome], title: str) -> bool:
    return bool(title in outcomes and outcomes[title]["note"])


def _title(title: str, one: Outcome | None) -> str:
    return title if one is None else f"{title}: {one['clients']} clients, d = {one['parameters']:,}"


def _rows(title: str, one: Outcome | None) -> list[str]:
    published_rows = [row for data, row in read_published() if data == title]
    return [*published_rows, *(row for row in ADDED if one and row in one["rows"])]


def _columns(
    title: str, row: str, one: Outcome | None
) -> list[tuple[str, Figure | None, Figure | None]]:
    paper = read_published().get((title, row), {})
    ours = one["rows"].get(row) if one else None
    return [(c, paper.get(c), Figure.of(ours[c]) if ours else None) for c in COLUMNS]


def opening(outcomes: dict[str, Outcome]) -> str:
    """What the two rows show that the paper's table lacks."""
    lines = [OPENING, ""]
    for title, one in outcomes.items():
        rows = one["rows"]
        if not {EQUAL, UNTIED, "lp-proj-1", "lp-proj-2"} <= {*rows}:
            continue
        better = max(("lp-proj-1", "lp-proj-2"), key=lambda row: _mean(rows[row]))
        names = (better, EQUAL, UNTIED, "local")
        shown = "; ".join(f"{n} {Figure.of(rows[n]['accuracy'])}" for n in names if n in rows)
        alone = _gap(rows[better], rows[EQUAL])
        tied = _gap(rows["lp-proj-1"], rows[UNTIED])
        lines.append(f"- {title}: {shown}. {better} less Local: {alone}; the tie: {tied}.")
    return "\n".join(lines)


def _gap(ours: dict[str, Any], other: dict[str, Any]) -> str:
    """How much more accurate, and whether the seeds show it."""
    if None in ours["accuracy"] or None in other["accuracy"]:
        return "one of them has no result"
    difference, half = paired_difference(ours["accuracy"], other["accuracy"])
    if half is None:
        return f"{difference:+.4f} (one seed: it may be chance)"
    return f"{difference:+.4f} ± {half:.4f}"


def _mean(row: dict[str, Any]) -> float:
    mean = Figure.of(row["accuracy"]).mean
    return float("-inf") if mean is None else mean


TEXTS = read_text("lp-proj-personal")
OPENING = TEXTS["opening"]
PRINTED = TEXTS["printed"]
CHOSEN = TEXTS["chosen"]
REASONS = {
    "local": "one step per round is our reading of the authors' code; the paper does not say how "
    "many steps its Local takes",
}


OURS = ("lp-proj-1", "lp-proj-2")
LAST = {  # the same figures of the last round
    "accuracy": "accuracy",
    "variance": "variance of accuracy",
    "loss": "test loss",
    "loss_variance": "variance of test loss",
}
ROWS = [*METHODS, EQUAL, UNTIED]  # each in the same colour in every panel
Row = dict[str, Any]
Point = Callable[[Row], tuple[float | None, float | None]]


def training(name: str, number: str, outcomes: dict[str, Outcome], scale: str) -> Page:
    """Train loss and test accuracy against rounds (Figures 3, 5 and 8)."""
    panels = [
        _curves(title, one, key, label, log)
        for title, one in outcomes.items()
        for key, label, log in (("train_loss", "train loss", "y"), ("accuracy", "accuracy", ""))
    ]
    claims = [
        *(_least_loss(title, one) for title, one in outcomes.items()),
        *(_best_accuracy(title, one) for title, one in outcomes.items()),
    ]
    caption = "Train loss and test accuracy against rounds, means over seeds"
    return _page(name, f"lp-proj, {number}: training", outcomes, scale, {caption: panels}, claims)


def fairness(name: str, number: str, outcomes: dict[str, Outcome], scale: str) -> Page:
    """Variance of accuracies against accuracy (Figures 2 and 6)."""
    point: Point = lambda row: (_late(row, "accuracy"), _late(row, "variance"))  # noqa: E731
    panels = [_points(t, one, point, "accuracy", "variance") for t, one in outcomes.items()]
    claims = [_comparable(title, one) for title, one in outcomes.items()]
    caption = "Variance over clients against accuracy: the lower right is better"
    title = f"lp-proj, {number}: accuracy and performance fairness"
    return _page(name, title, outcomes, scale, {caption: panels}, claims)


def losses(name: str, number: str, outcomes: dict[str, Outcome], scale: str) -> Page:
    """Variance of test losses against test loss (Figure 7)."""
    point: Point = lambda row: (_late(row, "loss"), _late(row, "loss_variance"))  # noqa: E731
    panels = [_points(t, one, point, "test loss", "variance", "xy") for t, one in outcomes.items()]
    caption = "Variance of test losses against test loss: the lower left is better"
    title = f"lp-proj, {number}: test loss and its variance"
    return _page(name, title, outcomes, scale, {caption: panels}, [])


def collaboration(name: str, number: str, outcomes: dict[str, Outcome], scale: str) -> Page:
    """Collaboration fairness against accuracy (Figure 9)."""

    def point(row: Row) -> tuple[float | None, float | None]:
        return Figure.of(row["accuracy"]).mean, Figure.of(row["collaboration"]).mean

    panels = [_points(t, one, point, "accuracy", "correlation") for t, one in outcomes.items()]
    claims = [_collaborates(title, one) for title, one in outcomes.items()]
    caption = "Correlation of accuracy alone with accuracy in the end: the upper right is better"
    title = f"lp-proj, {number}: collaboration fairness"
    return _page(name, title, outcomes, scale, {caption: panels}, claims)


def _page(
    name: str,
    title: str,
    outcomes: dict[str, Outcome],
    scale: str,
    pictures: dict[str, list[Panel]],
    claims: Sequence[Claim],
) -> Page:
    notes = [f"{t}: {one['note']}" for t, one in outcomes.items() if one["note"]]
    return Page(
        name=name,
        title=title,
        scale=f"{scale}: the runs of lp-proj-table4 or lp-proj-table10",
        printed=PRINTED,
        chosen=" ".join([CHOSEN, LATE, *notes]),
        claims=claims,
        pictures=pictures,
        figures={
            panel.title: {line.label: [[*line.x], [*line.y]] for line in panel.lines}
            for panels in pictures.values()
            for panel in panels
        },
    )


# -- pictures -------------------------------------------------------------------------------------
def _curves(title: str, one: Outcome, key: str, label: str, log: str) -> Panel:
    lines = []
    for row, figures in one["rows"].items():
        by_seed = [curve for curve in figures["curves"][key] if None not in curve]
        if not by_seed:
            continue
        mean = [sum(values) / len(values) for values in zip(*by_seed, strict=True)]
        lines.append(Line(row, figures["rounds"], mean, style=ROWS.index(row)))
    return Panel(f"{title}: {label}", "round", label, lines, log)


def _points(title: str, one: Outcome, point: Point, across: str, up: str, log: str = "") -> Panel:
    lines = []
    for row, figures in one["rows"].items():
        x, y = point(figures)
        if x is not None and y is not None:
            lines.append(Line(row, [x], [y], style=ROWS.index(row), points=True))
    return Panel(title, across, up, lines, log)


def _late(row: Row, name: str) -> float | None:
    """Of the best round from the 20th on, on test data; of the last round where none is so late."""
    values = [value for value in row["late"][name] if value is not None]
    if len(values) == len(row["accuracy"]):
        return sum(values) / len(values)
    return Figure.of(row[LAST[name]]).mean


# -- what the paper says --------------------------------------------------------------------------
def _published(one: Outcome) -> dict[str, Row]:
    """The rows that the paper has."""
    return {row: f for row, f in one["rows"].items() if row not in (EQUAL, UNTIED)}


def _least_loss(title: str, one: Outcome) -> Claim:
    rows = _published(one)
    loss = {row: Figure.of(f["train loss"]).mean for row, f in rows.items()}
    loss_by_row = {row: value for row, value in loss.items() if value is not None}
    least = min(loss_by_row, key=lambda row: loss_by_row[row])
    text = f"least train loss: {least} ({loss_by_row[least]:.4f})"
    ours = ", ".join(f"{row} {loss_by_row[row]:.4f}" for row in OURS if row in loss_by_row)
    agrees = least in OURS
    return Claim(
        f"{title}: lp-proj has the least train loss",
        f"{text}; {ours}",
        "agrees" if agrees else "differs",
        "" if agrees else "more gradients per round fit the training data more closely",
    )


def _best_accuracy(title: str, one: Outcome) -> Claim:
    figures = {row: Figure.of(f["accuracy"]) for row, f in _published(one).items()}
    figure_by_row = {row: f for row, f in figures.items() if f.mean is not None}
    best = max(figure_by_row, key=lambda row: figure_by_row[row].mean or 0.0)
    ours = max(
        (row for row in OURS if row in figure_by_row),
        key=lambda row: figure_by_row[row].mean or 0.0,
    )
    gap = (figure_by_row[best].mean or 0.0) - (figure_by_row[ours].mean or 0.0)
    near = gap <= figure_by_row[best].reach + figure_by_row[ours].reach
    return Claim(
        f"{title}: lp-proj is comparable or superior in test accuracy",
        f"best: {best} {figure_by_row[best]}; {ours} {figure_by_row[ours]}",
        "agrees" if near else "differs",
        "" if near else _unknown(one),
    )


def _unknown(one: Outcome) -> str:
    seeds = min(len(figures["accuracy"]) for figures in one["rows"].values())
    return "not found; one seed, so that it may be chance" if seeds < 2 else "not found"


def _comparable(title: str, one: Outcome) -> Claim:
    """No other method is both more accurate and fairer than lp-proj."""
    points = {r: (_late(f, "accuracy"), _late(f, "variance")) for r, f in _published(one).items()}
    point_by_row = {r: (a, v) for r, (a, v) in points.items() if a is not None and v is not None}
    ours = max((r for r in OURS if r in point_by_row), key=lambda r: point_by_row[r][0] or 0.0)
    accuracy, variance = point_by_row[ours]
    better = [
        r for r, (a, v) in point_by_row.items() if r not in OURS and a > accuracy and v < variance
    ]
    return Claim(
        f"{title}: lp-proj is accurate and fair, comparable to the others",
        f"{ours}: accuracy {accuracy:.4f}, variance {variance:.4f}; better in both: "
        + (", ".join(better) or "none"),
        "differs" if better else "agrees",
        _unknown(one) if better else "",
    )


def _collaborates(title: str, one: Outcome) -> Claim:
    means = {r: Figure.of(f["collaboration"]).mean for r, f in _published(one).items()}
    mean_by_row = {r: m for r, m in means.items() if m is not None}
    order = sorted(mean_by_row, key=lambda r: -mean_by_row[r])
    ours = max((r for r in OURS if r in mean_by_row), key=lambda r: mean_by_row[r])
    place = order.index(ours) + 1
    agrees = place <= (len(order) + 1) // 2
    return Claim(
        f"{title}: the correlation of lp-proj is comparable to that of the others",
        f"{ours} {mean_by_row[ours]:.3f}, place {place} of {len(order)}; best {order[0]} "
        f"{mean_by_row[order[0]]:.3f}",
        "agrees" if agrees else "differs",
        "" if agrees else _unknown(one),
    )


LATE = TEXTS["late"]


EVERY = tuple(CASES)
DRAWN = ("EMNIST", "CIFAR")  # of Figures 2 and 3
OUTCOME = "outcome.json"
FULL = "full"


def write_table4(folder: Path, scale: str, only: Sequence[str] = ()) -> list[Path]:
    """Run what is not stored yet, all data sets or some, and write the page of what there is."""
    for title in only:
        if title not in CASES:
            raise unknown(title, CASES, "data set of Table 4")
    outcomes = measured(folder, scale, only or EVERY, CASES)
    return table("lp-proj-table4", "Table 4", outcomes, EVERY, scale).write(folder)


def write_table10(folder: Path, scale: str) -> list[Path]:
    title = VOLUME.title
    outcomes = measured(folder, scale, [title], {title: VOLUME})
    return table("lp-proj-table10", "Table 10", outcomes, [title], scale).write(folder)


def write_figure2(folder: Path, scale: str) -> list[Path]:
    outcomes = drawn(folder, scale, {t: CASES[t] for t in DRAWN})
    return fairness("lp-proj-figure2", "Figure 2", outcomes, scale).write(folder)


def write_figure3(folder: Path, scale: str) -> list[Path]:
    outcomes = drawn(folder, scale, {t: CASES[t] for t in DRAWN})
    return training("lp-proj-figure3", "Figure 3", outcomes, scale).write(folder)


def write_figure5(folder: Path, scale: str) -> list[Path]:
    outcomes = drawn(folder, scale, CASES)
    return training("lp-proj-figure5", "Figure 5", outcomes, scale).write(folder)


def write_figure6(folder: Path, scale: str) -> list[Path]:
    outcomes = drawn(folder, scale, CASES)
    return fairness("lp-proj-figure6", "Figure 6", outcomes, scale).write(folder)


def write_figure7(folder: Path, scale: str) -> list[Path]:
    outcomes = drawn(folder, scale, CASES)
    return losses("lp-proj-figure7", "Figure 7", outcomes, scale).write(folder)


def write_figure8(folder: Path, scale: str) -> list[Path]:
    outcomes = drawn(folder, scale, {VOLUME.title: VOLUME})
    return training("lp-proj-figure8", "Figure 8", outcomes, scale).write(folder)


def write_figure9(folder: Path, scale: str) -> list[Path]:
    outcomes = drawn(folder, scale, CASES)
    return collaboration("lp-proj-figure9", "Figure 9", outcomes, scale).write(folder)


def measured(
    folder: Path, scale: str, titles: Sequence[str], cases: dict[str, Case]
) -> dict[str, Outcome]:
    """What there is of every data set: those of `titles` run now, others as they are stored.

    Where a data set was run at the full scale too, that is what is shown.
    """
    for title in titles:
        case = cases[title].here()
        runs = _runs(folder, scale, cases[title])
        store(runs / OUTCOME, outcome(case, case.sizes[scale], runs))
    outcomes = {t: _largest(folder, scale, case) for t, case in cases.items()}
    return {title: one for title, one in outcomes.items() if one}


def _largest(folder: Path, scale: str, case: Case) -> Outcome:
    full = stored(_runs(folder, FULL, case) / OUTCOME) if scale != FULL else {}
    if full:
        return full | {"scale": f"at the full scale, {full['scale']}"}
    return stored(_runs(folder, scale, case) / OUTCOME)


def drawn(folder: Path, scale: str, cases: dict[str, Case]) -> dict[str, Outcome]:
    """What the table has stored of these data sets; what it has not is run."""
    missing = [title for title, case in cases.items() if not _largest(folder, scale, case)]
    return measured(folder, scale, missing, cases)


def _runs(folder: Path, scale: str, case: Case) -> Path:
    name = case.title if case.here() is case else f"{case.title}, own files"
    return folder / ".runs" / f"lp-proj-{scale}" / name
