"""Tables 4 and 10 and Figures 2, 3 and 5 to 9 of the lp-proj paper: one outcome per federation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idiolect import paired_difference

from ..experiments import unknown
from ..marks import Figure, beside
from ..page import Facts, Page, Row, Verdict, page_from_text
from ..panels import Line, Panel, lines_of
from ..published import read_table
from .cases import CASES, MAIN, VOLUME, case_of
from .personal import ADDED, EQUAL, METHODS, TEXTS, UNTIED, Outcome, outcome, scale_of

TEXT = "lp-proj-personal"
COLUMNS = ("train loss", "variance of train loss", "accuracy", "variance of accuracy")
OURS = ("lp-proj-1", "lp-proj-2")
OUTCOME = "outcome.json"


# -- tables ---------------------------------------------------------------------------------------
def write_table(folder: Path, number: int, scale: str, only: Sequence[str] = ()) -> list[Path]:
    """Run what is not stored yet, all data sets or some, and write the page of what there is."""
    titles = (VOLUME,) if number == 10 else MAIN
    for title in only:
        if title not in titles:
            raise unknown(title, titles, f"data set of Table {number}")
    outcomes = measured(folder, scale, only or titles, titles)
    return table(number, outcomes, titles, scale).write(folder)


def table(number: int, outcomes: dict[str, Outcome], titles: Sequence[str], scale: str) -> Page:
    """The published table beside ours, as far as it was run."""
    published = read_table("lp-proj-table4", "lp-proj-table10")
    cells = []
    for title in titles:
        one = outcomes.get(title, {"rows": {}, "note": ""})
        rows = [*published[title], *ADDED]
        ours = {
            row: {column: Figure.of(one["rows"][row][column]) for column in COLUMNS}
            for row in rows
            if row in one["rows"]
        }
        name = _title(title, outcomes)
        cells += beside(name, published[title], ours, COLUMNS, bool(one["note"]))
    notes = {_title(t, outcomes): one["note"] for t, one in outcomes.items() if one["note"]}
    return page_from_text(
        f"lp-proj-table{number}",
        {},
        shared=TEXT,
        title=f"lp-proj, Table {number}: personalisation and fairness",
        scale=f"{scale}: " + "; ".join(f"{t}: {one['scale']}" for t, one in outcomes.items()),
        opening=opening(outcomes),
        cells=cells,
        reasons=notes,
        more={
            (_title(title, outcomes), row): {
                "chosen": figures["chosen"],
                "gradients/client": f"{figures['gradients']:,.0f}",
            }
            for title, one in outcomes.items()
            for row, figures in one["rows"].items()
        },
        seconds=sum(one["cpu_seconds"] for one in outcomes.values()),
    )


def _title(title: str, outcomes: Mapping[str, Outcome]) -> str:
    if title not in outcomes:
        return title
    one = outcomes[title]
    return f"{title}: {one['clients']} clients, d = {one['parameters']:,}"


def opening(outcomes: dict[str, Outcome]) -> str:
    """What the two rows show that the paper's table lacks."""
    lines = [TEXTS["opening"], ""]
    for title, one in outcomes.items():
        rows = one["rows"]
        if not {*ADDED, *OURS} <= {*rows}:
            continue
        means = _by_row(one, _mean("accuracy"))
        better = max(OURS, key=lambda row: means.get(row, -1.0))
        names = (better, EQUAL, UNTIED, "local")
        shown = "; ".join(f"{n} {Figure.of(rows[n]['accuracy'])}" for n in names if n in rows)
        alone = _gap(rows[better], rows[EQUAL])
        tie = _gap(rows["lp-proj-1"], rows[UNTIED])
        lines.append(f"- {title}: {shown}. {better} less Local: {alone}; the tie: {tie}.")
    return "\n".join(lines)


def _gap(ours: dict[str, Any], other: dict[str, Any]) -> str:
    """How much more accurate, and whether the seeds show it."""
    if None in ours["accuracy"] or None in other["accuracy"]:
        return "one of them has no result"
    difference, half = paired_difference(ours["accuracy"], other["accuracy"])
    if half is None:
        return f"{difference:+.4f} (one seed: it may be chance)"
    return f"{difference:+.4f} ± {half:.4f}"


# -- figures --------------------------------------------------------------------------------------
def write_figure(folder: Path, number: int, scale: str) -> list[Path]:
    """What the table has stored of these data sets; what it has not is run."""
    titles = {2: ("EMNIST", "CIFAR"), 3: ("EMNIST", "CIFAR"), 8: (VOLUME,)}.get(number, MAIN)
    missing = [title for title in titles if not _largest(folder, scale, title)]
    outcomes = measured(folder, scale, missing, titles)
    return figure(number, outcomes, scale).write(folder)


def figure(number: int, outcomes: dict[str, Outcome], scale: str) -> Page:
    """A picture of the runs of the tables, and what the paper says of it."""
    kind = FIGURES[number]
    words = TEXTS[kind.name]
    panels = [panel for title, one in outcomes.items() for panel in kind.panels(title, one)]
    notes = [f"{title}: {one['note']}" for title, one in outcomes.items() if one["note"]]
    verdicts: dict[str, Verdict] = {
        key: [judge(title, one) for title, one in outcomes.items()]
        for key, judge in kind.claims.items()
    }
    return page_from_text(
        f"lp-proj-figure{number}",
        {},
        verdicts,
        shared=TEXT,
        title=f"lp-proj, Figure {number}: {words['title']}",
        scale=f"{scale}: the runs of lp-proj-table4 or lp-proj-table10",
        opening="",
        chosen=" ".join([TEXTS["chosen"], TEXTS["late"], *notes]),
        pictures={words["caption"]: panels},
        figures=lines_of(panels),
    )


ROWS = [*METHODS, *ADDED]  # each in the same colour in every panel
LAST = {  # the figures of the best late round -> the same of the last round
    "accuracy": "accuracy",
    "variance": "variance of accuracy",
    "loss": "test loss",
    "loss_variance": "variance of test loss",
}


def _curves(title: str, one: Outcome) -> list[Panel]:
    """Train loss and test accuracy against rounds."""
    panels = []
    for key, label, log in (("train_loss", "train loss", "y"), ("accuracy", "accuracy", "")):
        lines = []
        for row, figures in one["rows"].items():
            by_seed = [curve for curve in figures["curves"][key] if None not in curve]
            if by_seed:
                mean = [sum(values) / len(values) for values in zip(*by_seed, strict=True)]
                lines.append(Line(row, figures["rounds"], mean, style=ROWS.index(row)))
        panels.append(Panel(f"{title}: {label}", "round", label, lines, log))
    return panels


def _points(
    x: Callable[[Row], float | None],
    y: Callable[[Row], float | None],
    across: str,
    up: str,
    log: str = "",
) -> Callable[[str, Outcome], list[Panel]]:
    """A panel with a point for every row."""

    def panels(title: str, one: Outcome) -> list[Panel]:
        places = {row: (x(figures), y(figures)) for row, figures in one["rows"].items()}
        lines = [
            Line(row, [a], [b], style=ROWS.index(row), points=True)
            for row, (a, b) in places.items()
            if a is not None and b is not None
        ]
        return [Panel(title, across, up, lines, log)]

    return panels


def _late(name: str) -> Callable[[Row], float | None]:
    """Of the best round from the 20th on, on test data; of the last round where none is so late."""

    def value(row: Row) -> float | None:
        values = [value for value in row["late"][name] if value is not None]
        if len(values) == len(row["accuracy"]):
            return sum(values) / len(values)
        return Figure.of(row[LAST[name]]).mean

    return value


def _mean(name: str) -> Callable[[Row], float | None]:
    return lambda row: Figure.of(row[name]).mean


# -- what the paper says --------------------------------------------------------------------------
def _by_row(one: Outcome, value: Callable[[Row], float | None]) -> dict[str, float]:
    """Of the rows that the paper has, where there is a value."""
    values = {row: value(f) for row, f in one["rows"].items() if row not in ADDED}
    return {row: number for row, number in values.items() if number is not None}


def _best_of_ours(values: Mapping[str, float]) -> str:
    return max((row for row in OURS if row in values), key=lambda row: values[row])


def _unknown(one: Outcome) -> str:
    seeds = min(len(figures["accuracy"]) for figures in one["rows"].values())
    return "not found; one seed, so that it may be chance" if seeds < 2 else "not found"


def _least_loss(title: str, one: Outcome) -> tuple[bool, Facts]:
    loss = _by_row(one, _mean("train loss"))
    least = min(loss, key=lambda row: loss[row])
    ours = ", ".join(f"{row} {loss[row]:.4f}" for row in OURS if row in loss)
    return least in OURS, {"title": title, "least": least, "loss": loss[least], "ours": ours}


def _best_accuracy(title: str, one: Outcome) -> tuple[bool, Facts]:
    accuracy = _by_row(one, _mean("accuracy"))
    best, row = max(accuracy, key=lambda row: accuracy[row]), _best_of_ours(accuracy)
    theirs, ours = (Figure.of(one["rows"][name]["accuracy"]) for name in (best, row))
    facts = {"title": title, "best": best, "theirs": theirs, "row": row, "ours": ours}
    near = accuracy[best] - accuracy[row] <= theirs.reach + ours.reach
    return near, facts | {"unknown": _unknown(one)}


def _comparable(title: str, one: Outcome) -> tuple[bool, Facts]:
    """No other method is both more accurate and fairer than lp-proj."""
    variance = _by_row(one, _late("variance"))
    accuracy = {row: a for row, a in _by_row(one, _late("accuracy")).items() if row in variance}
    ours = _best_of_ours(accuracy)
    better = [
        row
        for row in accuracy
        if row not in OURS and accuracy[row] > accuracy[ours] and variance[row] < variance[ours]
    ]
    facts = {"title": title, "row": ours, "accuracy": accuracy[ours], "variance": variance[ours]}
    facts |= {"better": ", ".join(better) or "none", "unknown": _unknown(one)}
    return not better, facts


def _collaborates(title: str, one: Outcome) -> tuple[bool, Facts]:
    mean = _by_row(one, _mean("collaboration"))
    order = sorted(mean, key=lambda row: -mean[row])
    ours = _best_of_ours(mean)
    place = order.index(ours) + 1
    facts = {"title": title, "row": ours, "mean": mean[ours], "place": place, "rows": len(order)}
    facts |= {"best": order[0], "best_mean": mean[order[0]], "unknown": _unknown(one)}
    return place <= (len(order) + 1) // 2, facts


@dataclass(frozen=True)
class FigureKind:
    """What a picture of the outcomes draws, and the statements that are judged by them."""

    name: str  # in the texts
    panels: Callable[[str, Outcome], list[Panel]]
    claims: Mapping[str, Callable[[str, Outcome], tuple[bool, Facts]]]


TRAINING = FigureKind(
    "training", _curves, {"least_loss": _least_loss, "best_accuracy": _best_accuracy}
)
FAIRNESS = FigureKind(
    "fairness",
    _points(_late("accuracy"), _late("variance"), "accuracy", "variance"),
    {"comparable": _comparable},
)
LOSSES = FigureKind(
    "losses", _points(_late("loss"), _late("loss_variance"), "test loss", "variance", "xy"), {}
)
COLLABORATION = FigureKind(
    "collaboration",
    _points(_mean("accuracy"), _mean("collaboration"), "accuracy", "correlation"),
    {"collaborates": _collaborates},
)
FIGURES = {
    2: FAIRNESS,
    3: TRAINING,
    5: TRAINING,
    6: FAIRNESS,
    7: LOSSES,
    8: TRAINING,
    9: COLLABORATION,
}


# -- stored outcomes ------------------------------------------------------------------------------
def measured(
    folder: Path, scale: str, to_run: Sequence[str], titles: Sequence[str]
) -> dict[str, Outcome]:
    """What there is of every data set: those of `to_run` run now, others as they are stored.

    Where a data set was run at the full scale too, that is what is shown.
    """
    for title in to_run:
        case, place = case_of(title), _runs(folder, scale, title)
        one = outcome(title, case, scale_of(case, scale), place)
        place.mkdir(parents=True, exist_ok=True)
        (place / OUTCOME).write_text(json.dumps(one), "utf-8")
    outcomes = {title: _largest(folder, scale, title) for title in titles}
    return {title: one for title, one in outcomes.items() if one}


def _largest(folder: Path, scale: str, title: str) -> Outcome:
    """What was measured before, at the full scale where it was; {} where nothing was."""
    for at, words in {"full": "at the full scale, ", scale: ""}.items():
        path = _runs(folder, at, title) / OUTCOME
        if path.exists():
            one = json.loads(path.read_text("utf-8"))
            return one | {"scale": words + one["scale"]}
    return {}


def _runs(folder: Path, scale: str, title: str) -> Path:
    name = title if case_of(title) is CASES[title] else f"{title}, own files"
    return folder / ".runs" / f"lp-proj-{scale}" / name
