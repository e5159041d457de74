"""Does the kind of P matter? lp-proj with each kind and several dimensions.

The paper's own is the dense Gaussian one. `idiolect reproduce projections` writes projections.md.
MNIST is fetched if it is not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from idiolect import LpProj, Plan
from idiolect.projections import PROJECTIONS
from idiolect.study import mean_over_seeds

from ..case import Case, stock_of
from ..page import table
from ..runs import stored_runs
from ..texts import read_text

KINDS = tuple(k for k in PROJECTIONS if k != "identity")
PS = (1.0, 2.0)
DIMS = (40, 80, 120, 160, 200)
DIM_KINDS = ("gaussian", "contiguous")
DIGITS = "digits, 2 classes per client"
TEXTS = read_text("projections")


@dataclass(frozen=True)
class ProjectionCase(Case):
    """A federation, its model, and how long lp-proj is run on it."""

    clients_per_round: float = 10
    rounds: int = 50


FEDERATIONS = {
    "Synthetic(0, 0)": ProjectionCase("synthetic", "linear"),
    DIGITS: ProjectionCase("digits", "mlp", {"clients": 20}, clients_per_round=5, dim=50),
    "MNIST, 2 classes per client": ProjectionCase("mnist", "mlp", dim=50, rounds=10),
}


Key = tuple[str, float, int, str]  # federation, p, dim, kind: a cell


def keys() -> dict[Key, None]:
    """All cells, each once: one of the dimensions is that of the first tables."""
    kinds = [(t, p, case.dim, k) for t, case in FEDERATIONS.items() for p in PS for k in KINDS]
    return dict.fromkeys([*kinds, *((DIGITS, 2.0, n, kind) for kind in DIM_KINDS for n in DIMS)])


def plan_of(key: Key) -> Plan:
    """The runs behind a cell."""
    title, p, dim, kind = key
    case = FEDERATIONS[title]
    method = LpProj(**{**LpProj.traits.presets["paper"], "p": p, "dim": dim, "projection": kind})
    settings = {"rounds": case.rounds, "sample": case.clients_per_round}
    settings |= {"eval_every": 0, "threads": 1}
    varied = {"dim": dim, "projection": kind, "data": title}
    name = f"lp-proj-{p:g}"
    return Plan.of(method, settings=settings, data=title, model=title, name=name, varied=varied)


def write(folder: Path, seeds: int = 3, jobs: int = 0) -> list[Path]:
    """Run everything (some minutes) and write projections.md."""
    stock = stock_of(FEDERATIONS)
    text = folder / "projections.md"
    with stored_runs(folder, "projections", jobs) as runs:
        cells = {}
        for key, by_seed in runs({k: plan_of(k) for k in keys()}, stock, range(seeds)).items():
            accuracy = mean_over_seeds("", by_seed)["accuracy"]
            half = float("nan") if accuracy["ci95"] is None else accuracy["ci95"]
            cells[key] = f"{accuracy['mean']:.4f} ± {half:.4f}"
        page = [TEXTS["head"]]
        for title, case in FEDERATIONS.items():
            size = f"d = {stock.tasks[title].d}, dim {case.dim}, {case.rounds} rounds"
            page += table(
                [
                    {f"{title}, {size}": f"lp-proj-{p:g}"}
                    | {kind: cells[title, p, case.dim, kind] for kind in KINDS}
                    for p in PS
                ]
            )
            page.append("")
        page.append(TEXTS["middle"])
        page += table(  # the paper's C.7.5 does it on EMNIST
            [
                {"digits, lp-proj-2": kind}
                | {f"dim {n}": cells[DIGITS, 2.0, n, kind] for n in DIMS}
                for kind in DIM_KINDS
            ]
        )
        text.write_text("\n".join(page) + "\n", encoding="utf-8")
    return [text]
