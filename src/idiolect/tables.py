"""Readable tables of results."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .data.federation import Federation
from .metrics import majority, summarise


def majority_row(federation: Federation) -> dict[str, Any]:
    """The trivial baseline as a row of a table: each client predicts its own most frequent training class."""
    s = summarise(majority(federation))
    return {
        "method": "majority",
        "label": "majority class",
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


COLUMNS: tuple[tuple[str, int, Callable[[dict[str, Any]], str]], ...] = (  # heading, least width of the terminal, cell
    ("accuracy", 0, lambda r: number(r["accuracy"]["mean"])),
    ("± 95 %", 0, lambda r: number(r["accuracy"]["ci95"])),
    ("variance", 0, lambda r: number(r["accuracy"]["variance"])),
    ("worst 10 %", 110, lambda r: number(r["accuracy"]["worst10"])),
    ("loss", 118, lambda r: number(r["loss"]["mean"])),
    ("sent up", 0, lambda r: size(r["bytes"]["up"])),
    ("sent down", 0, lambda r: size(r["bytes"]["down"])),
    ("gradients", 0, lambda r: f"{r['gradients_per_client']:,.0f}"),
    ("seconds", 126, lambda r: f"{r['seconds']:.1f}"),
)


def results_table(rows: list[dict[str, Any]], title: str | None = None, width: int = 140) -> Table:
    """One line a method: accuracy with its interval, fairness, loss, bytes and compute; fewer columns on a narrow terminal."""
    table = Table(title=title, caption=_caption(rows), title_justify="left", caption_justify="left", box=SIMPLE_HEAD, padding=(0, 1))
    table.add_column("method", overflow="fold", min_width=14)
    shown = [c for c in COLUMNS if width >= c[1]]
    for heading, _, _ in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    for r in rows:
        table.add_row(r.get("label") or r["method"], *(cell(r) for _, _, cell in shown))
    return table


def _caption(rows: list[dict[str, Any]]) -> str:
    ran = [r for r in rows if r["seeds"]]
    if not ran:
        return ""
    rounds = sorted({r["rounds"] for r in ran})
    seeds = ran[0]["seeds"]
    return (
        f"test data of each client, last round ({', '.join(map(str, rounds))}), mean over {len(seeds)} seed{'s' * (len(seeds) > 1)} "
        f"({', '.join(map(str, seeds))}); accuracy and loss pooled over samples, variance over clients; "
        "bytes of all clients and gradients of one client, a seed"
    )


def number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4f}"


def size(n: float) -> str:
    """Bytes for people.

    >>> size(0), size(84_480), size(3_200_000)
    ('0', '84.5 kB', '3.2 MB')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= factor:
            return f"{n / factor:.1f} {unit}"
    return f"{n:.0f}"


def render(table: Table, width: int = 140) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue().rstrip()
