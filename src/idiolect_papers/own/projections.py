"""Does the kind of P matter? lp-proj with each kind and several dimensions.

The paper's own is the dense Gaussian one. `idiolect reproduce projections` writes projections.md.
MNIST is fetched if it is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from idiolect import Federation, LpProj, Plan, Task, data, models
from idiolect.projections import PROJECTIONS
from idiolect.study import Stock, mean_over_seeds

from ..runs import stored_runs
from ..texts import read_text

KINDS = tuple(k for k in PROJECTIONS if k != "identity")
PS = (1.0, 2.0)
DIMS = (40, 80, 120, 160, 200)
DIM_KINDS = ("gaussian", "contiguous")
DIGITS = "digits, 2 classes per client"


@dataclass(frozen=True)
class Case:
    """A federation, its model, and how lp-proj is run on it."""

    data: str
    model: str
    dim: int
    heard: int
    rounds: int
    options: dict[str, Any] = field(default_factory=dict)

    def load(self) -> tuple[Federation, Task]:
        federation = data.load(self.data, **self.options)
        shape = tuple(federation.inputs.shape[1:])
        return federation, Task(partial(models.make, self.model, shape, 10))


FEDERATIONS = {
    "Synthetic(0, 0)": Case("synthetic", "linear", 21, 10, 50),
    DIGITS: Case("digits", "mlp", 50, 5, 50, {"clients": 20}),
    "MNIST, 2 classes per client": Case("mnist", "mlp", 50, 10, 10),
}


Key = tuple[str, float, int, str]  # federation, p, dim, kind: a cell
Cells = Mapping[Key, str]


def keys() -> dict[Key, None]:
    """All cells, each once: one of the dimensions is that of the first tables."""
    kinds = [
        (title, p, FEDERATIONS[title].dim, k) for title in FEDERATIONS for p in PS for k in KINDS
    ]
    return dict.fromkeys([*kinds, *((DIGITS, 2.0, n, kind) for kind in DIM_KINDS for n in DIMS)])


def setting(key: Key) -> Plan:
    """The runs behind a cell."""
    title, p, dim, kind = key
    case = FEDERATIONS[title]
    method = LpProj(**{**LpProj.traits.presets["paper"], "p": p, "dim": dim, "projection": kind})
    settings = {"rounds": case.rounds, "sample": case.heard, "eval_every": 0, "threads": 1}
    varied = {"dim": dim, "projection": kind, "data": title}
    return Plan.of(
        method, settings=settings, data=title, model=title, name=f"lp-proj-{p:g}", varied=varied
    )


def kinds(cells: Cells, stock: Stock) -> Iterator[str]:
    """The tables of kinds, line by line."""
    for title, case in FEDERATIONS.items():
        size = f"d = {stock.tasks[title].d}, dim {case.dim}, {case.rounds} rounds"
        yield _row(f"{title}, {size}", KINDS)
        yield _rule(KINDS)
        for p in PS:
            yield _row(f"lp-proj-{p:g}", [cells[title, p, case.dim, kind] for kind in KINDS])
        yield ""


def dims(cells: Cells) -> Iterator[str]:
    """The table of dimensions on digits (the paper's C.7.5 does it on EMNIST)."""
    yield _row("digits, lp-proj-2", [f"dim {n}" for n in DIMS])
    yield _rule(DIMS)
    for kind in DIM_KINDS:
        yield _row(kind, [cells[DIGITS, 2.0, n, kind] for n in DIMS])


def _cell(accuracy: Mapping[str, Any]) -> str:
    half = float("nan") if accuracy["ci95"] is None else accuracy["ci95"]
    return f"{accuracy['mean']:.4f} ± {half:.4f}"


def _row(name: str, cells: Iterable[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def _rule(cells: Sequence[Any]) -> str:
    return "|" + "---|" * (len(cells) + 1)


def write(folder: Path, seeds: int = 3, jobs: int = 0) -> list[Path]:
    """Run everything (some minutes) and write projections.md."""
    loaded = {title: case.load() for title, case in FEDERATIONS.items()}
    stock = Stock(
        {t: data for t, (data, _) in loaded.items()}, {t: m for t, (_, m) in loaded.items()}
    )
    text = folder / "projections.md"
    with stored_runs(folder, "projections", jobs) as runs:
        by_key = runs({key: setting(key) for key in keys()}, stock, range(seeds))
        cells = {key: _cell(mean_over_seeds("", s)["accuracy"]) for key, s in by_key.items()}
        page = [HEAD, *kinds(cells, stock), MIDDLE, *dims(cells)]
        text.write_text("\n".join(page) + "\n", encoding="utf-8")
    return [text]


TEXTS = read_text("projections")
HEAD = TEXTS["head"]
MIDDLE = TEXTS["middle"]
