"""Figure 3 of the FedDeper paper: the effect of ϱ, λ, τ and K."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from idiolect import FedDeper, Plan

from ..page import Claim, Page, Row
from ..panels import Line, Panel
from ..runs import Runs, Summary
from .runs import BATCH, CHOSEN, KEEP, LAM, LR, PRINTED, RHO, STEPS, Case, directory, task_name
from .runs import Size as Data

NAME = "feddeper-figure3"
CASE = Case("MNIST", 10, "MLP", 5)


@dataclass(frozen=True)
class Point:
    """One setting of FedDeper."""

    rounds: int  # K
    rho: float = RHO[CASE.clients]
    lam: float = LAM
    steps: int = STEPS  # τ

    def setting(self, data: Data) -> Plan:
        method = FedDeper(lr=LR, steps=self.steps, rho=self.rho, lam=self.lam)
        run = {"sample": CASE.heard, "batch": BATCH, "rounds": self.rounds}
        run["eval_every"] = max(1, self.rounds // 5)
        label = f"Deper rho={self.rho:g} lam={self.lam:g} steps={self.steps} rounds={self.rounds}"
        return Plan.of(
            method, settings=run, data=data.data_name(CASE), model=task_name(CASE), name=label
        )


@dataclass(frozen=True)
class Size:
    """What is varied; the paper's axes are in no text."""

    said: str
    rounds: int  # K of (a) to (c)
    rhos: Sequence[float] = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)
    lams: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0)
    steps: Sequence[int] = (1, 5, 10, 20)
    shorter: Sequence[int] = (2, 5)  # (d): so many times fewer rounds, with as many more steps
    seeds: int = 1
    data: Data = field(default_factory=lambda: Data("", {CASE: 0}))

    def panels(self) -> dict[str, dict[float, Point]]:
        """Panel -> what is varied -> setting."""
        K = self.rounds
        return {
            "ϱ": {rho: Point(K, rho=rho) for rho in self.rhos},
            "λ": {lam: Point(K, lam=lam) for lam in self.lams},
            "τ": {steps: Point(K, steps=steps) for steps in self.steps},
            "K": {K // s: Point(K // s, steps=STEPS * s) for s in (*reversed(self.shorter), 1)},
        }


SIZES = {
    "quick": Size("quick: one seed, K = 50 rounds, Kτ = 500 in (d)", 50),
    "full": Size("full: three seeds, the paper's K = 500, Kτ = 5000 in (d)", 500, seeds=3),
}


def write(folder: Path, scale: str) -> list[Path]:
    """Run what is missing, and write the page."""
    return page(folder, scale, SIZES[scale]).write(folder)


def page(folder: Path, scale: str, size: Size, jobs: int = 0) -> Page:
    """Run what is missing, and draw the four panels."""
    panels = size.panels()
    points = dict.fromkeys(p for panel in panels.values() for p in panel.values())
    settings = {p: p.setting(size.data) for p in points}
    runs = Runs(directory(folder, scale), jobs)
    by_point = runs(settings, size.data.stock({CASE: 0}), range(size.seeds), KEEP)
    loss = {p: _mean(summaries, "train_loss") for p, summaries in by_point.items()}
    hits = {p: _mean(summaries, "test_accuracy") for p, summaries in by_point.items()}
    losses = {name: {x: loss[p] for x, p in panel.items()} for name, panel in panels.items()}
    return Page(
        NAME,
        "FedDeper, Figure 3: the effect of ϱ, λ, τ and K",
        scale=size.said,
        printed=PRINTED + " " + SAID,
        chosen=CHOSEN + " " + LEFT,
        claims=_claims(losses, size),
        opening=OPENING,
        tables={
            f"({letter}) {WORDS[name]}:": _rows(name, panel, loss, hits)
            for letter, (name, panel) in zip("abcd", panels.items(), strict=True)
        },
        pictures={
            "Test accuracy of the global model at the end": [
                Panel(
                    f"({letter}) {WORDS[name]}",
                    name,
                    "test accuracy",
                    [Line("", list(panel), [hits[p] for p in panel.values()], points=True)],
                )
                for letter, (name, panel) in zip("abcd", panels.items(), strict=True)
            ]
        },
        figures={name: {f"{x:g}": y for x, y in curve.items()} for name, curve in losses.items()},
        seconds=sum(s["cpu_seconds"] for summaries in by_point.values() for s in summaries),
    )


def _mean(summaries: Sequence[Summary], name: str) -> float:
    """A figure of the global model in the last round."""
    last = [s["global_by_round"][-1][name] for s in summaries]
    return float("inf") if None in last else sum(last) / len(last)


def _rows(
    name: str, panel: dict[float, Point], loss: dict[Point, float], hits: dict[Point, float]
) -> list[Row]:
    return [
        {
            name: f"{x:g}",
            **({"τ": p.steps} if name == "K" else {}),
            "training loss": loss[p],
            "test accuracy": hits[p],
        }
        for x, p in panel.items()
    ]


def _claims(losses: dict[str, dict[float, float]], size: Size) -> list[Claim]:
    rho, lam, steps, rounds = (losses[name] for name in ("ϱ", "λ", "τ", "K"))
    best = min(rho, key=lambda x: rho[x])
    mixed = min(lam, key=lambda x: lam[x])
    top = max(rho)
    rising = list(steps.values())
    falling = list(rounds.values())  # from few rounds to many
    fewer = "" if size.rounds >= 500 else f"; {size.rounds} of the paper's 500 rounds were run"
    return [
        _checked(
            "ϱ is limited to the same order of magnitude as the learning rate η",
            f"η = {LR:g}; the loss at ϱ = {top:g} is {rho[top]:.3g}, at ϱ = {best:g} "
            f"{rho[best]:.3g}",
            rho[top] > rho[best] and 0.1 * LR <= best <= 10 * LR,
            fewer,
        ),
        _checked(
            "a suitable ϱ exists",
            f"the lowest loss is at ϱ = {best:g}, between others that are worse",
            min(rho) < best < top,
            fewer,
        ),
        _checked(
            "λ yields a similar result: a suitable one exists",
            f"the lowest loss is at λ = {mixed:g}, of "
            + ", ".join(f"{x:g}: {y:.3g}" for x, y in lam.items()),
            min(lam) < mixed < max(lam),
            fewer,
        ),
        _checked(
            "additional local updates are effective",
            "loss for τ = " + ", ".join(f"{x:g}: {y:.3g}" for x, y in steps.items()),
            all(b < a for a, b in pairwise(rising)),
            fewer,
        ),
        _checked(
            "fewer aggregations lead to worse performance",
            "loss with Kτ fixed for K = " + ", ".join(f"{x:g}: {y:.3g}" for x, y in rounds.items()),
            all(b < a for a, b in pairwise(falling)),
            fewer,
        ),
    ]


def _checked(paper: str, ours: str, agrees: bool, fewer: str) -> Claim:
    if agrees:
        return Claim(paper, ours, "agrees")
    return Claim(paper, ours, "differs", f"not found{fewer}")


WORDS = {"ϱ": "penalty ϱ", "λ": "mixing rate λ", "τ": "local steps τ, K fixed", "K": "K, Kτ fixed"}
OPENING = """\
The paper prints no numbers for this figure: what it says of it is compared. The figures are those
of the global model in the last round."""
SAID = """\
Figure 3: n = 10, p = 0.5, τ = 10 in (a) and (b), K = 500 in (a) to (c), ϱ = 0.03 in (b) to (d),
λ = 0.5 in (a), (c) and (d)."""
LEFT = """\
For Figure 3: MNIST with the MLP, and the values that are varied. That Kτ is fixed in (d) is taken
from what the text says of it. λ below 1/2 lies outside the theory."""
