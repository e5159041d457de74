"""What came out of the runs of Table 1: figures of the global and the personal models."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from idiolect.methods import FedDeper
from idiolect.study.sweep import Stock

from ..marks import Figure
from ..page import Claim
from ..runs import Runs, Summary
from .cases import CASES, ROUNDS, SMALLER, SMALLER_RHO, Case, Size, methods

KEEP = ("by_round", "global_by_round")
CLASSES = 10
DIVERGED = 2  # times the loss of a guess


@dataclass(frozen=True)
class Outcome:
    """All runs of some cases."""

    size: Size
    stock: Stock
    summaries: Mapping[tuple[Case, str], list[Summary]]

    @property
    def cases(self) -> list[Case]:
        return list(dict.fromkeys(case for case, _ in self.summaries))

    @property
    def seconds(self) -> float:
        return sum(s["cpu_seconds"] for found in self.summaries.values() for s in found)

    def accuracy(self, case: Case, method: str) -> Figure | None:
        """Of the global model on the pooled test data, in per cent; None where it was not run."""
        found = self.summaries.get((case, method))
        if not found or "global_model" not in found[0]:
            return None
        return _percent([s["global_model"]["accuracy"]["mean"] for s in found])

    def own(self, case: Case, method: str) -> Figure | None:
        """Of personal models on their clients' own test data."""
        found = self.summaries.get((case, method))
        return None if not found else _percent([s["accuracy"]["mean"] for s in found])

    def rounds(self, case: Case, method: str) -> list[int]:
        """The evaluated ones."""
        return [row["round"] for row in self.summaries[case, method][0]["global_by_round"]]

    def curve(self, case: Case, method: str, name: str) -> list[float]:
        """A figure of the global model in every evaluated round, the mean over seeds."""
        return self._mean(case, method, "global_by_round", name)

    def own_curve(self, case: Case, method: str) -> list[float]:
        """The accuracy of personal models in every evaluated round, the mean over seeds."""
        return self._mean(case, method, "by_round", "accuracy")

    def _mean(self, case: Case, method: str, table: str, name: str) -> list[float]:
        rows = [[row[name] for row in s[table]] for s in self.summaries[case, method]]
        values = np.array([[np.nan if v is None else v for v in row] for row in rows])
        return [float(v) for v in values.mean(0)]

    @property
    def learnt(self) -> list[Case]:
        """The cases in which some method has learnt something in the rounds that were run."""
        guess = self.size.learnt * math.log(CLASSES)
        return [case for case in self.cases if self.lowest(case) < guess]

    def lowest(self, case: Case) -> float:
        """The lowest training loss of all methods."""
        curves = [self.curve(case, m, "train_loss") for m in methods(case.clients)]
        return min(loss for curve in curves for loss in curve if math.isfinite(loss))

    def fewer(self, case: Case) -> str:
        """A reason why a figure may be another one, where fewer rounds were run."""
        run, paper = self.size.rounds[case], ROUNDS[case.data]
        return "" if run == paper else f"{run} of the paper's {paper} rounds"


def outcome(folder: Path, scale: str, size: Size, cases: Iterable[Case], jobs: int = 0) -> Outcome:
    """The runs of those cases that are run at this size; stored ones are not run again.

    Table 1 and the figures have their runs in common, in a directory that stays.
    """
    run = {c: size.rounds[c] for c in CASES if c in set(cases) and c in size.rounds}
    settings = size.settings(run)
    runs = Runs(directory(folder, scale), jobs)
    stock = size.stock(run)
    return Outcome(size, stock, runs(settings, stock, range(size.seeds), KEEP))


def directory(folder: Path, scale: str) -> Path:
    """Where runs are stored: beside the folder of pages."""
    return folder.parent / ".runs" / f"feddeper-{scale}"


def why(found: Outcome, cases: Iterable[Case], of: Sequence[str] = ()) -> str:
    """The reason why something differs in these cases, as far as it is known; `of` some methods."""
    cases = list(cases)
    rounds = " and ".join(sorted({found.fewer(c) for c in cases} - {""}))
    fled = [
        f"{m} diverges ({c})"
        for c in cases
        for m in of or methods(c.clients)
        if diverges(found, c, m)
    ]
    known = [*fled, *([f"{rounds} were run"] if rounds else [])]
    return "; ".join(known if fled else ["not found", *known])


def diverges(found: Outcome, case: Case, method: str) -> str:
    """That a method's training loss ends far above that of a guess; "" where it does not."""
    curve = found.curve(case, method, "train_loss")
    if curve[-1] <= DIVERGED * math.log(CLASSES):
        return ""
    rounds = found.rounds(case, method)
    lowest = int(np.nanargmin(curve))
    text = (
        f"it diverges: its training loss is {curve[lowest]:.2f} in round {rounds[lowest]} and "
        f"{curve[-1]:,.0f} in round {rounds[-1]}"
    )
    made = methods(case.clients)[method]
    if not isinstance(made, FedDeper):
        return text
    waits = case.clients / case.heard
    text += (
        f". A client's own model waits {waits:.0f} rounds for its turn, and ϱ then pushes by how "
        "far the shared one has moved away from it: with steady movement by ϱτn/(mλ) = "
        f"{made.rho * made.steps * waits / made.lam:.1f} times as much as it moves per round. The "
        "likely reason, not a proof: the pull of the loss is not in this picture"
    )
    if (case, SMALLER) not in found.summaries:
        return text
    return text + (
        f". With ϱ = {SMALLER_RHO}, the one other value tried, after this was seen, it ends at "
        f"{found.accuracy(case, SMALLER)} %. The paper prints ϱ for Figure 7 alone"
    )


def too_few(found: Outcome, cases: Iterable[Case]) -> str:
    """That no method has learnt anything yet in some cases; "" where there is no such case."""
    early = [c for c in cases if c not in found.learnt]
    return "; ".join(
        f"{c}: after {found.fewer(c)} the lowest training loss is {found.lowest(c):.2f}, and that "
        f"of a guess {math.log(CLASSES):.2f}: too few to compare methods"
        for c in early
    )


def counted(paper: str, ours: str, holds: int, of: int, reason: str = "not found") -> Claim:
    """A claim about several panels: it agrees in all of them, in most of them, or it differs."""
    if holds == of:
        return Claim(paper, ours, "agrees")
    return Claim(paper, ours, "same order" if 2 * holds >= of else "differs", reason)


def _percent(values: Sequence[Any]) -> Figure:
    return Figure.of([None if v is None else 100 * v for v in values], digits=2)
