"""The federations of Table 3 of the lp-proj paper, and how much of them each scale runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from idiolect import data, models
from idiolect.data.download import where
from idiolect.data.federation import Federation
from idiolect.task.task import Task


@dataclass(frozen=True)
class Size:
    """How much is run."""

    rounds: int
    seeds: int
    search_rounds: int  # of every candidate; 0: the first candidate, without a search
    grid: str = "whole"  # "whole": Appendix C.2; "R = 1": of it, R = 1; "few": of that, a part
    options: dict[str, Any] = field(default_factory=dict)  # of the data

    @property
    def text(self) -> str:
        """In words, for the page."""
        grids = {
            "whole": "the grid of C.2",
            "R = 1": "the part R = 1 of C.2",
            "few": "lr = 0.1, R = 1, personal_lr 0.05 and 0.1, λ 0.1 and 1 of C.2",
        }
        search = f"{grids[self.grid]} searched with {self.search_rounds} rounds of one more seed"
        if not self.search_rounds:
            search = "no search: lr = personal_lr = λ = 0.1, R = 1"
        part = ", ".join(f"{k} {v}" for k, v in self.options.items())
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"{self.rounds} rounds, {seeds}, {search}" + (part and f"; {part}")


@dataclass(frozen=True)
class Case:
    """A federation, its model, and the dimension of lp-proj's subspace."""

    title: str  # as the paper calls it
    data: str
    model: str
    dim: int
    sizes: dict[str, Size]
    options: dict[str, Any] = field(default_factory=dict)
    model_options: dict[str, Any] = field(default_factory=dict)
    heard: float = 0.1  # of the clients, per round
    note: str = ""  # where the data are not those of the paper
    own: Case | None = None  # with the paper's data, where the user's files of them are there

    def here(self) -> Case:
        """This case, or the one with the paper's own data where they are in the data cache."""
        return self.own if self.own and (where() / self.own.data).is_dir() else self

    def load(self, size: Size) -> tuple[Federation, Task]:
        federation = data.load(self.data, **{**self.options, **size.options})
        return federation, self.task(federation)

    def task(self, federation: Federation) -> Task:
        make = partial(
            models.make, self.model, federation.shape, federation.classes, **self.model_options
        )
        return Task(make)

    def sample(self, clients: int) -> int:
        return max(1, round(self.heard * clients))

    @property
    def parts(self) -> bool:
        """Whether the model has parts: LG-FedAvg is for those."""
        return self.model != "linear"


_SYNTHETIC = {"quick": Size(200, 3, 25), "full": Size(200, 10, 200)}
SYNTHETIC = Case(
    "Synthetic(0, 0)", "synthetic", "linear", 21, _SYNTHETIC, {"alpha": 0.0, "beta": 0.0}
)
VOLUME = Case(
    "Synthetic, by volume",
    "synthetic",
    "linear",
    21,
    _SYNTHETIC,
    {"alpha": 0.0, "beta": 0.0, "sizes": "power", "minimum": 100},
)
_EMNIST = Case(
    "EMNIST",
    "emnist",
    "mlp",
    80,
    {
        "quick": Size(20, 2, 2, "few", {"clients": 24, "share": 0.1}),
        "full": Size(200, 10, 200, options={"clients": 248}),
    },
    {"partition": "classes", "classes_per_client": 10},
    {"hidden": "100,100"},
)
CASES = {
    case.title: case
    for case in (
        SYNTHETIC,
        Case("Synthetic(1, 1)", "synthetic", "linear", 21, _SYNTHETIC, {"alpha": 1.0, "beta": 1.0}),
        Case(
            "EMNIST",
            "quickdraw",
            "mlp",
            80,
            {"quick": Size(20, 2, 5, "few"), "full": Size(200, 10, 200)},
            {"partition": "classes", "classes_per_client": 10},
            {"hidden": "100,100"},
            note="QuickDraw-62 stands in for EMNIST: 50 clients with 70 training drawings each "
            "in place of 248 with 2,000; levels cannot agree, orders may",
            own=_EMNIST,
        ),
        Case(
            "CIFAR",
            "cifar10",
            "lenet",
            60,
            {
                "quick": Size(15, 1, 3, "few", {"clients": 20, "share": 0.1}),
                "full": Size(200, 10, 200),
            },
        ),
        Case(
            "MNIST",
            "mnist",
            "mlp",
            50,
            {
                "quick": Size(60, 2, 5, "R = 1", {"clients": 20, "share": 0.2}),
                "full": Size(200, 10, 200),
            },
            heard=0.2,
        ),
        Case(
            "FASHIONMNIST",
            "fashion-mnist",
            "resnet-small",
            600,
            {
                "quick": Size(5, 1, 0, "few", {"clients": 5, "share": 0.05}),
                "full": Size(200, 10, 200),
            },
            heard=0.2,
        ),
    )
}
