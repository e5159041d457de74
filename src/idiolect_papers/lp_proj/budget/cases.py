"""The federations of the tables, and their rows: methods, channels, settings to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

from idiolect import data, models
from idiolect.data.federation import Federation
from idiolect.method import Method
from idiolect.methods import FedAvg, Local, make_method
from idiolect.study.grids import grid_of
from idiolect.task.task import Task

RATES = (0.05, 0.1, 0.5)  # the paper's grid; chosen on validation data of seed 0
FINETUNED = ", fine-tuned"  # the end of the label of a row whose models are fine-tuned before use
FINETUNE: dict[str, Any] = {
    "finetune_steps": 2,
    "finetune_lr": 0.1,
}  # the paper's, "for a fair comparison"
TUNED = ", tuned"  # in the label of a row whose channel is chosen from the paper's grid too
Candidate = tuple[Method, dict[str, Any]]  # a method, and run settings of its own


@dataclass(frozen=True)
class Case:
    """A federation with the budget and the target of the paper, counted as it does."""

    data: str
    model: str
    dim: int  # of the subspace of lp-proj
    budget: int  # 32-bit words
    target: float
    everyone_rounds: int  # of methods that train everyone: they get there in a few rounds
    sampled_rounds: int  # of the others
    search_rounds: int  # of a run that settings of a tuned row are chosen by
    heard: int = 10  # a tenth of the clients
    eval_every: int = 1
    fixed: bool = True  # rows at fixed settings of the channel too
    options: dict[str, Any] = field(default_factory=dict)  # of the data

    def load(self) -> tuple[Federation, Task]:
        """The data and the model."""
        federation = data.load(self.data, **self.options)
        shape = tuple(federation.inputs.shape[1:])
        return federation, Task(partial(models.make, self.model, shape, federation.classes))

    def rounds_of(self, label: str) -> int:
        everyone = label.startswith(("lp-proj", "Local"))
        return self.everyone_rounds if everyone else self.sampled_rounds

    @property
    def picture(self) -> str:
        return f"budget-{self.data}.png"


VOLUME = "Synthetic, by volume"  # sizes by a power law: Table 11
CASES = {
    "Synthetic(0, 0)": Case("synthetic", "linear", 21, 328_020, 0.6, 200, 200, 20),
    "MNIST, 2 classes per client": Case("mnist", "mlp", 50, 228_000, 0.7, 10, 60, 10),
    "CIFAR-10, 2 classes per client": Case(
        "cifar10", "lenet", 60, 1_029_600, 0.4, 1, 10, 3, heard=20, eval_every=2, fixed=False
    ),
    VOLUME: Case(
        "synthetic",
        "linear",
        21,
        194_700,
        0.6,
        200,
        200,
        20,
        options={"sizes": "power", "minimum": 100},
    ),
}
MAIN = [title for title in CASES if title != VOLUME]  # of Tables 1 and 5
CHANNELS = {  # the published algorithms, at settings of the paper's grid where it has one
    "QSGD": "qsgd(levels=5, bucket=500, norm=inf)",
    "QSGD, entropy coded": "qsgd(levels=5, bucket=500, norm=inf, coding=elias)",
    "DGC": "dgc(sparsity=0.999, start=0.75, rise=0.25)",
    "LBGM": "lbgm(threshold=0.5)",
    "Sketch": "sketch(exact=True)",
    "top-k, 8 bits": "feedback + topk(share=0.01) + int8",
}
SKETCH_ROWS = (3, 6)  # 0.005 and 0.01 of the 610 numbers of the logistic model


def rows(case: Case, d: int) -> dict[str, list[Candidate]]:
    """Label -> the candidates among which validation data choose, for a model of d numbers."""
    table: dict[str, list[Candidate]] = {
        "Local (sends nothing)": [(Local(lr=0.1, steps=20), {})],
        "lp-proj-1": [(make_method("lp-proj-1", dim=case.dim, preset="paper"), {})],
        "lp-proj-2": [(make_method("lp-proj-2", dim=case.dim, preset="paper"), {})],
        "FedAvg": _fedavg(),
        f"FedAvg{FINETUNED}": _fedavg(**FINETUNE),
    }
    if case.model != "linear":  # it is for models that have parts
        points = grid_of("lp-proj", "lg-fedavg").points(d)
        table["LG-FedAvg"] = [(make_method("lg-fedavg", **p.fields), {}) for p in points]
    for title, channel in CHANNELS.items() if case.fixed else ():
        table[title] = _fedavg(channel=channel)
        table[f"{title}{FINETUNED}"] = _fedavg(**FINETUNE, channel=channel)
    for title, candidates in grids(d).items():
        table[f"{title}{TUNED}{FINETUNED}"] = candidates
    return table


def grids(d: int) -> dict[str, list[Candidate]]:
    """The paper's grids of compressed methods (its appendix C.2).

    A sketch of its rows, 0.005 d and 0.01 d, and columns, 0.02 d and 0.05 d, is larger than a model
    of more than 10,000 numbers: rows are as many as for the logistic model.
    """
    found: dict[str, list[Candidate]] = {
        title: [
            (FedAvg(**point.fields), {**FINETUNE, **point.run})
            for point in grid_of("lp-proj", title.lower()).points(d)
        ]
        for title in ("QSGD", "DGC", "LBGM")
    }
    sketches = product((0.02, 0.05), SKETCH_ROWS, (0.01, 0.05))
    found["Sketch"] = [
        candidate
        for c, rows, k in sketches
        for candidate in _fedavg(
            (1,),
            **FINETUNE,
            channel=f"sketch(exact=True, columns={round(c * d)}, rows={rows}, k={round(k * d)})",
        )
    ]
    return found


def _fedavg(steps: Sequence[int] = (5,), **settings: Any) -> list[Candidate]:
    """FedAvg with every step size."""
    return [(FedAvg(lr=lr, steps=n, weighting="equal"), settings) for n in steps for lr in RATES]
