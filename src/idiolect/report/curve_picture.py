"""curves.png: accuracy against what was sent, one line per method."""

from __future__ import annotations

import io
import math
from itertools import groupby
from pathlib import Path
from typing import Any

from ..core.files import write_atomic
from ..core.text import label
from .goals import Curve, Goals, Point, sound

INK = "#333333"
GREY = "#6e6e6e"
COLOURS = ("#1b6ca8", "#c8553d", "#5f9e6e", "#d98e32", "#7a5ba6", "#2a9d9d", "#b0447c", "#6b705c")
STYLES = ("-", (0, (5, 1.5)), (0, (1.5, 1)))  # in turn, so that of two equal lines both are seen
AXES = {
    "bytes": "bytes sent, both directions",
    "values": "32-bit words sent, both directions, as the lp-proj paper counts",
}


def picture(curves: list[Curve], goals: Goals, path: Path) -> list[Path]:
    """Draw the mean over seeds, in a band from the lowest seed to the highest.

    The list is empty without matplotlib, and where no round with a sound model was evaluated.
    """
    lines = [(i, c) for i, c in enumerate(curves) if any(sound(p) for p in c)]
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return []
    if not lines:
        return []
    figure = Figure(figsize=(9.5, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for i, c in lines:
        style = {
            "color": COLOURS[i % len(COLOURS)],
            "linestyle": STYLES[i % len(STYLES)],
            "zorder": 3 - i / 100,
        }
        _line(axes, c, goals.count, style)
    if sent := [p[goals.count] for _, c in lines for p in c if p[goals.count]]:
        _log_axis(axes, sent, goals)
    _goal_lines(axes, goals)
    axes.set_xlabel(AXES[goals.count])
    axes.set_ylabel("accuracy on the clients' own test data")
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=150, format="png")
    write_atomic(path, drawn.getvalue())
    return [path]


def _line(axes: Any, curve: Curve, unit: str, style: dict[str, Any]) -> None:
    ordered = sorted(curve, key=lambda p: p["round"])
    by_round = [list(rows) for _, rows in groupby(ordered, key=lambda p: p["round"])]
    name = _folded(label(curve[0]["method"], most=120))
    if not any(p[unit] for p in curve):
        # On a logarithmic axis there is no place for nothing sent: the last round stands for it.
        axes.axhline(
            _mean(by_round[-1], "accuracy"),
            label=f"{name}\n(sends nothing; last round)",
            linewidth=1.2,
            color=GREY,
            linestyle=(0, (8, 3)),
        )
        return
    by_round = [rows for rows in by_round if all(sound(p) for p in rows)]
    x = [_mean(rows, unit) for rows in by_round]
    y = [_mean(rows, "accuracy") for rows in by_round]
    low = [min(p["accuracy"] for p in rows) for rows in by_round]
    high = [max(p["accuracy"] for p in rows) for rows in by_round]
    axes.plot(x, y, label=name, linewidth=1.8, marker="o" if len(x) < 2 else None, **style)
    axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _log_axis(axes: Any, sent: list[float], goals: Goals) -> None:
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    wide = math.log10(max(*sent, goals.budget) / min(sent)) > 3
    axes.xaxis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5), numticks=20))
    axes.xaxis.set_major_formatter(EngFormatter("B" if goals.count == "bytes" else ""))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _goal_lines(axes: Any, goals: Goals) -> None:
    place: dict[str, Any] = {
        "xytext": (3, 4),
        "textcoords": "offset points",
        "color": INK,
        "fontsize": 9,
    }
    if goals.budget:
        axes.axvline(goals.budget, color=INK, linewidth=0.8, zorder=1)
        axes.annotate("budget", (goals.budget, 0), xycoords=("data", "axes fraction"), **place)
    if goals.target and goals.metric == "accuracy":
        text = f"target {goals.target:g}"
        axes.axhline(goals.target, color=INK, linewidth=0.8, zorder=1)
        axes.annotate(text, (0, goals.target), xycoords=("axes fraction", "data"), **place)


def _mean(rows: list[Point], key: str) -> float:
    return sum(p[key] for p in rows) / len(rows)


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
