"""docs/speed.md from the figures of one run."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

TEMPLATE = Path(__file__).with_name("speed.md.in")
PAGE = Path(__file__).parent.parent / "docs" / "speed.md"


def systems(figures: list[dict]) -> list[str]:
    return list(dict.fromkeys(f["system"] for f in figures if "system" in f))


def rates(figures: list[dict]) -> list[list[str]]:
    """A row per workload: its name, then rounds per second of each system."""
    found = {(f["workload"], f["system"]): f for f in figures if "system" in f}

    def cell(f: dict | None) -> str:
        if f is None:
            return "–"
        return f"{f['value']:.3g}" + (" (wall)" if f["clock"] == "wall" else "")

    return [
        [w, *(cell(found.get((w, s))) for s in systems(figures))]
        for w in dict.fromkeys(w for w, _ in found)
    ]


def machine() -> str:
    """The versions and the machine that figures are measured with."""
    versions = [f"{name} {v}" for name in ("torch", "flwr", "pfl") if (v := installed(name))]
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{', '.join(versions)} on {platform.machine()}, {os.cpu_count()} cores, {capability}"


def write(
    figures: list[dict], rows: list[tuple[str, ...]], measured: str, path: Path = PAGE
) -> None:
    """`rows`: figure, value, goal and whether it is met; `measured`: see `machine`."""
    value = {f["name"]: f["value"] for f in figures}

    def find(*words: str) -> float:
        return next((v for name, v in value.items() if all(w in name for w in words)), float("nan"))

    over = find("bare products", "MLP 784")
    loop = find("against loop, DataLoader", "FedAvg, MLP 784")
    text = TEMPLATE.read_text().format(
        over=f"{over:.2f}",
        loop=f"{loop:.1f}",
        best=f"{over * loop:.1f}",
        small=f"{find('against loop, DataLoader', 'lp-proj'):.0f}",
        rates=markdown(["rounds per second", *systems(figures)], rates(figures)),
        figures=markdown(["figure", "value", "goal", ""], rows),
        measured=measured,
    )
    path.write_text(text)


def markdown(head: list[str], rows: list) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
