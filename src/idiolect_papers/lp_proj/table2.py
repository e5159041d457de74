"""Table 2 in form: ResNet-34, a block-diagonal P of 50 blocks. `idiolect reproduce lp-proj-table2`.

The paper's is on ImageNet. Where the cache of data sets has a folder `imagenet` in ImageNet's
layout (class/file, or split/class/file), the full scale runs on it; else both run on CIFAR-10.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from idiolect import (
    FedAvg,
    Federation,
    Local,
    Method,
    PFedMe,
    Plan,
    Task,
    data,
    make_method,
    models,
)
from idiolect.data import where
from idiolect.report import size as bytes_text
from idiolect.study import Stock

from ..marks import Cell, Figure
from ..page import Page
from ..published import read_figure, read_rows
from ..runs import Runs
from .personal import EQUAL, UNTIED

IMAGENET = "imagenet"
DIM = 750  # what Table 2's bytes imply: docs/large-models.md
BLOCKS = 50
TITLE = "ImageNet, 100 clients with 50 of 1,000 classes"


@dataclass(frozen=True)
class Size:
    """How much is run."""

    rounds: int
    steps: int
    batch: int
    seeds: int
    rate: float
    model: str = "resnet34"
    options: dict[str, Any] = field(default_factory=dict)  # of CIFAR-10
    source: str = "cifar10"
    dim: int = DIM
    blocks: int = BLOCKS


SIZES = {
    "quick": Size(2, 4, 8, 1, 0.001, options={"clients": 4, "share": 0.008}),
    "full": Size(200, 20, 64, 1, 0.01, options={"clients": 100}),
}


def write(folder: Path, scale: str, size: Size | None = None, jobs: int = 0) -> list[Path]:
    """Run what is not stored yet and write the page."""
    size = size or SIZES[scale]
    federation, real = _data(size, scale)
    make = partial(models.make, size.model, federation.shape, federation.classes)
    stock = Stock({"": federation}, {"": Task(make)})
    run_settings = {
        "rounds": size.rounds,
        "batch": size.batch,
        "eval_every": 0,
        "sample": max(1, round(0.1 * federation.clients)),
        "chunk": 2,
    }
    points = {row: Plan.of(m, settings=run_settings, name=row) for row, m in methods(size).items()}
    runs = Runs(folder / ".runs" / f"lp-proj-table2-{scale}", jobs)
    by_row = runs(points, stock, range(size.seeds))
    title = TITLE if real else f"{federation.name}, {federation.clients} clients, in its place"
    d = stock.tasks[""].d
    page = Page(
        name="lp-proj-table2",
        title="lp-proj, Table 2 in form: ResNet-34 and a block-diagonal P",
        scale=f"{scale}: {size.rounds} rounds of {size.steps} steps, {size.seeds} seed, "
        f"{federation.name}, {federation.clients} clients",
        opening=_opening(by_row, d),
        printed="ImageNet, ResNet-34, 100 clients with 50 of 1,000 classes each, 50 blocks, at "
        "most 200 rounds.",
        chosen=f"d_sub = {size.dim}, which the printed bytes imply (docs/large-models.md); λ = lr "
        f"= 0.1; step size {size.rate:g}; GroupNorm in place of BatchNorm; a tenth of the clients "
        "heard per round. ImageNet cannot be had here: with its pictures in the folder "
        "`imagenet` of the data cache, the full scale runs on them.",
        cells=_cells(title, by_row, real),
        seconds=sum(s["cpu_seconds"] for summaries in by_row.values() for s in summaries),
    )
    return page.write(folder)


def methods(size: Size) -> dict[str, Method]:
    """The rows of the table, Local with as many gradients, and lp-proj-1 without its tie."""
    tie: dict[str, Any] = {"lam": 0.1, "lr": 0.1, "personal_lr": size.rate, "steps": size.steps}
    subspace = {**tie, "projection": "block", "dim": size.dim, "blocks": size.blocks, "reuse": True}
    return {
        "pFedMe": PFedMe(**tie),
        "FedAvg": FedAvg(lr=size.rate, steps=size.steps),
        "lp-proj-1": make_method("lp-proj-1", **subspace),
        "lp-proj-2": make_method("lp-proj-2", **subspace),
        EQUAL: Local(lr=size.rate, steps=size.steps),
        UNTIED: make_method("lp-proj-1", **{**subspace, "lam": 0.0}),
    }


def _data(size: Size, scale: str) -> tuple[Federation, bool]:
    """The data, and whether they are the paper's."""
    pictures = where() / IMAGENET
    if scale == "full" and pictures.is_dir():
        options = {"partition": "classes", "classes_per_client": 50, "clients": 100, "size": 224}
        return data.load("folder", path=str(pictures), memory=64.0, **options), True
    return data.load(size.source, **size.options), False


def _cells(title: str, by_row: dict[str, list[dict[str, Any]]], real: bool) -> list[Cell]:
    columns = ("train loss", "accuracy", "bytes")
    published = {
        row["method"]: [read_figure(row[column]) for column in columns]
        for row in read_rows("lp-proj-table2")
    }
    cells = []
    if not real:
        cells = [
            Cell(TITLE, row, column, paper, None)
            for row, figures in published.items()
            for column, paper in zip(columns, figures, strict=True)
        ]
    for row, summaries in by_row.items():
        ours = (
            Figure.of([s["train"]["loss"]["mean"] for s in summaries]),
            Figure.of([s["accuracy"]["mean"] for s in summaries]),
            Figure.of([float(sum(s["bytes"].values())) for s in summaries], 0),
        )
        paper = published.get(row, [None] * 3) if real else [None] * 3
        cells += [Cell(title, row, c, p, f) for c, p, f in zip(columns, paper, ours, strict=True)]
    return cells


def _opening(by_row: dict[str, list[dict[str, Any]]], d: int) -> str:
    bytes_per_round = {
        row: sum(s[0]["bytes"].values()) / s[0]["rounds"] for row, s in by_row.items()
    }
    ratio = bytes_per_round["pFedMe"] / max(1.0, bytes_per_round["lp-proj-1"])
    mean = {row: Figure.of([s["accuracy"]["mean"] for s in by_row[row]]) for row in by_row}
    return (
        f"The block-diagonal P works on a model of {d:,} parameters and sends what the paper says "
        f"it sends: {bytes_text(bytes_per_round['lp-proj-1'])} per round against "
        f"{bytes_text(bytes_per_round['pFedMe'])} of pFedMe, {ratio:,.0f} times less. What a "
        f"client reaches alone with as many gradients stands beside it: {mean[EQUAL]} against "
        f"{mean['lp-proj-1']} of lp-proj-1 and {mean[UNTIED]} of lp-proj-1 with λ = 0. At the "
        "quick scale the runs are far too short to rank anything."
    )
