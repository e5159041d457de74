"""Does the kind of P matter? lp-proj with each kind and several dimensions.

The paper's own is the dense Gaussian one. `idiolect reproduce projections` writes projections.md.
MNIST is fetched if it is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console

from .. import data, models
from ..data.federation import Federation
from ..methods import LpProj
from ..projections import PROJECTIONS
from ..run.kept import Kept, kept
from ..run.run import run
from ..task.task import Task

KINDS = tuple(k for k in PROJECTIONS if k != "identity")
DIMS = (40, 80, 120, 160, 200)
DIGITS = "digits, 2 classes per client"


@dataclass(frozen=True)
class Setting:
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
    "Synthetic(0, 0)": Setting("synthetic", "linear", 21, 10, 50),
    DIGITS: Setting("digits", "mlp", 50, 5, 50, {"clients": 20}),
    "MNIST, 2 classes per client": Setting("mnist", "mlp", 50, 10, 10),
}


def cells(
    methods: Iterable[LpProj],
    title: str,
    federation: Federation,
    task: Task,
    seeds: int,
    keep: Kept,
) -> Iterator[str]:
    """The accuracy of each method."""
    setting = FEDERATIONS[title]
    settings: dict[str, Any] = {"rounds": setting.rounds, "sample": setting.heard, "seeds": seeds}
    for method in methods:

        def accuracy(method: LpProj = method) -> dict[str, Any]:
            result = run(
                method, task, federation, **settings, eval_every=0, threads=1, progress=False
            )
            return result.summary()["accuracy"]

        found = keep(accuracy, title, method.as_dict(), settings)
        half = float("nan") if found["ci95"] is None else found["ci95"]
        yield f"{found['mean']:.4f} ± {half:.4f}"


def _method(p: float, dim: int, kind: str) -> LpProj:
    return LpProj(**{**LpProj.presets["paper"], "p": p, "dim": dim, "projection": kind})


def kinds(seeds: int, keep: Kept) -> Iterator[str]:
    """The tables of kinds, line by line."""
    for title, setting in FEDERATIONS.items():
        federation, task = setting.load()
        size = f"d = {task.d}, dim {setting.dim}, {setting.rounds} rounds"
        yield _row(f"{title}, {size}", KINDS)
        yield _rule(KINDS)
        for p in (1.0, 2.0):
            methods = [_method(p, setting.dim, kind) for kind in KINDS]
            yield _row(f"lp-proj-{p:g}", cells(methods, title, federation, task, seeds, keep))
        yield ""


def dims(seeds: int, keep: Kept) -> Iterator[str]:
    """The table of dimensions on digits (the paper's C.7.5 does it on EMNIST)."""
    federation, task = FEDERATIONS[DIGITS].load()
    yield _row("digits, lp-proj-2", [f"dim {n}" for n in DIMS])
    yield _rule(DIMS)
    for kind in ("gaussian", "contiguous"):
        methods = [_method(2.0, n, kind) for n in DIMS]
        yield _row(kind, cells(methods, DIGITS, federation, task, seeds, keep))


def _row(name: str, cells: Iterable[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def _rule(cells: Sequence[Any]) -> str:
    return "|" + "---|" * (len(cells) + 1)


def write(folder: Path, seeds: int = 3) -> list[Path]:
    """Run everything (some minutes) and write projections.md."""
    console = Console(stderr=True)
    page = []
    with kept(folder / ".projections.jsonl") as keep:
        # shown as they come
        for line in chain([HEAD], kinds(seeds, keep), [MIDDLE], dims(seeds, keep)):
            page.append(line)
            if line.startswith("|"):
                console.print(line, highlight=False, soft_wrap=True)
        (folder / "projections.md").write_text("\n".join(page) + "\n", encoding="utf-8")
    return [folder / "projections.md"]


HEAD = """\
# Which projection?

`contiguous`, unless you reproduce the paper: one pass over the model, nothing kept but one sign
per coordinate, and P Pᵀ = I exactly. `idiolect projections` shows singular values, memory, time
and bytes of every kind for your model.

Accuracy of lp-proj (`preset=paper`) with each kind, mean over 3 seeds ± half the 95 % interval
(another seed is another P too). At the paper's λ and η the tie to the subspace is weak, and Local
is as good on these data: the tables show that the kind of P does no harm, not that the subspace
helps; [defaults.md](defaults.md) has a federation where it does.
Written by `idiolect reproduce projections`.
"""
MIDDLE = """\
The dimension of the subspace:
"""
