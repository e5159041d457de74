"""Table 2 in form: ResNet-34, a block-diagonal P of 50 blocks. `idiolect reproduce lp-proj-table2`.

The paper's is on ImageNet. Where the cache of data sets has a folder `imagenet` in ImageNet's
layout (class/file, or split/class/file), the full scale runs on it; else both run on CIFAR-10.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from idiolect import FedAvg, Local, Method, PFedMe, make_method
from idiolect.data import where
from idiolect.report import size as bytes_text

from ..case import Case, Scale
from ..marks import Figure, beside
from ..page import page_from_text
from ..published import read_table
from ..runs import column, cpu_seconds, scaled_runs
from .personal import EQUAL, FIGURES, UNTIED

TITLE = "ImageNet, 100 clients with 50 of 1,000 classes"
COLUMNS = ("train loss", "accuracy", "bytes")


@dataclass(frozen=True)
class Table2Scale(Scale):
    """How much is run."""

    steps: int = 20
    batch: int = 64
    rate: float = 0.01
    dim: int = 750  # what Table 2's bytes imply: docs/large-models.md
    blocks: int = 50

    def methods(self) -> dict[str, Method]:
        """The rows of the table, Local with as many gradients, and lp-proj-1 without its tie."""
        steps, lr = self.steps, self.rate
        tie: dict[str, Any] = {"lam": 0.1, "lr": 0.1, "personal_lr": lr, "steps": steps}
        own = {"projection": "block", "dim": self.dim, "blocks": self.blocks, "reuse": True}
        return {
            "pFedMe": PFedMe(**tie),
            "FedAvg": FedAvg(lr=lr, steps=steps),
            "lp-proj-1": make_method("lp-proj-1", **tie, **own),
            "lp-proj-2": make_method("lp-proj-2", **tie, **own),
            EQUAL: Local(lr=lr, steps=steps),
            UNTIED: make_method("lp-proj-1", **{**tie, **own, "lam": 0.0}),
        }


SCALES = {
    "quick": Table2Scale(2, 1, {"clients": 4, "share": 0.008}, steps=4, batch=8, rate=0.001),
    "full": Table2Scale(200, 1, {"clients": 100}),
}


def write(
    folder: Path,
    scale: str,
    size: Table2Scale | None = None,
    case: Case | None = None,
    jobs: int = 0,
) -> list[Path]:
    """Run what is not stored yet and write the page."""
    size = size or SCALES[scale]
    images = where() / "imagenet"
    real = scale == "full" and images.is_dir()
    if real:
        options = {"partition": "classes", "classes_per_client": 50, "clients": 100, "size": 224}
        case = Case("folder", "resnet34", {"path": str(images), "memory": 64.0, **options})
    case = case or Case("cifar10", "resnet34")
    federation, task = case.load(**({} if real else size.options))
    by_row = scaled_runs(folder, "lp-proj-table2", scale, jobs).of_methods(
        size.methods(),
        federation,
        task,
        size.seeds,
        rounds=size.rounds,
        batch=size.batch,
        eval_every=0,
        sample=case.sample(federation.clients),
        chunk=2,
    )
    ours = {
        row: {
            "train loss": Figure.of(column(summaries, *FIGURES["train loss"])),
            "accuracy": Figure.of(column(summaries, *FIGURES["accuracy"])),
            "bytes": Figure.of([float(sum(s["bytes"].values())) for s in summaries], 0),
        }
        for row, summaries in by_row.items()
    }
    published = read_table("lp-proj-table2")[""]
    here = f"{federation.name}, {federation.clients} clients"
    cells = beside(TITLE, published, ours if real else {}, COLUMNS)
    if not real:
        cells += beside(f"{here}, in its place", {}, ours, COLUMNS)
    traffic = {row: sum(s[0]["bytes"].values()) / s[0]["rounds"] for row, s in by_row.items()}
    return page_from_text(
        "lp-proj-table2",
        facts={
            "size": size,
            "d": task.d,
            "sent": bytes_text(traffic["lp-proj-1"]),
            "pfedme_sent": bytes_text(traffic["pFedMe"]),
            "ratio": traffic["pFedMe"] / max(1.0, traffic["lp-proj-1"]),
            "equal": ours[EQUAL]["accuracy"],
            "tied": ours["lp-proj-1"]["accuracy"],
            "untied": ours[UNTIED]["accuracy"],
        },
        scale=f"{scale}: {size.rounds} rounds of {size.steps} steps, {size.seeds} seed, {here}",
        cells=cells,
        seconds=cpu_seconds(by_row),
    ).write(folder)
