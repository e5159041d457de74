"""Runs of methods on a quadratic problem, followed by ‖F(θ)‖ after every round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

import idiolect as il

from ..closed_forms.quadratic import Problem, Quadratic, QuadraticConstants
from ..page import Row
from ..panels import Line, Panel
from ..runs import Work, train_all

FFGG, SCAFFOLD, LOCAL, L2GD = "FFGG", "SCAFFOLD", "Local GD", "L2GD"
JOINT = "best with one w for all"
POINTS = 160  # of a curve that are stored and drawn
WINDOW = 200  # rounds over which a run that changes by less than this share stands still
STILL = 1e-4
AT_MOST = 1e12  # times the norm at the start: diverged
K = TypeVar("K")


@lru_cache(maxsize=6)
def problem_of(drawn: Quadratic) -> Problem:
    return drawn.draw()


@dataclass(frozen=True)
class NormRun(Work):
    """A run with all clients heard: ‖F(θ)‖ of the honest clients, and the staleness of updates."""

    label: str
    drawn: Quadratic
    method: il.Method
    rounds: int
    gradients: float = 1.0  # per client and round
    stands_still: bool = False  # end the run once ‖F(θ)‖ changes no more
    settings: tuple[tuple[str, Any], ...] = ()

    def cost(self) -> float:
        return self.rounds * self.gradients

    def describe(self) -> str:
        return self.label

    def train(self) -> dict[str, Any]:
        problem = problem_of(self.drawn)
        thetas = [torch.zeros(problem.T.shape[-1], dtype=torch.float64)]
        norms = [problem.norm(thetas[0])]
        staleness: list[float] = []

        def watch(moment: il.Moment) -> None:
            state = moment.state()
            thetas.append(state["theta"] if "theta" in state else state["w"][: len(thetas[0])])
            norms.append(problem.norm(thetas[-1]))
            staleness.extend(line["staleness"] for line in moment.delays)
            still = self.stands_still and len(norms) > WINDOW
            if still and abs(norms[-1] / norms[-WINDOW] - 1) < STILL:
                moment.stop()
            if not norms[-1] < AT_MOST * norms[0]:
                moment.stop()

        result = il.run(
            self.method,
            problem.task(),
            problem.federation(),
            rounds=self.rounds,
            sample=len(problem.t),
            batching="full",
            dtype="float64",
            eval_every=0,
            threads=1,
            progress=False,
            on_round=watch,
            **dict(self.settings),
        )
        rows = enumerate(result.clients_table())
        malicious = [k for k, row in rows if row.get("malicious")]
        if malicious:
            norms = norms_of_honest(problem, torch.stack(thetas), torch.tensor(malicious))
        return {"norms": norms, "staleness": staleness}


def norms_of_honest(problem: Problem, thetas: Tensor, malicious: Tensor) -> list[float]:
    """‖F(θ)‖ with F the mean over the clients that are not malicious (equation 17)."""
    everyone = torch.arange(len(problem.t))
    honest = problem.at(everyone[~torch.isin(everyone, malicious)])
    return honest.operator(thetas).norm(dim=-1).tolist()


@dataclass(frozen=True)
class NormCurve:
    """‖F(θ)‖ before the first round and after every round."""

    label: str
    norms: Sequence[float]

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
        return self if end is None else NormCurve(self.label, self.norms[: end + 1])

    def line(self, points: int = POINTS, digits: int = 5, **options: Any) -> Line:
        """The curve with few points."""
        places = np.unique(np.linspace(0, len(self.norms) - 1, points).astype(int)).tolist()
        y = [float(f"{self.norms[i]:.{digits}g}") for i in places]
        return Line(self.label, [float(i) for i in places], y, **options)


Curves = dict[str, NormCurve]


def train_curves(
    jobs: Mapping[K, Mapping[str, NormRun]], folder: Path, name: str, workers: int
) -> dict[K, Curves]:
    """The curve of every run, by label."""
    results = train_all(dict(jobs), folder, name, workers)
    return {
        key: {label: NormCurve(label, results[job]["norms"]) for label, job in group.items()}
        for key, group in jobs.items()
    }


def stored_curves(curves: Curves) -> dict[str, Sequence[float]]:
    return {label: curve.line().y for label, curve in curves.items()}


def norm_panel(title: str, lines: Sequence[Line], across: str = "communication round") -> Panel:
    return Panel(title, across, "‖F(θ)‖", lines, log="y")


def exact(label: str, problem: Problem, lr: float, rounds: int) -> NormCurve:
    """FFGG with exact inner solutions: θ <- θ - γ F(θ), by the closed form of F."""
    theta = torch.zeros(problem.T.shape[-1], dtype=torch.float64)
    norms = [problem.norm(theta)]
    for _ in range(rounds):
        theta = theta - lr * problem.operator(theta)
        norms.append(problem.norm(theta))
    return NormCurve(label, norms)


def joint(problem: Problem, rounds: int) -> NormCurve:
    """The best that a method with one w for all clients can reach."""
    norm = problem.norm(problem.joint_minimiser()[0])
    return NormCurve(JOINT, [norm] * (rounds + 1))


# -- the methods of Section 5.2, with its step sizes ----------------------------------------------
def ffgg(constants: QuadraticConstants, tau: int, true: bool = False) -> il.Ffgg:
    """Algorithm 2 as solver: γ_w = 1/L_w; γ_θ = 1/L of Example 1, or of the true smoothness."""
    L = constants.F if true else constants.example1
    return il.Ffgg(part="w.*", lr=1 / L, solver="gd", private_lr=1 / constants.w, steps=tau)


def l2gd(constants: QuadraticConstants, tau: int) -> il.L2gd:
    """λ = 0.1, p = 1/τ and α = M / (2 max{L/(1-p), λ/p}), of which our `lr` is α/M.

    The paper prints the reciprocal of it, with which local steps would be above 2/L_f.
    """
    lam, p = 0.1, 1 / tau
    return il.L2gd(lam=lam, p=p, lr=0.5 / max(constants.f / (1 - p), lam / p))


def baselines(constants: QuadraticConstants, tau: int) -> dict[str, il.Method]:
    """The methods that FFGG is compared with: inner steps are 1/(L_f τ)."""
    lr = 1 / (constants.f * tau)
    return {
        SCAFFOLD: il.Scaffold(lr=lr, steps=tau, server_rate=0.5),
        LOCAL: il.FedAvg(lr=lr, steps=tau),
        L2GD: l2gd(constants, tau),
    }
