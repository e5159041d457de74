"""Accuracy against what it took: the curve of each method, as curves.csv and curves.png."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..core.documents import plain
from ..core.files import write_atomic
from ..core.text import csv_cell
from .curve_picture import picture
from .goals import COUNTS, Curve, Goals, Point

COLUMNS = ("method", "seed", "round", "accuracy", "loss", *COUNTS, "gradients", "seconds")
TIMED = (*COLUMNS, "time")  # where a run has a clock


def curve(label: str, rows: Iterable[dict[str, Any]]) -> Curve:
    """The evaluated rounds of a result, from its record's `timed_rounds()`."""
    return [point(label, row) for row in rows]


def point(label: str, row: dict[str, Any]) -> Point:
    """A row of metrics.csv as a point.

    Bytes and values are totals so far, of all clients and both directions.

    >>> row = {"seed": 0, "round": 1, "accuracy": 0.5, "loss": 1.0, "gradients_per_client": 5.0}
    >>> sent = {"bytes_up": 8, "bytes_down": 8, "values_up": 2, "values_down": 2}
    >>> point("fedavg", row | sent)["bytes"]
    16
    """
    return {
        "method": label,
        **{k: row[k] for k in ("seed", "round", "accuracy", "loss")},
        **{unit: row[f"{unit}_up"] + row[f"{unit}_down"] for unit in COUNTS},
        "gradients": row["gradients_per_client"],
        "seconds": row.get("seconds", math.nan),
        **({"time": row["time"]} if "time" in row else {}),
    }


def panels(curves: Sequence[Curve], goals: Goals) -> tuple[str, ...]:
    """The panels of a picture for which none were asked for."""
    timed = any("time" in point for curve in curves for point in curve)
    return ("rounds", goals.count, "gradients", "time" if timed else "seconds")


def write(
    curves: list[Curve], goals: Goals, directory: Path, against: Sequence[str] = ()
) -> list[Path]:
    """curves.csv, and curves.png where matplotlib is there and something was evaluated.

    The picture has a panel for rounds, what was sent, gradients and seconds (or the time of a run
    with a clock), or those of `against`.
    """
    against = against or panels(curves, goals)
    timed = any("time" in p for c in curves for p in c)
    text = io.StringIO()
    writer = csv.DictWriter(text, TIMED if timed else COLUMNS)
    writer.writeheader()
    for p in plain([p for c in curves for p in c]):
        writer.writerow({k: csv_cell(v) for k, v in p.items()})
    table = directory / "curves.csv"
    write_atomic(table, text.getvalue().encode())
    return [table, *picture(curves, goals, directory / "curves.png", against)]
