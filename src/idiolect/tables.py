"""Readable tables of results."""

from __future__ import annotations

import io
import math
from typing import Any

from rich.console import Console
from rich.table import Table

from .data.federation import Federation
from .metrics import majority, summarise


def majority_row(federation: Federation) -> dict[str, Any]:
    """The trivial baseline as a row of a table: each client predicts its own most frequent training class."""
    s = summarise(majority(federation))
    return {
        "method": "majority",
        "label": "majority (each client's most frequent class)",
        "rounds": 0,
        "seeds": [],
        "accuracy": {"mean": s["accuracy"], "variance": s["accuracy_variance"], "worst10": s["accuracy_worst10"], "ci95": None},
        "loss": {"mean": s["loss"], "variance": s["loss_variance"], "worst10": s["loss_worst10"], "ci95": None},
        "bytes": {"up": 0, "down": 0},
        "values": {"up": 0, "down": 0},
        "gradients_per_client": 0,
        "seconds": 0.0,
        "rejected": 0,
    }


def results_table(rows: list[dict[str, Any]], title: str | None = None) -> Table:
    """One line a method: accuracy with its interval, fairness, loss, bytes and compute."""
    table = Table(title=title, caption=_caption(rows), title_justify="left", caption_justify="left")
    table.add_column("method", overflow="fold")
    for head in ("accuracy", "± 95 %", "variance", "worst 10 %", "loss", "sent up", "sent down", "gradients/client", "seconds"):
        table.add_column(head, justify="right", no_wrap=True)
    for r in rows:
        a, loss, sent = r["accuracy"], r["loss"], r["bytes"]
        table.add_row(
            r.get("label") or r["method"],
            _number(a["mean"]),
            _number(a["ci95"]) if a["ci95"] is not None else "–",
            _number(a["variance"]),
            _number(a["worst10"]),
            _number(loss["mean"]),
            size(sent["up"]),
            size(sent["down"]),
            f"{r['gradients_per_client']:,.0f}",
            f"{r['seconds']:.1f}",
        )
    return table


def _caption(rows: list[dict[str, Any]]) -> str:
    ran = [r for r in rows if r["seeds"]]
    if not ran:
        return ""
    rounds = sorted({r["rounds"] for r in ran})
    seeds = ran[0]["seeds"]
    return (
        f"test data of each client, last round ({', '.join(map(str, rounds))}), mean over {len(seeds)} seed{'s' * (len(seeds) > 1)} "
        f"({', '.join(map(str, seeds))}); accuracy and loss pooled over samples, variance over clients; bytes a seed, all clients"
    )


def _number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4f}"


def size(n: float) -> str:
    """Bytes for people.

    >>> size(0), size(84_480), size(3_200_000)
    ('0', '84.5 kB', '3.2 MB')
    """
    if n < 1000:
        return f"{n:.0f}"
    for unit in ("kB", "MB", "GB"):
        n /= 1000
        if n < 1000:
            break
    return f"{n:.1f} {unit}"


def render(table: Table, width: int = 140) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue().rstrip()
