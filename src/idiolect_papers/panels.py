"""Pictures of experiments: small panels of lines in one style."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from idiolect.report import COLOURS, GREY, INK, STYLES, names_at_ends

COLUMNS = 3  # panels side by side
EVEN = {4: 2, 8: 4}  # so many panels: so many side by side, none left alone
MARKERS = "os^D"
FEW = 6  # places of a logarithmic axis that have a mark each
MANY = 5  # labels of a panel: more stand once, below the picture
WIDE = 30  # a logarithmic axis over this range has room for its decades only


@dataclass(frozen=True)
class Line:
    """A line of a panel, with a band from `low` to `high` where they are given."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    style: int | None = None  # the same number, the same colour; by default its place in the panel
    formula: bool = False  # of a theory, not measured: a thin dashed line
    points: bool = False  # measured at few places: markers


@dataclass(frozen=True)
class Panel:
    """Lines over one pair of axes."""

    title: str
    across: str  # what the horizontal axis is
    up: str
    lines: Sequence[Line]
    log: str = ""  # which axes are logarithmic: "", "x", "y" or "xy"
    vertical: Sequence[tuple[float, str]] = ()  # marked places of the horizontal axis
    ticks: Mapping[float, str] = field(default_factory=dict)  # of the horizontal axis, by place
    direct: bool = False  # the label of each line stands at its end, in place of a legend


def lines_of(panels: Sequence[Panel]) -> dict[str, dict[str, list[list[float]]]]:
    """The numbers of a picture: panel -> line -> [x, y]."""
    return {p.title: {line.label: [[*line.x], [*line.y]] for line in p.lines} for p in panels}


def new_picture(width: float, height: float) -> Any:
    """An empty picture of this size in inches, as matplotlib's Figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw(panels: Sequence[Panel], path: Path) -> Path:
    """Write the picture, panels side by side."""
    columns = EVEN.get(len(panels), min(COLUMNS, len(panels)))
    rows = -(-len(panels) // columns)
    figure = new_picture(0.6 + 4.2 * columns, 0.4 + 3.5 * rows)
    shared = _shared(panels) and not any(panel.direct for panel in panels)
    for number, panel in enumerate(panels, 1):
        _panel(figure.add_subplot(rows, columns, number), panel, legend=not shared)
    if shared:
        _legend(figure, columns)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    return path


def _mark(axis: Any, values: Sequence[float], places: Sequence[float] = ()) -> None:
    """A logarithmic axis: marks at the places given, if these are few; else as there is room."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axis.set_minor_formatter(NullFormatter())
    positives = [value for value in values if value > 0]
    if 0 < len(places) <= FEW:
        axis.set_ticks(places, [f"{place:g}" for place in places])
        axis.set_ticks([], minor=True)
    elif positives and max(positives) < WIDE * min(positives):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))


def _shared(panels: Sequence[Panel]) -> bool:
    """Whether panels have many labels, the same ones, each in one style."""
    styles = [
        {line.label: place if line.style is None else line.style}
        for panel in panels
        for place, line in enumerate(panel.lines)
        if line.label
    ]
    style_by_label = {label: style for one in styles for label, style in one.items()}
    same = all(one.items() <= style_by_label.items() for one in styles)
    return MANY < len(style_by_label) == max(len(panel.lines) for panel in panels) and same


def _legend(figure: Any, columns: int) -> None:
    """One for all panels, below them: the same label has the same style in all of them."""
    handle_by_label: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        handle_by_label |= dict(zip(labels, handles, strict=True))
    place = {"loc": "outside lower center", "ncols": 2 * columns, "fontsize": 8, "frameon": False}
    figure.legend(handle_by_label.values(), handle_by_label.keys(), **place)


def _panel(axes: Any, panel: Panel, legend: bool = True) -> None:
    axes.set_title(panel.title, fontsize=10, color=INK)
    axes.set_xlabel(panel.across, color=INK)
    axes.set_ylabel(panel.up, color=INK)
    if "x" in panel.log:
        axes.set_xscale("log")
        measured = sorted({x for line in panel.lines if line.points for x in line.x})
        _mark(axes.xaxis, [x for line in panel.lines for x in line.x], measured)
    if panel.ticks:
        axes.set_xticks([*panel.ticks], [*panel.ticks.values()])
    if "y" in panel.log:
        axes.set_yscale("log")
        _mark(axes.yaxis, [y for line in panel.lines for y in line.y])
    for place, line in enumerate(panel.lines):
        number = place if line.style is None else line.style
        colour = COLOURS[number % len(COLOURS)]
        style = STYLES[number // len(COLOURS) % len(STYLES)]
        if line.formula:
            axes.plot(line.x, line.y, color=colour, linestyle=(0, (2, 2)), linewidth=1)
            axes.lines[-1].set_label(line.label)
            continue
        marker = MARKERS[number // len(COLOURS) % len(MARKERS)] if line.points else ""
        axes.plot(line.x, line.y, color=colour, linestyle=style, linewidth=1.5, label=line.label)
        axes.lines[-1].set(marker=marker, markersize=3.5)
        if line.low is not None and line.high is not None:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
    for x, text in panel.vertical:
        axes.axvline(x, color=GREY, linewidth=0.8, linestyle=":")
        axes.annotate(
            text,
            (x, 1),
            xycoords=("data", "axes fraction"),
            fontsize=7,
            color=GREY,
            rotation=90,
            ha="right",
            va="top",
        )
    if panel.direct:
        names_at_ends(axes)
    elif legend and any(line.label for line in panel.lines):
        axes.legend(fontsize=7, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#eeeeee", linewidth=0.6)
