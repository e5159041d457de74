"""Runs of methods on a quadratic problem, followed by ‖F(θ)‖ after every round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

import idiolect as il

from ..closed_forms.quadratic import Problem, QuadraticConstants
from ..page import Row
from ..panels import Line

FFGG, SCAFFOLD, LOCAL, L2GD = "FFGG", "SCAFFOLD", "Local GD", "L2GD"
JOINT = "best with one w for all"
POINTS = 160  # of a curve that are stored and drawn
WINDOW = 200  # rounds over which a run that changes by less than this share stands still
STILL = 1e-4
AT_MOST = 1e12  # times the norm at the start: diverged


@dataclass(frozen=True)
class NormCurve:
    """‖F(θ)‖ before the first round and after every round."""

    label: str
    norms: list[float]
    across: Sequence[float] = ()  # where the rounds stand on another axis; () = their numbers
    malicious: tuple[int, ...] = ()

    @property
    def rounds(self) -> Sequence[float]:
        return self.across or range(len(self.norms))

    def at(self, rounds: int) -> float:
        """After this number of rounds, or at the end of a run that stood still before."""
        return self.norms[min(rounds, len(self.norms) - 1)]

    def row(self, rounds: Sequence[int]) -> Row:
        """‖F(θ)‖ after each of these numbers of rounds, with three digits."""
        return {f"{r}": float(f"{self.at(r):.3g}") for r in rounds}

    def first_below(self, level: float) -> int | None:
        """The first round after which ‖F(θ)‖ is below a level."""
        return next((r for r, norm in enumerate(self.norms) if norm < level), None)

    def down_to(self, level: float) -> NormCurve:
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
class FollowedRuns:
    """Runs one after the other, with a bar on stderr over the gradients of all of them."""

    name: str
    total: float  # gradients per client of all runs

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

    def __enter__(self) -> FollowedRuns:
        self.bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.stop()

    def follow(
        self,
        label: str,
        problem: Problem,
        method: il.Method,
        rounds: int,
        cost: float,  # gradients per round
        stands_still: bool = False,  # end the run once ‖F(θ)‖ changes no more
        case: str = "",  # in the progress bar
        **settings: Any,
    ) -> NormCurve:
        """The curve of a run with all clients heard; ‖F‖ is that of the honest ones."""
        title = f"{label}, {case}" if case else label
        thetas = [torch.zeros(problem.T.shape[-1], dtype=torch.float64)]
        norms = [problem.norm(thetas[0])]

        def watch(moment: il.Moment) -> None:
            state = moment.state()
            thetas.append(state["theta"] if "theta" in state else state["w"][: len(thetas[0])])
            norms.append(problem.norm(thetas[-1]))
            self.bar.update(self.task, advance=cost, description=f"{self.name}: {title}")
            still = stands_still and len(norms) > WINDOW
            if still and abs(norms[-1] / norms[-WINDOW] - 1) < STILL:
                moment.stop()
            if not norms[-1] < AT_MOST * norms[0]:
                moment.stop()

        defaults: dict[str, Any] = {
            "rounds": rounds,
            "sample": len(problem.t),
            "batching": "full",
            "dtype": "float64",
            "eval_every": 0,
            "threads": 1,
            "progress": False,
            "on_round": watch,
        }
        result = il.run(method, problem.task(), problem.federation(), **defaults | settings)
        self.bar.update(self.task, advance=cost * (rounds - len(norms) + 1))
        rows = enumerate(result.clients_table())
        malicious = torch.tensor([k for k, row in rows if row.get("malicious")], dtype=torch.long)
        if len(malicious):
            norms = norms_of_honest(problem, torch.stack(thetas), malicious)
        curve = NormCurve(label, norms, malicious=tuple(malicious.tolist()))
        self.console.print(f"{title}: {norms[-1]:.3g} after {len(norms) - 1} rounds")
        return curve


def norms_of_honest(problem: Problem, thetas: Tensor, malicious: Tensor) -> list[float]:
    """‖F(θ)‖ with F the mean over the clients that are not malicious (equation 17)."""
    everyone = torch.arange(len(problem.t))
    honest = problem.at(everyone[~torch.isin(everyone, malicious)])
    return honest.operator(thetas).norm(dim=-1).tolist()


def exact(label: str, problem: Problem, lr: float, rounds: int) -> NormCurve:
    """FFGG with exact inner solutions: θ <- θ - γ F(θ), by the closed form of F."""
    theta = torch.zeros(problem.T.shape[-1], dtype=torch.float64)
    norms = [problem.norm(theta)]
    for _ in range(rounds):
        theta = theta - lr * problem.operator(theta)
        norms.append(problem.norm(theta))
    return NormCurve(label, norms)


# -- the methods of Section 5.2, with its step sizes ----------------------------------------------
def ffgg(constants: QuadraticConstants, tau: int, true: bool = False) -> il.Ffgg:
    """Algorithm 2 as solver: γ_w = 1/L_w; γ_θ = 1/L of Example 1, or of the true smoothness."""
    L = constants.F if true else constants.example1
    return il.Ffgg(part="w.*", lr=1 / L, solver="gd", private_lr=1 / constants.w, steps=tau)


def scaffold(constants: QuadraticConstants, tau: int) -> il.Scaffold:
    """Outer step 0.5, inner step 1/(L_f τ)."""
    return il.Scaffold(lr=1 / (constants.f * tau), steps=tau, server_rate=0.5)


def local_gd(constants: QuadraticConstants, tau: int) -> il.FedAvg:
    """FedAvg with τ gradient steps of size 1/(L_f τ)."""
    return il.FedAvg(lr=1 / (constants.f * tau), steps=tau)


def l2gd(constants: QuadraticConstants, tau: int) -> il.L2gd:
    """λ = 0.1, p = 1/τ and α = M / (2 max{L/(1-p), λ/p}), of which our `lr` is α/M.

    The paper prints the reciprocal of it, with which local steps would be above 2/L_f.
    """
    lam, p = 0.1, 1 / tau
    return il.L2gd(lam=lam, p=p, lr=0.5 / max(constants.f / (1 - p), lam / p))


def baselines(constants: QuadraticConstants, tau: int) -> dict[str, il.Method]:
    """The methods that FFGG is compared with."""
    return {
        SCAFFOLD: scaffold(constants, tau),
        LOCAL: local_gd(constants, tau),
        L2GD: l2gd(constants, tau),
    }


def joint(problem: Problem, rounds: int) -> NormCurve:
    """The best that a method with one w for all clients can reach."""
    norm = problem.norm(problem.joint_minimiser()[0])
    return NormCurve(JOINT, [norm] * (rounds + 1))
