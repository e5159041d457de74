"""`make bench`: every figure with its goal, printed, written to benchmarks/latest.json, and drawn and told in docs/speed.*."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from . import chart, compare, gradients, projections, report, rounds, scaling

LATEST = Path(__file__).with_name("latest.json")


def met(figure: dict) -> str:
    if figure["goal"] is None:
        return ""
    return (
        "met" if (figure["value"] >= figure["goal"]) == (figure["better"] == "higher") else "MISSED"
    )


def goal(figure: dict) -> str:
    return (
        "–"
        if figure["goal"] is None
        else f"{'≥' if figure['better'] == 'higher' else '≤'} {figure['goal']}"
    )


def measure() -> list[dict]:
    torch.set_num_threads(1)
    results = []
    for module in (gradients, projections, rounds, scaling, compare):
        for figure in module.figures():
            results.append({**figure, "value": round(figure["value"], 3)})
            print(f"{figure['name']}: {figure['value']:.2f} {figure['unit']}", flush=True)
    return results


def publish(results: list[dict]) -> None:
    """Tables on the screen, the picture and the page."""
    rows = [
        (r["name"], f"{r['value']:.2f} {r['unit']}", goal(r), met(r))
        for r in results
        if "system" not in r
    ]
    speeds, figures = (
        Table("rounds a second", *report.systems(results)),
        Table("figure", "value", "goal", ""),
    )
    for table, body in ((speeds, report.rates(results)), (figures, rows)):
        for row in body:
            table.add_row(*row)
        Console(width=130).print(table)
    chart.draw(results)
    report.write(results, rows)


def main() -> None:
    results = measure()
    LATEST.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    publish(results)


if __name__ == "__main__":
    main()
