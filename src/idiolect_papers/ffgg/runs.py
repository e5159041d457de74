"""Runs of methods on a quadratic problem, followed by ‖F(θ)‖ after every round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from idiolect.method import Method
from idiolect.methods import FedAvg, Ffgg, L2gd, Scaffold
from idiolect.run.callbacks import Moment
from idiolect.run.run import run

from ..closed_forms.quadratic import Constants, Problem
from ..panels import Line

POINTS = 160  # of a curve that are stored and drawn
WINDOW = 200  # rounds over which a run that changes by less than this share stands still
STILL = 1e-4
AT_MOST = 1e12  # times the norm at the start: diverged


@dataclass(frozen=True)
class Curve:
    """‖F(θ)‖ before the first round and after every round."""

    label: str
    norms: list[float]
    across: Sequence[float] = ()  # where the rounds stand on another axis; () = their numbers
    malicious: tuple[int, ...] = ()

    @property
    def rounds(self) -> Sequence[float]:
        return self.across or range(len(self.norms))

    def at(self, round: int) -> float:
        """After so many rounds; where a run stood still before, what it stood at."""
        return self.norms[min(round, len(self.norms) - 1)]

    def first_below(self, level: float) -> int | None:
        """The first round after which ‖F(θ)‖ is below a level."""
        return next((r for r, norm in enumerate(self.norms) if norm < level), None)

    def down_to(self, level: float) -> Curve:
        """The curve up to the first round after which it is below a level."""
        end = self.first_below(level)
        return self if end is None else replace(self, norms=self.norms[: end + 1])

    def line(self, label: str = "", **options: Any) -> Line:
        """The curve with few points."""
        places = np.unique(np.linspace(0, len(self.norms) - 1, POINTS).astype(int))
        x = [float(self.rounds[i]) for i in places]
        y = [float(f"{self.norms[i]:.5g}") for i in places]
        return Line(label or self.label, x, y, **options)


@dataclass
class Runs:
    """Runs one after the other, with a bar on stderr over the gradients of all of them."""

    name: str
    total: float  # gradients per client of all runs
    found: dict[str, Curve] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.console = Console(stderr=True)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            speed_estimate_period=600,
        )
        self.task = self.bar.add_task(self.name, total=self.total)

    def __enter__(self) -> Runs:
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def follow(
        self,
        label: str,
        problem: Problem,
        method: Method,
        rounds: int,
        cost: float,  # gradients per round
        stands_still: bool = False,  # end the run once ‖F(θ)‖ changes no more
        **settings: Any,
    ) -> Curve:
        """The curve of a run with all clients heard; ‖F‖ is that of the honest ones."""
        thetas = [torch.zeros(problem.T.shape[-1], dtype=torch.float64)]
        norms = [problem.norm(thetas[0])]

        def watch(moment: Moment) -> None:
            state = moment.state()
            thetas.append(state["theta"] if "theta" in state else state["w"][: len(thetas[0])])
            norms.append(problem.norm(thetas[-1]))
            self.bar.update(self.task, advance=cost, description=f"{self.name}: {label}")
            still = stands_still and len(norms) > WINDOW
            if still and abs(norms[-1] / norms[-WINDOW] - 1) < STILL:
                moment.stop()
            if not norms[-1] < AT_MOST * norms[0]:
                moment.stop()

        given: dict[str, Any] = {
            "rounds": rounds,
            "sample": len(problem.t),
            "batching": "full",
            "dtype": "float64",
            "eval_every": 0,
            "threads": 1,
            "progress": False,
            "on_round": watch,
        }
        result = run(method, problem.task(), problem.federation(), **given | settings)
        self.bar.update(self.task, advance=cost * (rounds - len(norms) + 1))
        malicious = result.session().people.malicious
        if len(malicious):
            norms = norms_of_honest(problem, torch.stack(thetas), malicious)
        curve = Curve(label, norms, malicious=tuple(malicious.tolist()))
        self.console.print(f"{label}: {norms[-1]:.3g} after {len(norms) - 1} rounds")
        return curve


def norms_of_honest(problem: Problem, thetas: Tensor, malicious: Tensor) -> list[float]:
    """‖F(θ)‖ with F the mean over the clients that are not malicious (equation 17)."""
    everyone = torch.arange(len(problem.t))
    honest = problem.at(everyone[~torch.isin(everyone, malicious)])
    return honest.operator(thetas).norm(dim=-1).tolist()


def exact(label: str, problem: Problem, lr: float, rounds: int) -> Curve:
    """FFGG with exact inner solutions: θ <- θ - γ F(θ), by the closed form of F."""
    theta = torch.zeros(problem.T.shape[-1], dtype=torch.float64)
    norms = [problem.norm(theta)]
    for _ in range(rounds):
        theta = theta - lr * problem.operator(theta)
        norms.append(problem.norm(theta))
    return Curve(label, norms)


# -- the methods of Section 5.2, with its step sizes ----------------------------------------------
def ffgg(constants: Constants, tau: int, true: bool = False) -> Ffgg:
    """Algorithm 2 as solver: γ_w = 1/L_w; γ_θ = 1/L of Example 1, or of the true smoothness."""
    L = constants.F if true else constants.example1
    return Ffgg(part="w.*", lr=1 / L, solver="gd", private_lr=1 / constants.w, steps=tau)


def scaffold(constants: Constants, tau: int) -> Scaffold:
    """Outer step 0.5, inner step 1/(L_f τ)."""
    return Scaffold(lr=1 / (constants.f * tau), steps=tau, server_rate=0.5)


def local_gd(constants: Constants, tau: int) -> FedAvg:
    """FedAvg with τ gradient steps of size 1/(L_f τ)."""
    return FedAvg(lr=1 / (constants.f * tau), steps=tau)


def l2gd(constants: Constants, tau: int) -> L2gd:
    """λ = 0.1, p = 1/τ and α = M / (2 max{L/(1-p), λ/p}), of which our `lr` is α/M.

    The paper prints the reciprocal of it, with which local steps would be above 2/L_f.
    """
    lam, p = 0.1, 1 / tau
    return L2gd(lam=lam, p=p, lr=0.5 / max(constants.f / (1 - p), lam / p))
