"""The federations of the lp-proj paper (its Table 3), as all its tables have them."""

from __future__ import annotations

from dataclasses import replace

from idiolect.data import where

from ..case import Case

VOLUME = "Synthetic, by volume"  # sizes by a power law: Tables 10 to 15
CASES = {
    "Synthetic(0, 0)": Case("synthetic", "linear", {"alpha": 0.0, "beta": 0.0}),
    "Synthetic(1, 1)": Case("synthetic", "linear", {"alpha": 1.0, "beta": 1.0}),
    "EMNIST": Case(
        "quickdraw",
        "mlp",
        {"partition": "classes", "classes_per_client": 10},
        {"hidden": "100,100"},
        dim=80,
    ),
    "CIFAR": Case("cifar10", "lenet", dim=60),
    "MNIST": Case("mnist", "mlp", {"classes_per_client": 2}, clients_per_round=0.2, dim=50),
    "FASHIONMNIST": Case("fashion-mnist", "resnet-small", clients_per_round=0.2, dim=600),
    VOLUME: Case(
        "synthetic", "linear", {"alpha": 0.0, "beta": 0.0, "sizes": "power", "minimum": 100}
    ),
}
MAIN = tuple(title for title in CASES if title != VOLUME)


def case_of(title: str) -> Case:
    """A case, with the paper's EMNIST where the user's files of it are in the data cache."""
    case = CASES[title]
    own_files = title == "EMNIST" and (where() / "emnist").is_dir()
    return replace(case, data="emnist") if own_files else case
