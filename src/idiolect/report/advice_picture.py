"""advice.png: one page with the words, the candidates, the clients and the threshold."""

from __future__ import annotations

import io
import math
import textwrap
from pathlib import Path
from typing import Any

from ..core.files import write_atomic
from ..core.text import label
from .curve_picture import COLOURS, GREY, INK

PAGE = (8.27, 11.69)  # inches: A4
LINE = 100  # characters of a line of words
VERDICTS = {"gains": COLOURS[2], "loses": COLOURS[1], "cannot be told": "#b8b8b8"}
LONGEST = 40  # characters of a candidate's label
NAMED = 30  # up to so many clients are named


def draw(advice: dict[str, Any], title: str, path: Path) -> Path | None:
    """Draw what `Advice.as_dict` gives; None without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        return None
    text = [line for said in advice["words"] for line in textwrap.wrap(said, LINE)]
    rows = [r for r in advice["candidates"] if r["gain"] is not None]
    panels = [_candidates] if rows else []
    panels += [_clients] if advice["clients"] else []
    panels += [_threshold] if advice["heterogeneity"] else []
    heights = {_candidates: 0.6 + 0.3 * len(rows), _clients: 3.2, _threshold: 0.9}
    margins = ConstrainedLayoutEngine(rect=(0.03, 0.02, 0.94, 0.96))
    figure = Figure(figsize=PAGE, layout=margins)
    FigureCanvasAgg(figure)
    sizes = [0.45 + 0.19 * len(text), *(heights[p] for p in panels)]
    rest = max(0.1, PAGE[1] - 1.5 - sum(sizes) - 0.5 * len(panels))
    grid = figure.add_gridspec(len(sizes) + 1, 1, height_ratios=[*sizes, rest])
    head = figure.add_subplot(grid[0])
    head.axis("off")
    head.text(0, 1, label(title), fontsize=13, color=INK, va="top", transform=head.transAxes)
    words = "\n".join(label(line) for line in text)
    at = 1 - 0.36 / sizes[0]
    head.text(0, at, words, fontsize=8.5, color=INK, va="top", transform=head.transAxes)
    for number, panel in enumerate(panels, 1):
        axes = figure.add_subplot(grid[number])
        panel(axes, advice)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8, colors=INK)
    figure.add_subplot(grid[len(sizes)]).axis("off")
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=110, format="png", metadata={"Software": None})
    write_atomic(path, drawn.getvalue())
    return path


def _finite(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and math.isfinite(low) and math.isfinite(high)


def _candidates(axes: Any, advice: dict[str, Any]) -> None:
    """Gains over Local, with their intervals."""
    rows = [r for r in advice["candidates"] if r["gain"] is not None][::-1]
    for y, row in enumerate(rows):
        chosen = row["label"] == advice["choice"]
        colour = COLOURS[0] if chosen else GREY
        if _finite(row["low"], row["high"]):
            axes.plot([row["low"], row["high"]], [y, y], color=colour, linewidth=2)
        axes.plot([row["gain"]], [y], "o", color=colour, markersize=6)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.axvspan(-advice["tie"], advice["tie"], color="#eeeeee", zorder=0)
    axes.set_yticks(range(len(rows)), [label(r["label"], LONGEST) for r in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    what = "accuracy" if advice["metric"] == "accuracy" else "lower loss"
    axes.set_title("Candidates against learning alone", fontsize=10, color=INK, loc="left")
    axes.set_xlabel(
        f"gain over local ({what}), 95 % intervals together; grey: a tie", fontsize=8, color=INK
    )


def _clients(axes: Any, advice: dict[str, Any]) -> None:
    """Every client's gain, the largest first."""
    told = [c for c in advice["clients"] if c["gain"] is not None]
    told.sort(key=lambda c: -c["gain"])
    for verdict, colour in VERDICTS.items():
        places = [(x, c) for x, c in enumerate(told) if c["verdict"] == verdict]
        for x, c in places:
            if _finite(c["low"], c["high"]):
                axes.plot([x, x], [c["low"], c["high"]], color=colour, linewidth=1, alpha=0.6)
        xs, gains = [x for x, _ in places], [c["gain"] for _, c in places]
        name = f"{verdict}: {sum(c['verdict'] == verdict for c in advice['clients']):,}"
        axes.plot(xs, gains, "o", color=colour, markersize=3.5, label=name)
    axes.axhline(0, color=INK, linewidth=0.8)
    if len(told) <= NAMED:
        names = [label(c["client"], 14) for c in told]
        turned = {"rotation": 60, "ha": "right"} if max(map(len, names), default=0) > 3 else {}
        axes.set_xticks(range(len(told)), names, fontsize=7, **turned)
    else:
        axes.set_xticks([])
    axes.set_xlabel("clients, from the largest gain to the largest loss", fontsize=8, color=INK)
    axes.set_ylabel(f"gain ({advice['metric']})", fontsize=8, color=INK)
    title = f"Who gains and who loses by {label(advice['gains_of'], LONGEST)}"
    axes.set_title(title, fontsize=10, color=INK, loc="left")
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
    axes.text(0.02, 0.82, "one model for all", fontsize=8, color=GREY, transform=axes.transAxes)
    axes.text(
        0.98, 0.82, "everyone alone", fontsize=8, color=GREY, ha="right", transform=axes.transAxes
    )
    axes.set_title("Heterogeneity against the m/N threshold", fontsize=10, color=INK, loc="left")
    axes.set_xlabel("R² over C m/N; the threshold is at 1", fontsize=8, color=INK)
