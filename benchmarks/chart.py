"""docs/speed.svg: rounds per second by workload and system, on a log axis."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PICTURE = Path(__file__).parent.parent / "docs" / "speed.svg"
COLOURS = {
    "idiolect": "#1b6ca8",
    "loop, DataLoader": "#b5b5b5",
    "loop, indexing": "#8a8a8a",
    "pfl": "#d98e32",
    "FedJAX": "#5f9e6e",
    "Flower": "#c8553d",
}
BAR = 0.8  # thickness of a bar
GAP = 0.9  # space between workloads, in bars


def draw(figures: list[dict], path: Path = PICTURE) -> None:
    rates = [f for f in figures if "system" in f]
    workloads = list(dict.fromkeys(f["workload"] for f in rates))
    with plt.rc_context({"svg.hashsalt": "speed", "font.size": 9}):
        bars = len(rates) + GAP * len(workloads)
        figure, axes = plt.subplots(figsize=(8, 0.7 + 0.27 * bars), layout="constrained")
        at = 0.0
        ticks = []
        for workload in workloads:
            mine = sorted(
                (f for f in rates if f["workload"] == workload), key=lambda f: -f["value"]
            )
            ticks.append(at + (len(mine) - 1) / 2)
            for f in mine:
                axes.barh(at, f["value"], BAR, color=COLOURS.get(f["system"], "#666666"))
                note = f" {f['value']:.3g}  {f['system']}" + (
                    " (wall clock)" if f["clock"] == "wall" else ""
                )
                axes.text(
                    f["value"],
                    at,
                    note,
                    va="center",
                    fontweight="bold" if f["system"] == "idiolect" else "normal",
                )
                at += 1
            at += GAP
        values = [f["value"] for f in rates]
        axes.set(
            xscale="log",
            xlim=(min(values) / 2, max(values) * 6),
            xlabel="rounds per second, one thread (log scale; longer is faster)",
        )
        axes.set_yticks(ticks, [w.replace(", ", "\n", 1) for w in workloads])
        axes.invert_yaxis()
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
