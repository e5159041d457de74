"""Figure 3 of the FedDeper paper: the effect of ϱ, λ, τ and K."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from idiolect import FedDeper, Plan

from ..page import Page, page_from_text
from ..panels import Line, Panel
from ..runs import Summary, column, cpu_seconds, scaled_runs
from ..texts import read_text
from .runs import KEEP, LAM, LR, RHO, STEPS, WORDS, DeperCase, DeperSize

NAME = "feddeper-figure3"
CASE = DeperCase("MNIST", 10, "MLP", 5)


@dataclass(frozen=True)
class Point:
    """One setting of FedDeper."""

    rounds: int  # K
    rho: float = RHO[CASE.clients]
    lam: float = LAM
    steps: int = STEPS  # τ

    def plan(self, data: DeperSize) -> Plan:
        method = FedDeper(lr=LR, steps=self.steps, rho=self.rho, lam=self.lam)
        label = f"Deper rho={self.rho:g} lam={self.lam:g} steps={self.steps} rounds={self.rounds}"
        every = max(1, self.rounds // 5)
        run = {"sample": CASE.heard, "rounds": self.rounds, "eval_every": every}
        return data.plan(CASE, method, label, **run)


@dataclass(frozen=True)
class DeperFigure3Size:
    """What is varied; the paper's axes are in no text."""

    text: str
    rounds: int  # K of (a) to (c)
    rhos: Sequence[float] = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)
    lams: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 1.0)
    steps: Sequence[int] = (1, 5, 10, 20)
    shorter: Sequence[int] = (2, 5)  # (d): so many times fewer rounds, with as many more steps
    seeds: int = 1
    data: DeperSize = field(default_factory=lambda: DeperSize("", {CASE: 0}))

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
    "quick": DeperFigure3Size("quick: one seed, K = 50 rounds, Kτ = 500 in (d)", 50),
    "full": DeperFigure3Size(
        "full: three seeds, the paper's K = 500, Kτ = 5000 in (d)", 500, seeds=3
    ),
}


def write(folder: Path, scale: str) -> list[Path]:
    """Run what is missing, and write the page."""
    return page(folder, scale, SIZES[scale]).write(folder)


def page(folder: Path, scale: str, size: DeperFigure3Size, jobs: int = 0) -> Page:
    """Run what is missing, and draw the four panels."""
    panels = size.panels()
    points = dict.fromkeys(p for panel in panels.values() for p in panel.values())
    runs = scaled_runs(folder.parent, "feddeper", scale, jobs)
    plans = {p: p.plan(size.data) for p in points}
    by_point = runs(plans, size.data.stock([CASE]), range(size.seeds), KEEP)
    loss = {p: _mean(summaries, "train_loss") for p, summaries in by_point.items()}
    hits = {p: _mean(summaries, "test_accuracy") for p, summaries in by_point.items()}
    rho, lam, steps, rounds = ({x: loss[p] for x, p in panel.items()} for panel in panels.values())
    best, mixed, top = min(rho, key=rho.__getitem__), min(lam, key=lam.__getitem__), max(rho)
    words = read_text(NAME)["panels"]
    titles = {n: f"({letter}) {words[n]}" for letter, n in zip("abcd", panels, strict=True)}
    return page_from_text(
        NAME,
        facts={
            "words": WORDS,
            "lr": LR,
            "top": top,
            "top_loss": rho[top],
            "best": best,
            "best_loss": rho[best],
            "mixed": mixed,
            "lam": _listed(lam),
            "steps": _listed(steps),
            "rounds": _listed(rounds),
            "fewer": ""
            if size.rounds >= 500
            else f"; {size.rounds} of the paper's 500 rounds were run",
        },
        verdicts={
            "limited": rho[top] > rho[best] and 0.1 * LR <= best <= 10 * LR,
            "rho": min(rho) < best < top,
            "lam": min(lam) < mixed < max(lam),
            "steps": _falls(steps),
            "rounds": _falls(rounds),  # from few rounds to many
        },
        scale=size.text,
        tables={
            f"{titles[name]}:": [
                {
                    name: f"{x:g}",
                    **({"τ": p.steps} if name == "K" else {}),
                    "training loss": loss[p],
                    "test accuracy": hits[p],
                }
                for x, p in panel.items()
            ]
            for name, panel in panels.items()
        },
        pictures={
            "Test accuracy of the global model at the end": [
                Panel(
                    titles[name],
                    name,
                    "test accuracy",
                    [Line("", list(panel), [hits[p] for p in panel.values()], points=True)],
                )
                for name, panel in panels.items()
            ]
        },
        figures={
            name: {f"{x:g}": loss[p] for x, p in panel.items()} for name, panel in panels.items()
        },
        seconds=cpu_seconds(by_point),
    )


def _mean(summaries: Sequence[Summary], name: str) -> float:
    """A figure of the global model in the last round."""
    last = [rows[-1][name] for rows in column(summaries, "global_by_round")]
    return float("inf") if None in last else sum(last) / len(last)


def _falls(losses: dict[float, float]) -> bool:
    return all(b < a for a, b in pairwise(losses.values()))


def _listed(losses: dict[float, float]) -> str:
    return ", ".join(f"{x:g}: {y:.3g}" for x, y in losses.items())
