"""Delays and staleness of a run's messages, from the files that it has written."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from ..core.files import write_atomic
from .curve_picture import COLOURS, GREY

POINTS = 4000  # messages of a seed that are drawn


def delay_picture(run: Path, path: Path) -> bool:
    """Draw them by arrival, a colour per seed; False where there are none, or no matplotlib."""
    files = sorted(run.glob("delays-seed-*.csv"))
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    seeds = {file.stem.removeprefix("delays-seed-"): _read(file) for file in files}
    seeds = {seed: lines for seed, lines in seeds.items() if lines}
    if not seeds:
        return False
    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    FigureCanvasAgg(figure)
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
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e4e4e4", linewidth=0.6)
        axes.tick_params(colors=GREY)
        axes.set_ylim(bottom=0)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=130, format="png")
    write_atomic(path, drawn.getvalue())
    return True


def _read(file: Path) -> list[tuple[float, float]]:
    """(delay, staleness) of every message; what is no number is left out."""
    found = []
    with file.open(newline="", encoding="utf-8") as text:
        for row in csv.DictReader(text):
            try:
                found.append((float(row["delay"]), float(row["staleness"])))
            except (KeyError, TypeError, ValueError):
                continue
    return found
