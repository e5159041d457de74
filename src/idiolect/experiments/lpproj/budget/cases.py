"""The federations of the tables, and their rows: methods, channels, step sizes to choose from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....method import Method
from ....methods import FedAvg, Local, make_method
from ....run.tune import Candidate

RATES = (0.05, 0.1, 0.5)  # the paper's grid; chosen on validation data of seed 0
FINETUNED = ", fine-tuned"  # the end of the label of a row whose models are fine-tuned before use
FINETUNE = {"finetune_steps": 2, "finetune_lr": 0.1}  # the paper's, "for a fair comparison"


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

    def rounds_of(self, label: str) -> int:
        everyone = label.startswith(("lp-proj", "Local"))
        return self.everyone_rounds if everyone else self.sampled_rounds

    @property
    def picture(self) -> str:
        return f"budget-{self.data}.png"


CASES = {
    "Synthetic(0, 0)": Case("synthetic", "linear", 21, 328_020, 0.6, 200, 200),
    "MNIST, 2 classes per client": Case("mnist", "mlp", 50, 228_000, 0.7, 10, 60),
}
CHANNELS = {  # the published algorithms, at settings of the paper's grid where it has one
    "QSGD": "qsgd(levels=5, bucket=500, norm=inf)",
    "QSGD, entropy coded": "qsgd(levels=5, bucket=500, norm=inf, coding=elias)",
    "DGC": "dgc(sparsity=0.999, start=0.75, rise=0.25)",
    "LBGM": "lbgm(threshold=0.5)",
    "Sketch": "sketch(exact=True)",
    "top-k, 8 bits": "feedback + topk(share=0.01) + int8",
}


def rows(dim: int) -> dict[str, list[Candidate]]:
    """Label -> the candidates among which validation data choose."""
    fedavg: list[Method] = [FedAvg(lr=lr, steps=5, weighting="equal") for lr in RATES]

    def through(**settings: Any) -> list[Candidate]:
        return [(method, settings) for method in fedavg]

    table: dict[str, list[Candidate]] = {
        "Local (sends nothing)": [(Local(lr=0.1, steps=20), {})],
        "lp-proj-1": [(make_method("lp-proj-1", dim=dim, preset="paper"), {})],
        "lp-proj-2": [(make_method("lp-proj-2", dim=dim, preset="paper"), {})],
        "FedAvg": through(),
        f"FedAvg{FINETUNED}": through(**FINETUNE),
    }
    for title, channel in CHANNELS.items():
        table[title] = through(channel=channel)
        table[f"{title}{FINETUNED}"] = through(**FINETUNE, channel=channel)
    return table
