"""The subspace itself: Table 16 (is P to be orthogonal?) and Table 17 (which d_sub?).

`idiolect reproduce lp-proj-table16` and `lp-proj-table17`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from idiolect import Local, Method, Plan, Task, data, make_method, models
from idiolect.data import where
from idiolect.study import Stock

from ..marks import Cell, Figure
from ..page import Page
from ..published import read_figure, read_rows
from ..runs import Runs
from .personal import EQUAL, INNER, UNTIED

METHODS = ("lp-proj-1", "lp-proj-2")
RATE = 0.1  # lr = personal_lr = λ, R = 1: the middle of Appendix C.2
COLUMNS = ("train loss", "accuracy")
DIMS = (40, 80, 120, 160, 200)


@dataclass(frozen=True)
class Size:
    """How much is run."""

    rounds: int
    seeds: int
    options: dict[str, Any] = field(default_factory=dict)  # of the data

    def text(self, scale: str) -> str:
        part = "".join(f", {k} {v}" for k, v in self.options.items())
        return f"{scale}: {self.rounds} rounds, {self.seeds} seeds{part}"


SIZES16 = {"quick": Size(60, 3, {"clients": 20, "share": 0.2}), "full": Size(200, 10)}
SIZES17 = {"quick": Size(8, 2), "full": Size(200, 10)}


def tied(method: str, dim: int, **more: Any) -> Method:
    fields = {"lr": RATE, "personal_lr": RATE, "lam": RATE, "alternations": 1, "steps": INNER}
    return make_method(method, **{**fields, "dim": dim, **more})


def write_table16(
    folder: Path, scale: str, size: Size | None = None, source: str = "mnist", jobs: int = 0
) -> list[Path]:
    """With and without Gram-Schmidt on the rows of P."""
    size = size or SIZES16[scale]
    kinds = {"": "gaussian", ", orthogonal": "orthogonal"}
    methods = {
        f"{method}{end}": tied(method, 50, projection=kind)
        for method in METHODS
        for end, kind in kinds.items()
    }
    runs = Runs(folder / ".runs" / f"lp-proj-table16-{scale}", jobs)
    by_row = run(runs, methods, size, source, 0.2, "100")
    title = "MNIST, 2 classes per client"
    page = Page(
        name="lp-proj-table16",
        title="lp-proj, Table 16: orthogonalisation of P",
        scale=size.text(scale),
        opening=_opening(by_row, "with and without orthogonalisation"),
        printed="MNIST, one hidden layer of 100 units, d_sub = 50; train loss and test accuracy.",
        chosen="lr = personal_lr = λ = 0.1, R = 1, 20 inner steps, batches of 64; the number of "
        "rounds; a fifth of the clients heard per round. The paper prints variances over clients "
        "and no intervals over repeats.",
        cells=_cells(title, by_row, "lp-proj-table16", 6),
        reasons={"train loss": TRAINED},
        seconds=_seconds(by_row),
    )
    return page.write(folder)


def write_table17(
    folder: Path, scale: str, size: Size | None = None, source: str = "", jobs: int = 0
) -> list[Path]:
    """Dimensions of the subspace from 40 to 200, on the user's EMNIST files or a stand-in."""
    size = size or SIZES17[scale]
    source = source or ("emnist" if (where() / "emnist").is_dir() else "quickdraw")
    stands_in = source != "emnist"
    methods = {f"{method}, {dim}": tied(method, dim) for method in METHODS for dim in DIMS}
    options: dict[str, Any] = {}
    if source in ("quickdraw", "emnist"):
        options = {"partition": "classes", "classes_per_client": 10}
    size = Size(size.rounds, size.seeds, {**options, **size.options})
    runs = Runs(folder / ".runs" / f"lp-proj-table17-{scale}", jobs)
    by_row = run(runs, methods, size, source, 0.1, "100,100")
    page = Page(
        name="lp-proj-table17",
        title="lp-proj, Table 17: the dimension of the subspace",
        scale=size.text(scale),
        opening=_opening(by_row, "d_sub from 40 to 200"),
        printed="EMNIST, 248 clients with 10 of 62 classes, two hidden layers of 100 units, d_sub "
        "from 40 to 200; train loss and test accuracy.",
        chosen=(STAND_IN if stands_in else "")
        + "lr = personal_lr = λ = 0.1, R = 1, 20 inner steps, batches of 64; the "
        "number of rounds. The paper prints variances over clients and no intervals.",
        cells=_cells(
            "QuickDraw-62 in place of EMNIST" if stands_in else "EMNIST",
            by_row,
            "lp-proj-table17",
            4,
            stands_in,
        ),
        reasons={
            "": "the paper's ten accuracies lie within 0.0024 of each other and it prints no "
            "interval: which of two is larger may be chance"
        },
        seconds=_seconds(by_row),
    )
    return page.write(folder)


def run(
    runs: Runs,
    methods: dict[str, Method],
    size: Size,
    source: str,
    client_share: float,
    hidden: str,
) -> dict[str, list[dict[str, Any]]]:
    """The methods, Local with as many gradients, and lp-proj-1 without its tie."""
    federation = data.load(source, **size.options)
    make = partial(models.make, "mlp", federation.shape, federation.classes, hidden=hidden)
    stock = Stock({"": federation}, {"": Task(make)})
    dim = next(iter(methods.values())).as_dict()["dim"]
    every = methods | {
        EQUAL: Local(lr=RATE, steps=INNER),
        UNTIED: tied("lp-proj-1", dim, lam=0.0),
    }
    sample = max(1, round(client_share * federation.clients))
    run_settings = {"rounds": size.rounds, "sample": sample, "eval_every": 0}
    points = {n: Plan.of(m, settings=run_settings, name=n) for n, m in every.items()}
    return runs(points, stock, range(size.seeds))


def _cells(
    title: str,
    by_row: dict[str, list[dict[str, Any]]],
    table: str,
    digits: int,
    stand_in: bool = False,
) -> list[Cell]:
    published = {row["method"]: row for row in read_rows(table)}
    cells = []
    for row, summaries in by_row.items():
        ours = {
            "train loss": Figure.of([s["train"]["loss"]["mean"] for s in summaries], digits),
            "accuracy": Figure.of([s["accuracy"]["mean"] for s in summaries]),
        }
        for column in COLUMNS:
            paper = read_figure(published[row][column]) if row in published else None
            cells.append(Cell(title, row, column, paper, ours[column], stand_in))
    return cells


def _opening(by_row: dict[str, list[dict[str, Any]]], what: str) -> str:
    """How far apart the accuracies are, beside Local and λ = 0."""
    means = {
        row: Figure.of([s["accuracy"]["mean"] for s in summaries])
        for row, summaries in by_row.items()
    }
    ours = [f.mean for row, f in means.items() if row not in (EQUAL, UNTIED) and f.mean is not None]
    spread = max(ours) - min(ours) if ours else 0.0
    return (
        f"The accuracies of all rows, {what}, lie within {spread:.4f} of each other. Local with as "
        f"many gradients reaches {means[EQUAL]}, lp-proj-1 with λ = 0 (no subspace at all) "
        f"{means[UNTIED]}: where these are the same, a table of kinds or sizes of P shows that P "
        "does no harm, not what it is good for."
    )


def _seconds(by_row: dict[str, list[dict[str, Any]]]) -> float:
    return sum(s["cpu_seconds"] for summaries in by_row.values() for s in summaries)


STAND_IN = """\
QuickDraw-62 in place of EMNIST, 50 clients with 10 classes each (it never counts as agreeing); """
TRAINED = "the train loss falls with every further round, and the paper's number is not printed"
