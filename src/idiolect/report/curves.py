"""Accuracy against what was sent: the papers' two columns (accuracy at a budget, cost of a target), curves.csv and curves.png."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from ..core.knobs import SettingError
from ..host.scores import interval
from ..run.directory import plain
from ..run.result import ABSURD, Result
from ..run.settings import Settings

Point = dict[
    str, Any
]  # method, seed, round, accuracy, loss, bytes, values, gradients: one evaluated round of one seed
Curve = list[Point]  # of one method: all rounds of the first seed, then of the next
COUNTS = ("bytes", "values")
COLUMNS = ("method", "seed", "round", "accuracy", "loss", *COUNTS, "gradients")


def curve(label: str, result: Result) -> Curve:
    """The evaluated rounds of a result; bytes and values are totals so far, of all clients and both directions."""
    return [point(label, row) for row in result.rounds_table()]


def point(label: str, row: dict[str, Any]) -> Point:
    """A row of metrics.csv as a point.

    >>> row = {"seed": 0, "round": 1, "accuracy": 0.5, "loss": 1.0, "bytes_up": 8, "bytes_down": 8, "values_up": 2, "values_down": 2}
    >>> point("fedavg", row | {"gradients_per_client": 5.0})["bytes"]
    16
    """
    sent = {unit: row[f"{unit}_up"] + row[f"{unit}_down"] for unit in COUNTS}
    return {
        "method": label,
        **{k: row[k] for k in COLUMNS[1:5]},
        **sent,
        "gradients": row["gradients_per_client"],
    }


# -- the two columns ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Goals:
    """What a comparison asks of every method: its accuracy within a budget, and what a target accuracy costs; 0 = not asked."""

    budget: int = 0  # in `count`: bytes really sent, or 32-bit words as the lp-proj paper counts
    target: float = 0.0
    count: str = "bytes"

    @classmethod
    def of(cls, settings: Sequence[Settings], count: str = "bytes") -> Goals:
        """The goals in the settings of a comparison; refuses what cannot be seen or differs between its rows."""
        first = settings[0]
        for s in settings:
            for name in ("bytes", "target_accuracy"):
                if getattr(s, name) != getattr(first, name):
                    raise SettingError(
                        f"{name}: {getattr(s, name)!r} is not accepted; a comparison has one for all its methods"
                    )
                if getattr(s, name) and not s.eval_every:
                    raise SettingError(
                        f"eval_every: 0 is not accepted with {name} in a comparison; a whole number >= 1, to see it pass"
                    )
        if count not in COUNTS:
            raise SettingError(
                f"count: {count!r} is not accepted; one of {', '.join(map(repr, COUNTS))}"
            )
        return cls(first.bytes, first.target_accuracy, count)

    def reached(self, curve: Curve) -> dict[str, Any]:
        """What a method made of the goals: `at_budget` and `to_target` counted in bytes, and the same `_values`.

        >>> row = {"seed": 0, "loss": 1.0}
        >>> rounds = [row | {"round": r, "accuracy": 0.2 * r, "bytes": 10 * r, "values": r} for r in (1, 2, 3)]
        >>> got = Goals(budget=25, target=0.5).reached(rounds)
        >>> got["at_budget"]["mean"], got["to_target"]["mean"]
        (0.4, 30.0)
        """
        seeds = [list(rows) for _, rows in groupby(curve, key=lambda p: p["seed"])]
        out: dict[str, Any] = {}
        for unit in COUNTS:
            end = "" if unit == "bytes" else f"_{unit}"
            if self.budget:
                ends = [_last_within(rows, self.budget, unit) for rows in seeds]
                out[f"at_budget{end}"] = _over_seeds(ends, "accuracy")
                out[f"at_budget{end}"]["unspent"] = any(
                    _unspent(rows, self.budget, unit) for rows in seeds
                )
            if self.target:
                out[f"to_target{end}"] = _over_seeds(
                    [_first_reaching(rows, self.target) for rows in seeds], unit
                )
        return out

    def key(self, goal: str) -> str:
        """The field of a goal in the unit of the columns."""
        return goal if self.count == "bytes" else f"{goal}_values"


def _sound(p: Point) -> bool:
    """A model that has not collapsed, with an accuracy."""
    return p["loss"] <= ABSURD and not math.isnan(p["accuracy"])


def _last_within(rows: Curve, budget: int, unit: str) -> Point | None:
    """The last evaluated round within the budget; None where the first is beyond it, or the models have collapsed by then."""
    within = [p for p in rows if p[unit] <= budget]
    return within[-1] if within and _sound(within[-1]) else None


def _unspent(rows: Curve, budget: int, unit: str) -> bool:
    """The rounds ended while the budget had room for another one."""
    end = rows[-1]
    return end[unit] > 0 and end[unit] * (end["round"] + 1) / end["round"] <= budget


def _first_reaching(rows: Curve, target: float) -> Point | None:
    return next((p for p in rows if _sound(p) and p["accuracy"] >= target), None)


def _over_seeds(points: list[Point | None], key: str) -> dict[str, Any]:
    """Mean and half the 95 % interval where every seed has a figure; None where one has not."""
    values: list[Any] = [p and p[key] for p in points]
    every = [v for v in values if v is not None]
    whole = bool(every) and len(every) == len(values)
    return {
        "mean": sum(every) / len(every) if whole else None,
        "ci95": interval(every) if whole else None,
        "by_seed": values,
        "rounds": [p and p["round"] for p in points],
    }


# -- files -------------------------------------------------------------------------------------------------------------------
def write(curves: list[Curve], goals: Goals, directory: Path) -> list[Path]:
    """curves.csv, and curves.png where matplotlib is there and something was evaluated."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(plain([p for c in curves for p in c]))
    table, temporary = directory / "curves.csv", directory / f".curves.csv.{os.getpid()}"
    temporary.write_text(text.getvalue())
    os.replace(temporary, table)
    return [table, *picture(curves, goals, directory / "curves.png")]


INK, GREY = "#333333", "#6e6e6e"
COLOURS = ("#1b6ca8", "#c8553d", "#5f9e6e", "#d98e32", "#7a5ba6", "#2a9d9d", "#b0447c", "#6b705c")
STYLES = (
    "-",
    (0, (5, 1.5)),
    (0, (1.5, 1)),
)  # in turn, so that lines one above the other are both seen
AXES = {
    "bytes": "bytes sent, both directions",
    "values": "32-bit words sent, both directions, as the lp-proj paper counts",
}


def picture(curves: list[Curve], goals: Goals, path: Path) -> list[Path]:
    """Accuracy against what was sent, a line a method: the mean over seeds, in a band from the least to the most."""
    lines = [(i, c) for i, c in enumerate(curves) if any(_sound(p) for p in c)]
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter
    except ImportError:
        return []
    if not lines:
        return []
    figure = Figure(figsize=(9.5, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for i, c in lines:
        _line(
            axes,
            c,
            goals.count,
            {
                "color": COLOURS[i % len(COLOURS)],
                "linestyle": STYLES[i % len(STYLES)],
                "zorder": 3 - i / 100,
            },
        )
    if sent := [p[goals.count] for _, c in lines for p in c if p[goals.count]]:
        axes.set_xscale("log")
        wide = math.log10(max(*sent, goals.budget) / min(sent)) > 3
        axes.xaxis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5), numticks=20))
        axes.xaxis.set_major_formatter(EngFormatter("B" if goals.count == "bytes" else ""))
        axes.xaxis.set_minor_formatter(NullFormatter())
    place: dict[str, Any] = {
        "xytext": (3, 4),
        "textcoords": "offset points",
        "color": INK,
        "fontsize": 9,
    }
    if goals.budget:
        axes.axvline(goals.budget, color=INK, linewidth=0.8, zorder=1)
        axes.annotate("budget", (goals.budget, 0), xycoords=("data", "axes fraction"), **place)
    if goals.target:
        axes.axhline(goals.target, color=INK, linewidth=0.8, zorder=1)
        axes.annotate(
            f"target {goals.target:g}",
            (0, goals.target),
            xycoords=("axes fraction", "data"),
            **place,
        )
    axes.set_xlabel(AXES[goals.count])
    axes.set_ylabel("accuracy on the clients' own test data")
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9)
    figure.savefig(path, dpi=150)
    return [path]


def _line(axes: Any, curve: Curve, unit: str, style: dict[str, Any]) -> None:
    by_round = [
        list(rows)
        for _, rows in groupby(sorted(curve, key=lambda p: p["round"]), key=lambda p: p["round"])
    ]
    name = _folded(curve[0]["method"])
    if not any(
        p[unit] for p in curve
    ):  # sends nothing: has no place on the axis, so it stands for its last round
        axes.axhline(
            _mean(by_round[-1], "accuracy"),
            label=f"{name}\n(sends nothing; last round)",
            linewidth=1.2,
            color=GREY,
            linestyle=(0, (8, 3)),
        )
        return
    by_round = [rows for rows in by_round if all(_sound(p) for p in rows)]
    x, y = [_mean(rows, unit) for rows in by_round], [_mean(rows, "accuracy") for rows in by_round]
    low, high = ([pick(p["accuracy"] for p in rows) for rows in by_round] for pick in (min, max))
    axes.plot(x, y, label=name, linewidth=1.8, marker="o" if len(x) < 2 else None, **style)
    axes.fill_between(x, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _mean(rows: list[Point], key: str) -> float:
    return sum(p[key] for p in rows) / len(rows)


def _folded(label: str, width: int = 30) -> str:
    """A long label in several lines, broken at spaces."""
    out = [""]
    for word in label.split(" "):
        out = (
            [*out[:-1], f"{out[-1]} {word}".strip()]
            if len(out[-1]) + len(word) < width or not out[-1]
            else [*out, word]
        )
    return "\n".join(out)
