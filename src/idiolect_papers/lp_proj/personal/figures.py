"""Figures 2, 3 and 5 to 9: curves of training, and the trade-offs of accuracy and fairness."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...marks import Figure
from ...page import Claim, Page
from ...panels import Line, Panel
from .measure import Outcome
from .pages import CHOSEN, PRINTED
from .rows import EQUAL, METHODS, UNTIED

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


def training(name: str, number: str, found: dict[str, Outcome], scale: str) -> Page:
    """Train loss and test accuracy against rounds (Figures 3, 5 and 8)."""
    panels = [
        _curves(title, one, key, label, log)
        for title, one in found.items()
        for key, label, log in (("train_loss", "train loss", "y"), ("accuracy", "accuracy", ""))
    ]
    claims = [
        *(_least_loss(title, one) for title, one in found.items()),
        *(_best_accuracy(title, one) for title, one in found.items()),
    ]
    caption = "Train loss and test accuracy against rounds, means over seeds"
    return _page(name, f"lp-proj, {number}: training", found, scale, {caption: panels}, claims)


def fairness(name: str, number: str, found: dict[str, Outcome], scale: str) -> Page:
    """Variance of accuracies against accuracy (Figures 2 and 6)."""
    point: Point = lambda row: (_late(row, "accuracy"), _late(row, "variance"))  # noqa: E731
    panels = [_points(t, one, point, "accuracy", "variance") for t, one in found.items()]
    claims = [_comparable(title, one) for title, one in found.items()]
    caption = "Variance over clients against accuracy: the lower right is better"
    title = f"lp-proj, {number}: accuracy and performance fairness"
    return _page(name, title, found, scale, {caption: panels}, claims)


def losses(name: str, number: str, found: dict[str, Outcome], scale: str) -> Page:
    """Variance of test losses against test loss (Figure 7)."""
    point: Point = lambda row: (_late(row, "loss"), _late(row, "loss_variance"))  # noqa: E731
    panels = [_points(t, one, point, "test loss", "variance", "xy") for t, one in found.items()]
    caption = "Variance of test losses against test loss: the lower left is better"
    title = f"lp-proj, {number}: test loss and its variance"
    return _page(name, title, found, scale, {caption: panels}, [])


def collaboration(name: str, number: str, found: dict[str, Outcome], scale: str) -> Page:
    """Collaboration fairness against accuracy (Figure 9)."""

    def point(row: Row) -> tuple[float | None, float | None]:
        return Figure.of(row["accuracy"]).mean, Figure.of(row["collaboration"]).mean

    panels = [_points(t, one, point, "accuracy", "correlation") for t, one in found.items()]
    claims = [_collaborates(title, one) for title, one in found.items()]
    caption = "Correlation of accuracy alone with accuracy in the end: the upper right is better"
    title = f"lp-proj, {number}: collaboration fairness"
    return _page(name, title, found, scale, {caption: panels}, claims)


def _page(
    name: str,
    title: str,
    found: dict[str, Outcome],
    scale: str,
    pictures: dict[str, list[Panel]],
    claims: Sequence[Claim],
) -> Page:
    notes = [f"{t}: {one['note']}" for t, one in found.items() if one["note"]]
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
    found = [value for value in row["late"][name] if value is not None]
    if len(found) == len(row["accuracy"]):
        return sum(found) / len(found)
    return Figure.of(row[LAST[name]]).mean


# -- what the paper says --------------------------------------------------------------------------
def _published(one: Outcome) -> dict[str, Row]:
    """The rows that the paper has."""
    return {row: f for row, f in one["rows"].items() if row not in (EQUAL, UNTIED)}


def _least_loss(title: str, one: Outcome) -> Claim:
    rows = _published(one)
    loss = {row: Figure.of(f["train loss"]).mean for row, f in rows.items()}
    known = {row: value for row, value in loss.items() if value is not None}
    least = min(known, key=lambda row: known[row])
    text = f"least train loss: {least} ({known[least]:.4f})"
    ours = ", ".join(f"{row} {known[row]:.4f}" for row in OURS if row in known)
    agrees = least in OURS
    return Claim(
        f"{title}: lp-proj has the least train loss",
        f"{text}; {ours}",
        "agrees" if agrees else "differs",
        "" if agrees else "more gradients per round fit the training data more closely",
    )


def _best_accuracy(title: str, one: Outcome) -> Claim:
    figures = {row: Figure.of(f["accuracy"]) for row, f in _published(one).items()}
    known = {row: f for row, f in figures.items() if f.mean is not None}
    best = max(known, key=lambda row: known[row].mean or 0.0)
    ours = max((row for row in OURS if row in known), key=lambda row: known[row].mean or 0.0)
    gap = (known[best].mean or 0.0) - (known[ours].mean or 0.0)
    near = gap <= known[best].reach + known[ours].reach
    return Claim(
        f"{title}: lp-proj is comparable or superior in test accuracy",
        f"best: {best} {known[best]}; {ours} {known[ours]}",
        "agrees" if near else "differs",
        "" if near else _unknown(one),
    )


def _unknown(one: Outcome) -> str:
    seeds = min(len(figures["accuracy"]) for figures in one["rows"].values())
    return "not found; one seed, so that it may be chance" if seeds < 2 else "not found"


def _comparable(title: str, one: Outcome) -> Claim:
    """No other method is both more accurate and fairer than lp-proj."""
    points = {r: (_late(f, "accuracy"), _late(f, "variance")) for r, f in _published(one).items()}
    known = {r: (a, v) for r, (a, v) in points.items() if a is not None and v is not None}
    ours = max((r for r in OURS if r in known), key=lambda r: known[r][0] or 0.0)
    accuracy, variance = known[ours]
    better = [r for r, (a, v) in known.items() if r not in OURS and a > accuracy and v < variance]
    return Claim(
        f"{title}: lp-proj is accurate and fair, comparable to the others",
        f"{ours}: accuracy {accuracy:.4f}, variance {variance:.4f}; better in both: "
        + (", ".join(better) or "none"),
        "differs" if better else "agrees",
        _unknown(one) if better else "",
    )


def _collaborates(title: str, one: Outcome) -> Claim:
    means = {r: Figure.of(f["collaboration"]).mean for r, f in _published(one).items()}
    known = {r: m for r, m in means.items() if m is not None}
    order = sorted(known, key=lambda r: -known[r])
    ours = max((r for r in OURS if r in known), key=lambda r: known[r])
    place = order.index(ours) + 1
    agrees = place <= (len(order) + 1) // 2
    return Claim(
        f"{title}: the correlation of lp-proj is comparable to that of the others",
        f"{ours} {known[ours]:.3f}, place {place} of {len(order)}; best {order[0]} "
        f"{known[order[0]]:.3f}",
        "agrees" if agrees else "differs",
        "" if agrees else _unknown(one),
    )


LATE = """\
Points are of the best evaluated round from the 20th on, chosen on test data as in the paper (where
fewer rounds were run: of the last one). Correlations are with Local at equal gradients."""
