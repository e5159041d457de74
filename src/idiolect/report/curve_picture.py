"""curves.png: accuracy against rounds, bytes, gradients, seconds or time, a line per method."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ..core.collapse import COLLAPSE_LOSS
from ..core.files import write_atomic
from ..core.knobs import nearest
from ..core.text import label
from .goals import Curve, Goals, Point

INK = "#333333"
GREY = "#6e6e6e"
# of Okabe and Ito, which people with any colour vision can tell apart; its yellow is too light
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
# seven colours and four styles in turn: 28 lines that differ, and of two equal lines both are seen
STYLES = ("-", (0, (5, 1.5)), (0, (1.5, 1)), (0, (6, 1.5, 1.5, 1.5)))
MARKERS = ("o", "s", "^", "D", "v")
PLAIN = len(COLOURS)  # more lines than this have markers too
NAME = 0.26  # inches that a line of the legend takes
DIRECT = 5  # up to so many lines are named at their ends, not in a legend
AXES = {
    "rounds": "rounds",
    "bytes": "bytes sent, both directions",
    "values": "32-bit words sent, both directions, as the lp-proj paper counts",
    "gradients": "gradients per client",
    "seconds": "seconds of training and evaluation",
    "time": "time: simulated, or seconds of training by the real clock",
}
UNITS = {"bytes": "B", "seconds": "s"}
KEYS = {"rounds": "round"}  # where a point calls it by another name


def picture(
    curves: list[Curve], goals: Goals, path: Path, against: Sequence[str] = ()
) -> list[Path]:
    """Draw the mean over seeds, in a band from the lowest seed to the highest.

    A panel per measure of cost in `against` (bytes or values as in `goals`, if not given); accuracy
    or, for a regression, the loss. The list is empty without matplotlib, and where no round with a
    sound model was evaluated.
    """
    for measure in against:
        if measure not in AXES:
            raise nearest(measure, AXES, "against")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return []
    points = [p for c in curves for p in c]
    quantity = "loss" if all(math.isnan(p["accuracy"]) for p in points) else "accuracy"
    lines = [
        (_style(i, len(curves)), c)
        for i, c in enumerate(curves)
        if any(_sound(p, quantity) for p in c)
    ]
    wanted = [m for m in against or (goals.count,) if _known(points, m)]
    if not lines or not wanted:
        return []
    columns = 2 if len(wanted) > 1 else 1
    rows = math.ceil(len(wanted) / columns)
    tall = max(4.8, 3.6 * rows, NAME * len(lines))
    figure = Figure(figsize=(7 + 4.5 * (columns - 1), tall), layout="constrained")
    FigureCanvasAgg(figure)
    panels = []
    for number, measure in enumerate(wanted):
        axes = figure.add_subplot(rows, columns, number + 1)
        panels.append(axes)
        _panel(axes, lines, measure, quantity, goals)
        if number % columns == 0:
            axes.set_ylabel(f"{quantity} on the clients' own test data")
    if len(lines) <= DIRECT and len(wanted) == 1:
        _names_at_ends(panels[0])
    else:
        handles, names = panels[0].get_legend_handles_labels()
        figure.set_figwidth(figure.get_figwidth() + 2.5)
        figure.legend(
            handles,
            names,
            loc="outside right upper",
            frameon=False,
            fontsize=9,
            handlelength=3.2,
            labelspacing=0.7,
        )
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=150, format="png")
    write_atomic(path, drawn.getvalue())
    return [path]


def _style(number: int, lines: int) -> dict[str, Any]:
    style: dict[str, Any] = {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": STYLES[number % len(STYLES)],
        "zorder": 3 - number / 100,
    }
    if lines > PLAIN:
        style |= {"marker": MARKERS[number % len(MARKERS)], "markersize": 4.5}
    return style


def _sound(p: Point, quantity: str) -> bool:
    """The models have not collapsed, and there is a figure."""
    return p["loss"] <= COLLAPSE_LOSS and not math.isnan(p[quantity])


def _cost(p: Point, measure: str) -> float:
    return p.get(KEYS.get(measure, measure), math.nan)


def _silent(curve: Curve, measure: str) -> bool:
    """Nothing is sent in the rounds: at most what was agreed on before the first one."""
    if measure not in ("bytes", "values"):
        return False
    costs = {_cost(p, measure) for p in curve}
    rounds = {p["round"] for p in curve}
    return costs == {0} or (len(costs) == 1 and len(rounds) > 1)


def _known(points: list[Point], measure: str) -> bool:
    return any(not math.isnan(_cost(p, measure)) for p in points)


def _panel(
    axes: Any, lines: list[tuple[dict[str, Any], Curve]], measure: str, quantity: str, goals: Goals
) -> None:
    """One measure of cost: all lines."""
    for style, c in lines:
        _line(axes, c, measure, quantity, style)
    moving = [c for _, c in lines if not _silent(c, measure)]
    spent = [_cost(p, measure) for c in moving for p in c if _cost(p, measure) > 0]
    ends = [max(_cost(p, measure) for p in c) for c in moving]
    ends = [e for e in ends if e > 0]
    sent = measure in ("bytes", "values")
    if spent and (sent or max(ends) > 5 * min(ends)):
        budget = goals.budget if measure == goals.count else 0
        _log_axis(axes, spent, budget, UNITS.get(measure, ""))
    elif measure == "rounds":
        axes.xaxis.get_major_locator().set_params(integer=True)
    _goal_lines(axes, goals, measure, quantity)
    silent = any(_silent(c, measure) for _, c in lines)
    note = "\n(a level line sends nothing in its rounds: the last one)" if silent else ""
    axes.set_xlabel(AXES[measure] + note)
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _line(axes: Any, curve: Curve, measure: str, quantity: str, style: dict[str, Any]) -> None:
    ordered = sorted(curve, key=lambda p: p["round"])
    by_round = [list(rows) for _, rows in groupby(ordered, key=lambda p: p["round"])]
    name = _folded(label(curve[0]["method"], most=120))
    if _silent(curve, measure):
        # On a logarithmic axis there is no place for nothing sent: the last round stands for it.
        level = _mean([p[quantity] for p in by_round[-1]])
        plain = {"color": style["color"], "linestyle": style["linestyle"]}
        axes.axhline(level, label=name, linewidth=1.2, **plain)
        return
    by_round = [rows for rows in by_round if all(_sound(p, quantity) for p in rows)]
    x = [_mean([_cost(p, measure) for p in rows]) for rows in by_round]
    y = [_mean([p[quantity] for p in rows]) for rows in by_round]
    low = [min(p[quantity] for p in rows) for rows in by_round]
    high = [max(p[quantity] for p in rows) for rows in by_round]
    if len(x) < 2:
        style = {"marker": "o", **style}
    every = max(1, len(x) // 6)
    axes.plot(x, y, label=name, linewidth=1.6, markevery=every, **style)
    axes.fill_between(x, low, high, color=style["color"], alpha=0.12, linewidth=0)


def _log_axis(axes: Any, spent: list[float], budget: float, unit: str) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    wide = math.log10(max(*spent, budget) / min(spent)) > 3
    axes.xaxis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5), numticks=20))
    axes.xaxis.set_major_formatter(EngFormatter(unit))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _goal_lines(axes: Any, goals: Goals, measure: str, quantity: str) -> None:
    place: dict[str, Any] = {
        "xytext": (3, 4),
        "textcoords": "offset points",
        "color": INK,
        "fontsize": 9,
    }
    if goals.budget and measure == goals.count:
        axes.axvline(goals.budget, color=INK, linewidth=0.8, zorder=1)
        axes.annotate("budget", (goals.budget, 0), xycoords=("data", "axes fraction"), **place)
    if goals.target and quantity == goals.metric:
        text = f"target {goals.target:g}"
        axes.axhline(goals.target, color=INK, linewidth=0.8, zorder=1)
        axes.annotate(text, (0, goals.target), xycoords=("axes fraction", "data"), **place)


def _names_at_ends(axes: Any) -> None:
    """The name of each line beside its end; names that would overlap are moved apart."""
    lines = [line for line in axes.get_lines() if not line.get_label().startswith("_")]
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    ends = []
    for line in lines:
        name = line.get_label()
        place = (float(line.get_ydata()[-1]) - low) / (high - low)
        ends.append((place, (name.count("\n") + 1) * 0.055, name, line.get_color()))
    ends.sort()
    places = _apart([place for place, *_ in ends], [tall for _, tall, *_ in ends])
    for at, (_, _, name, colour) in zip(places, ends, strict=True):
        axes.annotate(
            name,
            (1.0, at),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            color=colour,
            fontsize=9,
            va="center",
            annotation_clip=False,
        )


def _apart(places: list[float], heights: list[float]) -> list[float]:
    """Places of texts from bottom to top, moved so that none overlaps the next, within 0 to 1.

    >>> [round(p, 2) for p in _apart([0.5, 0.52, 0.99], [0.1, 0.1, 0.1])]
    [0.5, 0.6, 0.95]
    """
    out = list(places)
    for i in range(1, len(out)):
        out[i] = max(out[i], out[i - 1] + (heights[i - 1] + heights[i]) / 2)
    limit = 1.0
    for i in reversed(range(len(out))):
        out[i] = min(out[i], limit - heights[i] / 2)
        limit = out[i] - heights[i] / 2
    return out


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _folded(text: str, width: int = 30) -> str:
    """A long label in several lines, broken at spaces.

    >>> _folded("fedavg channel=qsgd finetune_steps=2")
    'fedavg channel=qsgd\\nfinetune_steps=2'
    """
    lines = [""]
    for word in text.split(" "):
        if not lines[-1] or len(lines[-1]) + len(word) < width:
            lines[-1] = f"{lines[-1]} {word}".strip()
        else:
            lines.append(word)
    return "\n".join(lines)
