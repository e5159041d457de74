"""The golden table: every method at its defaults on four federations, so that a changed figure is noticed.

`idiolect reproduce golden` writes results.md and results.json; a test runs the first seed again and compares.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from .. import data, models
from ..data.federation import Federation
from ..methods import METHODS, make
from ..report.tables import majority_row, number, size
from ..run.run import run
from ..run.settings import Settings
from ..task.task import Task

ROUNDS, SEEDS = 50, 3
FEDERATIONS: dict[
    str, tuple[str, dict[str, Any], str, int]
] = {  # title -> data, options, model, clients heard a round
    "Synthetic(0, 0)": ("synthetic", {"alpha": 0.0, "beta": 0.0}, "linear", 10),
    "Synthetic(1, 1)": ("synthetic", {"alpha": 1.0, "beta": 1.0}, "linear", 10),
    "Synthetic(0, 0), unbalanced": ("synthetic", {"sizes": "power"}, "linear", 10),
    "digits, 2 classes a client": ("digits", {"clients": 20, "classes_per_client": 2}, "mlp", 5),
}
SKIP = {"lp-proj"}  # lp-proj-1 under its own name


def federations() -> Iterator[tuple[str, Federation, Task, int]]:
    for title, (name, options, model, sample) in FEDERATIONS.items():
        federation = data.load(name, **options)
        shape = tuple(federation.inputs.shape[1:])
        yield title, federation, Task(partial(models.make, model, shape, 10)), sample


def figures(
    federation: Federation, task: Task, sample: int, seeds: int = SEEDS, names: tuple[str, ...] = ()
) -> Iterator[dict[str, Any]]:
    """The summary of every method, at its defaults."""
    for name in names or [n for n in METHODS if n not in SKIP]:
        method = make(name)
        heard = 0 if method.hears_all else sample
        settings = Settings(rounds=ROUNDS, seeds=seeds, sample=heard, eval_every=0, threads=1)
        yield {
            **run(method, task, federation, **settings.as_dict()).summary(),
            "method": name,
            "label": name,
        }


def write(folder: Path) -> list[Path]:
    """Run everything (some minutes) and write results.md and results.json."""
    console = Console(stderr=True)
    page = [
        "# Results: every method at its defaults",
        "",
        f"{ROUNDS} rounds, {SEEDS} seeds, mean ± half the 95 % interval over seeds; test data of each client, last round. `global` is the",
        "accuracy of the one shared model where a method has one. These are the defaults, chosen once on validation data and",
        "tuned for none of the four federations: a table to notice changes by, not a ranking. Methods differ in gradients by a factor",
        "of forty; read that column.",
        "Written by `idiolect reproduce golden`.",
    ]
    stored: dict[str, dict[str, list[float]]] = {}
    for title, federation, task, sample in federations():
        head = "| method | accuracy | variance | worst 10 % | global | sent up | sent down | gradients/client |"
        page += [
            "",
            f"## {title}: {federation.clients} clients, {sample} heard a round, d = {task.d}",
            "",
            head,
            "|---|---|---|---|---|---|---|---|",
        ]
        page.append(_line(majority_row(federation)))
        for s in figures(federation, task, sample):
            console.print(f"{title}: {s['method']} {s['accuracy']['mean']:.4f}", highlight=False)
            stored.setdefault(title, {})[s["method"]] = [
                round(a, 5) for a in s["accuracy"]["by_seed"]
            ]
            page.append(_line(s))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.md").write_text("\n".join(page) + "\n")
    (folder / "results.json").write_text(json.dumps(stored, indent=1) + "\n")
    return [folder / "results.md", folder / "results.json"]


def _line(s: dict[str, Any]) -> str:
    a = s["accuracy"]
    spread = "" if a["ci95"] is None else f" ± {a['ci95']:.4f}"
    shared = number(s["global_model"]["accuracy"]["mean"]) if "global_model" in s else "–"
    cells = [
        s["method"],
        number(a["mean"]) + spread,
        number(a["variance"]),
        number(a["worst10"]),
        shared,
    ]
    cells += [size(s["bytes"]["up"]), size(s["bytes"]["down"]), f"{s['gradients_per_client']:,.0f}"]
    return "| " + " | ".join(cells) + " |"
