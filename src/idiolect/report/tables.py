"""Readable tables of results."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..data.federation import Federation
from ..host.scores import majority, summarise
from .curves import Goals


def majority_row(federation: Federation) -> dict[str, Any]:
    """The trivial baseline as a row of a table: each client predicts its own most frequent training class."""
    s = summarise(majority(federation))
    return {
        "method": "majority",
        "label": "majority class",
        "rounds": 0,
        "seeds": [],
        "accuracy": {
            "mean": s["accuracy"],
            "variance": s["accuracy_variance"],
            "worst10": s["accuracy_worst10"],
            "ci95": None,
        },
        "loss": {
            "mean": s["loss"],
            "variance": s["loss_variance"],
            "worst10": s["loss_worst10"],
            "ci95": None,
        },
        "bytes": {"up": 0, "down": 0},
        "values": {"up": 0, "down": 0},
        "gradients_per_client": 0,
        "seconds": 0.0,
        "rejected": 0,
    }


Column = tuple[
    str, int, Callable[[dict[str, Any]], str]
]  # heading, least width of the terminal, cell

COLUMNS: tuple[Column, ...] = (
    ("accuracy", 0, lambda r: figure(r, "accuracy", "mean")),
    ("± 95 %", 0, lambda r: figure(r, "accuracy", "ci95")),
    ("variance", 0, lambda r: figure(r, "accuracy", "variance")),
    ("worst 10 %", 110, lambda r: figure(r, "accuracy", "worst10")),
    ("loss", 118, lambda r: figure(r, "loss", "mean")),
    ("sent up", 0, lambda r: size(r["bytes"]["up"])),
    ("sent down", 0, lambda r: size(r["bytes"]["down"])),
    ("gradients", 0, lambda r: f"{r['gradients_per_client']:,.0f}"),
    ("seconds", 126, lambda r: f"{r['seconds']:.1f}"),
)
LIARS: Column = (
    "liars",
    0,
    lambda r: str(r.get("malicious", {"clients": 0})["clients"]) if r["seeds"] else "–",
)
GOAL_WIDTH = 20  # that a column of a goal takes from the others


def results_table(
    rows: list[dict[str, Any]],
    title: str | None = None,
    width: int = 140,
    goals: Goals | None = None,
) -> Table:
    """One line a method: accuracy with its interval, fairness, loss, bytes and compute; fewer columns on a narrow terminal."""
    goals = goals or Goals()
    table = Table(
        title=title,
        caption=_caption(rows, goals),
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1),
    )
    table.add_column("method", overflow="fold", min_width=14)
    asked = _goal_columns(goals)
    dropped = ("variance", "sent up", "sent down") if asked and width < 120 else ()
    shown = [
        c
        for c in COLUMNS
        if c[0] not in dropped and (width - GOAL_WIDTH * len(asked) >= c[1] or not c[1])
    ]
    at = next(i for i, c in enumerate(shown) if c[0] in ("sent up", "gradients"))
    shown[at:at] = [*([LIARS] if any("malicious" in r for r in rows) else []), *asked]
    for heading, _, _ in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    for r in rows:
        table.add_row(escape(r.get("label") or r["method"]), *(cell(r) for _, _, cell in shown))
    return table


def _goal_columns(goals: Goals) -> list[Column]:
    """The papers' two columns, where they are asked for."""
    show = size if goals.count == "bytes" else (lambda n: f"{n:,.0f}")
    budget = short_size(goals.budget) if goals.count == "bytes" else f"{goals.budget:,} values"
    asked: list[Column] = []
    if goals.budget:
        asked.append(
            (f"accuracy at {budget}", 0, lambda r: goal(r.get(goals.key("at_budget")), number))
        )
    if goals.target:
        asked.append(
            (
                f"{goals.count} to {goals.target:g}",
                0,
                lambda r: goal(r.get(goals.key("to_target")), show),
            )
        )
    return asked


def goal(reached: dict[str, Any] | None, show: Callable[[float], str]) -> str:
    """What a method made of a goal: a mean with its interval, ★ where it cannot, or how many seeds can.

    >>> goal({"mean": None, "by_seed": [0.7, None, None]}, number), goal({"mean": None, "by_seed": [None]}, number)
    ('★ 1 of 3', '★')
    """
    if reached is None:
        return "–"
    able = sum(v is not None for v in reached["by_seed"])
    if reached["mean"] is None:
        return f"★ {able} of {len(reached['by_seed'])}" if able else "★"
    spread = "" if reached["ci95"] is None else f" ± {show(reached['ci95'])}"
    return show(reached["mean"]) + spread + (" †" if reached.get("unspent") else "")


def _caption(rows: list[dict[str, Any]], goals: Goals) -> str:
    ran = [r for r in rows if r["seeds"]]
    if not ran:
        return ""
    rounds = sorted({r["rounds"] for r in ran})
    seeds = ran[0]["seeds"]
    text = (
        f"test data of each client, last round ({', '.join(map(str, rounds))}), mean over {len(seeds)} seed{'s' * (len(seeds) > 1)} "
        f"({', '.join(map(str, seeds))}); accuracy and loss pooled over samples, variance over clients; "
        "bytes of all clients and gradients of one client, a seed"
    )
    return escape(
        "\n".join(
            [
                text,
                *_goal_notes(ran, goals),
                *_liar_notes(rows, ran),
                *_collapse_notes(ran),
                *_projection_notes(ran),
            ]
        )
    )


def _goal_notes(ran: list[dict[str, Any]], goals: Goals) -> list[str]:
    """What the signs in the columns of the goals mean; those that are there."""
    notes = []
    for asked, name, text in (
        (
            goals.budget,
            "at_budget",
            "at the budget: its first evaluated round had sent more, or its models had collapsed by then",
        ),
        (goals.target, "to_target", "to the target: not reached in the rounds run"),
    ):
        got = [r[goals.key(name)] for r in ran if asked and r.get(goals.key(name))]
        if any(g["mean"] is None for g in got):
            part = (
                "; ★ 1 of 3: one of three seeds can"
                if any(g["mean"] is None and any(v is not None for v in g["by_seed"]) for g in got)
                else ""
            )
            notes.append(f"★ {text}{part}")
        if any(g["mean"] is not None and g.get("unspent") for g in got):
            notes.append("† its rounds ended before the budget was spent")
    if goals.count == "values" and (goals.budget or goals.target):
        notes.append("values: 32-bit words, both directions, as the lp-proj paper counts")
    return notes


def _liar_notes(rows: list[dict[str, Any]], ran: list[dict[str, Any]]) -> list[str]:
    if not any("malicious" in r for r in ran):
        return []
    everyone = "; the majority class is everyone's" if len(rows) > len(ran) else ""
    return [
        f"liars: malicious clients; accuracy, variance and loss are those of the benign clients alone{everyone}"
    ]


def _projection_notes(ran: list[dict[str, Any]]) -> list[str]:
    """What the projections of a result are like, each once."""
    return list(dict.fromkeys(projection_line(r["projection"]) for r in ran if "projection" in r))


def projection_line(p: dict[str, Any]) -> str:
    """What a projection is like, in a line."""
    spectrum = f"singular values {p['s_min']:.3f} to {p['s_max']:.3f}"
    time = f"; {p['pass_ms']:.2g} ms for P x and back" if "pass_ms" in p else ""
    line = f"P: {p['projection']}, {p['dim']} x {p['d']:,}; {spectrum}; {size(p['memory'])}{time}; {size(p['bytes_per_round'])} a round"
    return f"{line}; {p['warning']}" if p["warning"] else line


def _collapse_notes(ran: list[dict[str, Any]]) -> list[str]:
    notes = []
    for r in ran:
        if collapsed(r):
            fell = [(seed, at) for seed, at in zip(r["seeds"], r["collapsed"], strict=True) if at]
            each = ", ".join(
                f"round {at} (seed {seed})" if len(r["seeds"]) > 1 else f"round {at}"
                for seed, at in fell
            )
            notes.append(f"★ {r.get('label') or r['method']}: collapsed in {each}")
    return notes


def collapsed(row: dict[str, Any]) -> bool:
    """The models of some seed are no models any more: their figures would mean nothing."""
    return any(row.get("collapsed") or [])


def figure(row: dict[str, Any], what: str, which: str) -> str:
    return "★" if collapsed(row) else number(row[what][which])


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


def short_size(n: float) -> str:
    """Bytes for a heading.

    >>> short_size(328_020), short_size(4_236_900), short_size(500)
    ('328 kB', '4.237 MB', '500 B')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= factor:
            return f"{n / factor:.4g} {unit}"
    return f"{n} B"


def render(table: Table, width: int = 140) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(table)
    return out.getvalue().rstrip()
