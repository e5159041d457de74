"""`make bench`: every figure with its goal, printed and written to benchmarks/latest.json."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from . import gradients, projections, rounds


def main() -> None:
    torch.set_num_threads(1)
    table = Table("figure", "value", "goal", "")
    results = []
    for module in (gradients, rounds, projections):
        for figure in module.figures():
            results.append({**figure, "value": round(figure["value"], 3)})
            print(f"{figure['name']}: {figure['value']:.2f} {figure['unit']}", flush=True)
    for r in results:
        met = "" if r["goal"] is None else "met" if (r["value"] >= r["goal"]) == (r["better"] == "higher") else "MISSED"
        sign = {"higher": "≥", "lower": "≤"}[r["better"]]
        table.add_row(r["name"], f"{r['value']:.2f} {r['unit']}", "–" if r["goal"] is None else f"{sign} {r['goal']}", met)
    Console(width=130).print(table)
    Path(__file__).with_name("latest.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
