"""`make bench`: every figure with its goal, in latest.json, as a picture and as a page in docs.

`python -m benchmarks.run --stored` makes the page and the picture anew from latest.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import idiolect

from . import chart, compare, gradients, projections, report, rounds, scaling

LATEST = Path(__file__).with_name("latest.json")


def met(figure: dict) -> str:
    if figure["goal"] is None:
        return ""
    higher = figure["better"] == "higher"
    return "met" if (figure["value"] >= figure["goal"]) == higher else "MISSED"


def goal(figure: dict) -> str:
    if figure["goal"] is None:
        return "–"
    sign = "≥" if figure["better"] == "higher" else "≤"
    return f"{sign} {figure['goal']}"


def measure() -> list[dict]:
    torch.set_num_threads(1)
    idiolect.keep_memory()
    results = []
    for module in (gradients, projections, rounds, scaling, compare):
        for figure in module.figures():
            results.append({**figure, "value": round(figure["value"], 3)})
            print(f"{figure['name']}: {figure['value']:.2f} {figure['unit']}", flush=True)
    return results


def publish(results: list[dict], measured: str) -> None:
    """Tables on the screen, the picture and the page."""
    rows = [
        (r["name"], f"{r['value']:.2f} {r['unit']}", goal(r), met(r))
        for r in results
        if "system" not in r
    ]
    speeds = Table("rounds per second", *report.systems(results))
    figures = Table("figure", "value", "goal", "")
    for table, body in ((speeds, report.rates(results)), (figures, rows)):
        for row in body:
            table.add_row(*row)
        Console(width=130).print(table)
    chart.draw(results)
    report.write(results, rows, measured)


def main() -> None:
    if "--stored" in sys.argv[1:]:
        stored = json.loads(LATEST.read_text())
    else:
        stored = {"measured": report.machine(), "figures": measure()}
        LATEST.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")
    publish(stored["figures"], stored["measured"])


if __name__ == "__main__":
    main()
