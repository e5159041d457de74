"""Does the kind of P matter? lp-proj with each kind and several dimensions, against the paper's dense Gaussian one.

`idiolect reproduce projections` writes projections.md. MNIST is fetched if it is not there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console

from .. import data, models
from ..data.federation import Federation
from ..methods import LpProj
from ..projections import PROJECTIONS
from ..run.run import run
from ..task.task import Task

KINDS = tuple(k for k in PROJECTIONS if k != "identity")
DIMS = (40, 80, 120, 160, 200)
FEDERATIONS: dict[
    str, tuple[str, dict[str, Any], str, int, int, int]
] = {  # title -> data, options, model, dim, sample, rounds
    "Synthetic(0, 0)": ("synthetic", {}, "linear", 21, 10, 50),
    "digits, 2 classes a client": ("digits", {"clients": 20}, "mlp", 50, 5, 50),
    "MNIST, 2 classes a client": ("mnist", {}, "mlp", 50, 10, 10),
}


def accuracy(
    method: LpProj, federation: Federation, task: Task, sample: int, rounds: int, seeds: int
) -> tuple[float, float]:
    a = run(
        method, task, federation, rounds=rounds, sample=sample, seeds=seeds, eval_every=0, threads=1
    ).summary()["accuracy"]
    return a["mean"], float("nan") if a["ci95"] is None else a["ci95"]


def load(title: str) -> tuple[Federation, Task, int, int, int]:
    name, options, model, dim, sample, rounds = FEDERATIONS[title]
    federation = data.load(name, **options)
    return (
        federation,
        Task(partial(models.make, model, tuple(federation.inputs.shape[1:]), 10)),
        dim,
        sample,
        rounds,
    )


def kinds(seeds: int) -> Iterator[str]:
    """The table of kinds, line by line."""
    for title in FEDERATIONS:
        federation, task, dim, sample, rounds = load(title)
        yield f"| {title}, d = {task.d}, dim {dim}, {rounds} rounds | " + " | ".join(KINDS) + " |"
        yield "|" + "---|" * (len(KINDS) + 1)
        for p in (1.0, 2.0):
            found = [
                accuracy(
                    LpProj(p=p, dim=dim, projection=kind), federation, task, sample, rounds, seeds
                )
                for kind in KINDS
            ]
            yield (
                f"| lp-proj-{p:g} | "
                + " | ".join(f"{mean:.4f} ± {half:.4f}" for mean, half in found)
                + " |"
            )
        yield ""


def dims(seeds: int) -> Iterator[str]:
    """The table of dimensions on digits (the paper's C.7.5 does it on EMNIST)."""
    federation, task, _, sample, rounds = load("digits, 2 classes a client")
    yield "| digits, lp-proj-2 | " + " | ".join(f"dim {n}" for n in DIMS) + " |"
    yield "|" + "---|" * (len(DIMS) + 1)
    for kind in ("gaussian", "contiguous"):
        found = [
            accuracy(LpProj(p=2.0, dim=n, projection=kind), federation, task, sample, rounds, seeds)
            for n in DIMS
        ]
        yield f"| {kind} | " + " | ".join(f"{mean:.4f} ± {half:.4f}" for mean, half in found) + " |"


def write(folder: Path, seeds: int = 3) -> list[Path]:
    console, page = Console(stderr=True), []
    for line in chain(HEAD, kinds(seeds), MIDDLE, dims(seeds)):  # as they come
        page.append(line)
        if line.startswith("|"):
            console.print(line, highlight=False, soft_wrap=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "projections.md").write_text("\n".join(page).rstrip() + "\n")
    return [folder / "projections.md"]


HEAD = (
    "# Which projection?",
    "",
    "`contiguous` unless you reproduce the paper: one pass over the model, nothing kept but a sign a coordinate, and P Pᵀ = I exactly.",
    "`idiolect projections` shows singular values, memory, time and bytes of every kind for your model.",
    "",
    "Accuracy of lp-proj at its defaults with each kind, mean over 3 seeds ± half the 95 % interval (another seed is another P too).",
    "At the default λ the tie to the subspace is weak, and Local is as good on these data: the tables show that the kind of P does no",
    "harm, not that the subspace helps.",
    "Written by `idiolect reproduce projections`.",
    "",
)
MIDDLE = ("The dimension of the subspace:", "")
