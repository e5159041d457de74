"""Pictures of runs: accuracy against cost, rows of tables, an advice on one page, delays."""

from __future__ import annotations

import csv
import math
import textwrap
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ..core.documents import plain
from ..core.files import on_disk, write_csv
from ..core.knobs import nearest
from ..core.plotting import (
    COLOURS,
    GREY,
    INK,
    STYLES,
    can_plot,
    new_figure,
    save_figure,
    style_axes,
)
from ..core.text import label
from .captions import Row, collapsed, figures_of, known, label_of, main_figure
from .targets import COUNTS, Curve, Goals, Point, sound

COLUMNS = ("method", "seed", "round", "accuracy", "loss", *COUNTS, "gradients", "seconds")
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


def default_panels(curves: Sequence[Curve], goals: Goals) -> tuple[str, ...]:
    """The panels of a picture unless the user names some."""
    return ("rounds", goals.count, "gradients", "time" if _timed(curves) else "seconds")


def _timed(curves: Sequence[Curve]) -> bool:
    return any("time" in point for curve in curves for point in curve)


def write_curves(
    curves: list[Curve], goals: Goals, directory: Path, against: Sequence[str] = ()
) -> list[Path]:
    """curves.csv, and curves.png if matplotlib is installed and some round was evaluated.

    The picture has a panel for rounds, messages, gradients and seconds (or the time of a run with
    a clock), or those of `against`. Where they cannot be written, a warning says so: the runs are
    worth more than their picture.
    """
    table = directory / "curves.csv"
    rows = plain([point for curve in curves for point in curve])
    against = against or default_panels(curves, goals)
    with on_disk("the picture of the curves", table, any_error=True):
        write_csv(table, rows, [*COLUMNS, "time"] if _timed(curves) else COLUMNS)
        return [table, *curve_picture(curves, goals, directory / "curves.png", against)]
    return []


def curve_picture(
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
    if not can_plot():
        return []
    points = [p for c in curves for p in c]
    quantity = "loss" if all(math.isnan(p["accuracy"]) for p in points) else "accuracy"
    lines = [
        (_style(i, len(curves)), c)
        for i, c in enumerate(curves)
        if any(sound(p, quantity) for p in c)
    ]
    wanted = [m for m in against or (goals.count,) if _known(points, m)]
    if not lines or not wanted:
        return []
    columns = 2 if len(wanted) > 1 else 1
    rows = math.ceil(len(wanted) / columns)
    tall = max(4.8, 3.6 * rows, NAME * len(lines))
    figure = new_figure(7 + 4.5 * (columns - 1), tall)
    panels = []
    for number, measure in enumerate(wanted):
        axes = figure.add_subplot(rows, columns, number + 1)
        panels.append(axes)
        _panel(axes, lines, measure, quantity, goals)
        if number % columns == 0:
            axes.set_ylabel(f"{quantity} on the clients' own test data")
    if len(lines) <= DIRECT and len(wanted) == 1:
        names_at_ends(panels[0])
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
    return [save_figure(figure, path)]


def _style(number: int, lines: int) -> dict[str, Any]:
    style: dict[str, Any] = {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": STYLES[number % len(STYLES)],
        "zorder": 3 - number / 100,
    }
    if lines > PLAIN:
        style |= {"marker": MARKERS[number % len(MARKERS)], "markersize": 4.5}
    return style


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
    costs = [_cost(p, measure) for c in moving for p in c if _cost(p, measure) > 0]
    ends = [max(_cost(p, measure) for p in c) for c in moving]
    ends = [e for e in ends if e > 0]
    is_traffic = measure in ("bytes", "values")
    if costs and (is_traffic or max(ends) > 5 * min(ends)):
        budget = goals.budget if measure == goals.count else 0
        _log_axis(axes, costs, budget, UNITS.get(measure, ""))
    elif measure == "rounds":
        axes.xaxis.get_major_locator().set_params(integer=True)
    _goal_lines(axes, goals, measure, quantity)
    silent = any(_silent(c, measure) for _, c in lines)
    note = "\n(a level line sends nothing in its rounds: the last one)" if silent else ""
    axes.set_xlabel(AXES[measure] + note)
    style_axes(axes)


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
    by_round = [rows for rows in by_round if all(sound(p, quantity) for p in rows)]
    x = [_mean([_cost(p, measure) for p in rows]) for rows in by_round]
    y = [_mean([p[quantity] for p in rows]) for rows in by_round]
    low = [min(p[quantity] for p in rows) for rows in by_round]
    high = [max(p[quantity] for p in rows) for rows in by_round]
    if len(x) < 2:
        style = {"marker": "o", **style}
    every = max(1, len(x) // 6)
    axes.plot(x, y, label=name, linewidth=1.6, markevery=every, **style)
    axes.fill_between(x, low, high, color=style["color"], alpha=0.12, linewidth=0)


def _log_axis(axes: Any, costs: list[float], budget: float, unit: str) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    wide = math.log10(max(*costs, budget) / min(costs)) > 3
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


def names_at_ends(axes: Any) -> None:
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
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


# -- the rows of tables as points --------------------------------------------------------------
def methods_picture(
    panels: Sequence[tuple[str, Sequence[Row]]], path: Path, local: str = "local"
) -> Path | None:
    """The main figure of every trained row with its 95 % interval, a panel per table.

    A line goes through the Local row with the most gradients: who is to its right gains by the
    others. Rows without a figure (collapsed) are left out. None without matplotlib.
    """
    if not can_plot():
        return None
    most = max(len(rows) for _, rows in panels)
    figure = new_figure(4.4 * len(panels), 1 + 0.3 * most)
    for place, (title, rows) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), place + 1)
        _points(axes, rows, local)
        axes.set_title(title, fontsize=10, loc="left")
    return save_figure(figure, path, dpi=110)


def _points(axes: Any, rows: Sequence[Row], local: str) -> None:
    measure = main_figure(rows)
    trained = [r for r in rows if r["seeds"] and not collapsed(r)]
    trained = [r for r in trained if known(figures_of(r, measure).get("mean"))]
    alone = [row for row in trained if row["method"] == local]
    if alone:
        base = max(alone, key=lambda row: row["gradients_per_client"])
        axes.axvline(figures_of(base, measure)["mean"], color=GREY, linewidth=0.9, linestyle="--")
    for place, row in enumerate(trained):
        value = figures_of(row, measure)
        colour = GREY if row in alone else COLOURS[0]
        half = value["ci95"] if known(value["ci95"]) else 0.0
        axes.errorbar(value["mean"], place, xerr=half, fmt="o", color=colour, capsize=2.5)
    names = [_folded(label(label_of(row), most=120), 26) for row in trained]
    axes.set_yticks(range(len(trained)), names, fontsize=8.5)
    axes.invert_yaxis()
    axes.set_xlabel(f"{measure} on the clients' own test data, ± 95 %", fontsize=9)
    axes.tick_params(labelsize=8.5)
    style_axes(axes)


# -- an advice on one page ---------------------------------------------------------------------
PAGE = (8.27, 11.69)  # inches: A4
LINE = 100  # characters of a line of words
LONG_LINE = 125  # of a line of notes, which are smaller
VERDICTS = {"gains": COLOURS[2], "loses": COLOURS[1], "cannot tell": "#b8b8b8"}
LONGEST = 40  # characters of a candidate's label
NAMED = 30  # up to so many clients are named


def advice_picture(advice: dict[str, Any], title: str, path: Path) -> Path | None:
    """Draw what `Advice.as_dict` gives; None without matplotlib."""
    if not can_plot():
        return None
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    text = [line for words in advice["words"] for line in textwrap.wrap(words, LINE)]
    notes = [line for note in advice["notes"] for line in textwrap.wrap(f"note: {note}", LONG_LINE)]
    rows = _with_gains(advice)
    panels = [_candidates] if rows else []
    panels += [_clients] if advice["clients"] else []
    panels += [_threshold] if advice["heterogeneity"] else []
    heights = {_candidates: 0.6 + 0.3 * len(rows), _clients: 3.2, _threshold: 0.9}
    margins = ConstrainedLayoutEngine(rect=(0.03, 0.02, 0.94, 0.96))
    figure = new_figure(*PAGE, layout=margins)
    sizes = [0.45 + 0.19 * len(text) + 0.15 * len(notes), *(heights[p] for p in panels)]
    rest = max(0.1, PAGE[1] - 1.5 - sum(sizes) - 0.5 * len(panels))
    grid = figure.add_gridspec(len(sizes) + 1, 1, height_ratios=[*sizes, rest])
    head = figure.add_subplot(grid[0])
    head.axis("off")
    head.text(0, 1, label(title), fontsize=13, color=INK, va="top", transform=head.transAxes)
    words = "\n".join(label(line) for line in text)
    at = 1 - 0.36 / sizes[0]
    head.text(0, at, words, fontsize=8.5, color=INK, va="top", transform=head.transAxes)
    below = "\n".join(label(line) for line in notes)
    at -= 0.19 * len(text) / sizes[0]
    head.text(0, at, below, fontsize=7, color=GREY, va="top", transform=head.transAxes)
    for number, panel in enumerate(panels, 1):
        axes = figure.add_subplot(grid[number])
        panel(axes, advice)
        style_axes(axes, grid="")
        axes.tick_params(labelsize=8, colors=INK)
    figure.add_subplot(grid[len(sizes)]).axis("off")
    return save_figure(figure, path, dpi=110)


def _finite(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and math.isfinite(low) and math.isfinite(high)


def _title(axes: Any, title: str, below: str) -> None:
    axes.set_title(title, fontsize=10, color=INK, loc="left")
    axes.set_xlabel(below, fontsize=8, color=INK)


def _with_gains(advice: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of candidates that have a gain over Local, then those of trees."""
    return [r for r in (*advice["candidates"], *advice["trees"]) if r["gain"] is not None]


def _candidates(axes: Any, advice: dict[str, Any]) -> None:
    """Gains over Local, with their intervals; trees, which are not federated, have hollow marks."""
    rows = _with_gains(advice)[::-1]
    for y, row in enumerate(rows):
        colour = COLOURS[0] if row["label"] == advice["choice"] else GREY
        if _finite(row["low"], row["high"]):
            axes.plot([row["low"], row["high"]], [y, y], color=colour, linewidth=2)
        filling = "white" if row["bytes"] is None else colour
        axes.plot([row["gain"]], [y], "o", color=colour, markerfacecolor=filling, markersize=6)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.axvspan(-advice["tie"], advice["tie"], color="#eeeeee", zorder=0)
    axes.set_yticks(range(len(rows)), [label(r["label"], LONGEST) for r in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    metric = advice["metric"].replace("_", " ")
    what = "lower loss" if metric == "loss" else metric
    note = f"gain over local ({what}), 95 % intervals together; grey: a tie"
    _title(axes, "Candidates against learning alone", note)


def _clients(axes: Any, advice: dict[str, Any]) -> None:
    """Every client's gain, the largest first."""
    clients = [c for c in advice["clients"] if c["gain"] is not None]
    clients.sort(key=lambda c: -c["gain"])
    for verdict, colour in VERDICTS.items():
        places = [(x, c) for x, c in enumerate(clients) if c["verdict"] == verdict]
        for x, c in places:
            if _finite(c["low"], c["high"]):
                axes.plot([x, x], [c["low"], c["high"]], color=colour, linewidth=1, alpha=0.6)
        xs, gains = [x for x, _ in places], [c["gain"] for _, c in places]
        name = f"{verdict}: {sum(c['verdict'] == verdict for c in advice['clients']):,}"
        axes.plot(xs, gains, "o", color=colour, markersize=3.5, label=name)
    axes.axhline(0, color=INK, linewidth=0.8)
    if len(clients) <= NAMED:
        names = [label(c["client"], 14) for c in clients]
        turned = {"rotation": 60, "ha": "right"} if max(map(len, names), default=0) > 3 else {}
        axes.set_xticks(range(len(clients)), names, fontsize=7, **turned)
    else:
        axes.set_xticks([])
    axes.set_ylabel(f"gain ({advice['metric']})", fontsize=8, color=INK)
    title = f"Who gains and who loses by {label(advice['gains_of'], LONGEST)}"
    _title(axes, title, "clients, from the largest gain to the largest loss")
    axes.legend(
        fontsize=8,
        frameon=False,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        borderaxespad=0.2,
        ncols=len(VERDICTS),
        handletextpad=0.2,
    )


def _threshold(axes: Any, advice: dict[str, Any]) -> None:
    """R^2 over C m/N, on a logarithmic axis."""
    h = advice["heterogeneity"]
    ratio, low, high = (
        h[key] if h[key] is not None else math.nan for key in ("ratio", "low", "high")
    )
    least = 0.01  # what is below, or negative, stands at the edge
    ends = [min(max(v, least), 1e4) for v in (low, high) if not math.isnan(v)]
    axes.set_xscale("log")
    if len(ends) == 2:
        axes.plot(ends, [0, 0], color=COLOURS[0], linewidth=2)
    if not math.isnan(ratio):
        axes.plot([max(ratio, least)], [0], "o", color=COLOURS[0], markersize=6)
    axes.axvline(1, color=INK, linewidth=0.8)
    axes.set_xlim(min([least, *ends]) * 0.8, max([100.0, *ends]) * 1.25)
    axes.set_ylim(-1, 1)
    axes.set_yticks([])
    for x, side, text in ((0.02, "left", "one model for all"), (0.98, "right", "everyone alone")):
        axes.text(x, 0.82, text, fontsize=8, color=GREY, ha=side, transform=axes.transAxes)
    title = "Heterogeneity against the m/N threshold"
    _title(axes, title, "R² over C m/N; the threshold is at 1")


# -- delays of messages -------------------------------------------------------------------------
POINTS = 4000  # messages of a seed that are drawn


def delay_picture(run: Path, path: Path) -> bool:
    """Delays and staleness in the order of arrival, a colour per seed; False if there are none."""
    files = sorted(run.glob("delays-seed-*.csv"))
    seeds = {file.stem.removeprefix("delays-seed-"): _read(file) for file in files}
    seeds = {seed: lines for seed, lines in seeds.items() if lines}
    if not seeds or not can_plot():
        return False
    figure = new_figure(9.5, 3.8)
    words = ("delay (start to arrival)", "staleness (steps of the server in between)")
    for column, up in enumerate(words):
        axes = figure.add_subplot(1, 2, column + 1)
        for number, (seed, lines) in enumerate(seeds.items()):
            every = max(1, len(lines) // POINTS)
            y = [line[column] for line in lines[::every]]
            x = range(1, len(lines) + 1, every)
            name = f"seed {seed}, mean {sum(v[column] for v in lines) / len(lines):.3g}"
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(x, y, ".", markersize=2.5, color=colour, label=name)
        axes.set_xlabel("message, in the order of arrival")
        axes.set_ylabel(up)
        where: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1)}
        axes.legend(fontsize=8, frameon=False, markerscale=3, ncols=3, **where)
        style_axes(axes)
        axes.tick_params(colors=GREY)
        axes.set_ylim(bottom=0)
    save_figure(figure, path, dpi=130)
    return True


def _read(file: Path) -> list[tuple[float, float]]:
    """(delay, staleness) of every message; what is no number is left out."""
    rows = []
    with file.open(newline="", encoding="utf-8") as text:
        for row in csv.DictReader(text):
            try:
                rows.append((float(row["delay"]), float(row["staleness"])))
            except (KeyError, TypeError, ValueError):
                continue
    return rows
