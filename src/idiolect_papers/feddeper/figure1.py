"""Figure 1 and Remark 1 of the FedDeper paper: heterogeneity hurts FedAvg only between averagings.

The training loss after a fixed number Kτ of steps, against the local steps τ per round: of a
support vector machine on i.i.d. and on sorted data, and of quadratics, where a formula says it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from idiolect import FedAvg, Federation, Task
from idiolect.task import Loss, logits, shaped_as

from ..closed_forms.problems import Means
from ..page import page_from_text
from ..panels import Line, Panel
from ..runs import Work, exact_rounds, train_all

NAME = "feddeper-figure1"
DECAY = 0.01  # of the support vector machine: (DECAY/2) ||x||²


@dataclass(frozen=True)
class LocalStepsSize:
    """How much is run."""

    total: int = 1024  # Kτ
    taus: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    sorted: tuple[float, ...] = (0.0, 0.5, 1.0)  # shares of the samples that are not i.i.d.
    spreads: tuple[float, ...] = (0.0, 0.5, 1.0)
    repetitions: int = 20  # of τ = 1 with half of the clients heard
    clients: int = 10


class SquaredHinge(Loss):
    """½ max(0, 1 - y z)² for y = +1 (class 1) or -1 (class 0): a smooth support vector machine."""

    name = "squared_hinge"

    def each(self, outputs: Any, targets: Any) -> Tensor:
        scores = shaped_as(logits(outputs), targets)
        return 0.5 * (1 - (2 * targets - 1) * scores).clamp(min=0) ** 2

    def delta(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        sign = 2 * targets.to(outputs) - 1
        short = (1 - sign * outputs.squeeze(1)).clamp(min=0)
        return (-weights * sign * short).unsqueeze(1)


@lru_cache(maxsize=4)
def digits(clients: int, share: float) -> tuple[Federation, Tensor, Tensor]:
    """Odd or even? This share of the samples goes to clients in the order of the digits.

    The rest at random; every client has as many samples, so that the mean of the f_i is the same
    function for every share. Also inputs[n, 64] and targets[n].
    """
    from sklearn.datasets import load_digits

    images = load_digits()
    rng = np.random.default_rng(0)
    order = rng.permutation(len(images.target) // clients * clients)
    at_random = rng.random(len(order)) >= share
    place = np.empty(len(order), dtype=np.int64)
    in_order = order[~at_random]
    slots = np.arange(len(order))
    fixed = np.sort(rng.choice(slots, len(in_order), replace=False)) if len(in_order) else slots[:0]
    place[fixed] = in_order[np.argsort(images.target[in_order], kind="stable")]
    place[np.setdiff1d(slots, fixed)] = order[at_random]
    inputs = torch.from_numpy(images.data[place] / 16.0)
    targets = torch.from_numpy(images.target[place] % 2)
    ids = np.repeat(np.arange(clients), len(order) // clients)
    federation = Federation.from_arrays(
        inputs, targets, ids, classes=2, valid=0, test=0, name="digits, odd or even"
    )
    return federation, inputs, targets


@dataclass(frozen=True)
class MachineRun(Work):
    """FedAvg with exact gradients on the support vector machine: the training loss at the end."""

    share: float  # of sorted samples
    tau: int
    total: int
    clients: int
    lr: float = 0.1

    def cost(self) -> float:
        return self.total

    def train(self) -> dict[str, Any]:
        federation, inputs, targets = digits(self.clients, self.share)
        model = nn.Linear(64, 1)
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        task = Task(model, SquaredHinge())
        *_, last = exact_rounds(
            FedAvg(lr=self.lr, steps=self.tau),
            task,
            federation,
            rounds=self.total // self.tau,
            sample=self.clients,
            weight_decay=DECAY,
        )
        x = last.server["w"]
        losses = SquaredHinge().each(inputs @ x[:64, None] + x[64], targets)
        return {"loss": float(losses.mean() + DECAY / 2 * x.square().sum())}


@dataclass(frozen=True)
class QuadraticRun(Work):
    """FedAvg on quadratics: f(x^K) - f(x*), and x^K against that of gradient descent on f."""

    problem: Means
    tau: int
    total: int
    lr: float = 0.05
    heard: int = 0  # m; 0 = all, with exact gradients
    repetition: int = 0

    def cost(self) -> float:
        return self.total / 4

    def end(self) -> Tensor:  # [d]
        """x^K by the formula, for all clients heard: x̄ + (1 - mean_i g_i)^K (x⁰ - x̄).

        g_i = 1 - (1 - η h_i)^τ, the share of the way to c_i in a round; x̄ the mean of the c_i
        weighted by g_i.
        """
        g = 1 - (1 - self.lr * self.problem.curvatures) ** self.tau
        rest = (g[:, None] * self.problem.centres).sum(0) / g.sum()
        return rest * (1 - (1 - g.mean()) ** (self.total // self.tau))  # x⁰ = 0

    def train(self) -> dict[str, Any]:
        problem = self.problem
        *_, last = exact_rounds(
            FedAvg(lr=self.lr, steps=self.tau),
            problem.task(),
            problem.federation(self.repetition),
            rounds=self.total // self.tau,
            sample=self.heard or problem.clients,
        )
        x = last.server["w"]
        return {"excess": float(problem.excess(x)), "x": x.tolist()}


def write(folder: Path, size: LocalStepsSize | None = None, workers: int = 2) -> list[Path]:
    """Under two minutes on two cores."""
    began = time.monotonic()
    size = size or LocalStepsSize()
    n, taus = size.clients, list(size.taus)
    base = Means(clients=n, samples=2, d=20, low=0.5, high=4.0, noise=0.0)
    problems = {s: replace(base, spread=s) for s in size.spreads}
    machines = {
        share: [MachineRun(share, tau, size.total, n) for tau in taus] for share in size.sorted
    }
    quadratics = {
        s: [QuadraticRun(p, tau, size.total) for tau in taus] for s, p in problems.items()
    }
    steps = min(64, size.total)
    whole = {s: QuadraticRun(p, 1, steps) for s, p in problems.items()}
    sampled = {
        s: [QuadraticRun(p, 1, steps, heard=n // 2, repetition=r) for r in range(size.repetitions)]
        for s, p in problems.items()
    }
    results = train_all([machines, quadratics, whole, sampled], folder, NAME, workers)
    losses = {share: [results[job]["loss"] for job in jobs] for share, jobs in machines.items()}
    excess = {s: [results[job]["excess"] for job in jobs] for s, jobs in quadratics.items()}
    formula = {
        s: [float(job.problem.excess(job.end())) for job in jobs] for s, jobs in quadratics.items()
    }
    machine_gap = max(abs(curve[0] - losses[0.0][0]) for curve in losses.values())
    quadratic_gap = max(abs(curve[0] - excess[0.0][0]) for curve in excess.values())
    iid, mixed = losses[size.sorted[0]], losses[size.sorted[-1]]
    error = max(
        abs(a - b) for s in size.spreads for a, b in zip(excess[s], formula[s], strict=True)
    )
    widest = size.spreads[-1]
    limit = float(problems[widest].excess(problems[widest].centres.mean(0)))
    effects = {
        s: sampling_effect([results[job] for job in jobs], results[whole[s]])
        for s, jobs in sampled.items()
    }
    across = "local steps τ (Kτ fixed)"
    machine_lines = [Line(division(s), taus, curve, points=True) for s, curve in losses.items()]
    quadratic_lines = [
        Line(f"spread {s:g}", taus, curve, points=True) for s, curve in excess.items()
    ]
    formulas = [
        Line("" if i else "formula", taus, curve, formula=True, style=6)
        for i, curve in enumerate(formula.values())
    ]
    return page_from_text(
        NAME,
        facts={
            "size": size,
            "problem": problems[widest],
            "decay": DECAY,
            "machine_gap": machine_gap,
            "quadratic_gap": quadratic_gap,
            "equal": effects[size.spreads[0]],
            "widest": effects[widest],
            "iid": (iid[0], iid[-1]),
            "mixed": (mixed[0], mixed[-1]),
            "growth": mixed[-1] - mixed[-2],
            "last_tau": taus[-1],
            "excess": excess[widest][-1],
            "limit": limit,
            "error": error,
        },
        verdicts={
            "one_step": machine_gap < 1e-9 and quadratic_gap < 1e-9,
            "sampled": "same order",
            "many_steps": all(late >= early - 1e-12 for early, late in pairwise(mixed))
            and mixed[-1] > iid[-1],
            "limit": abs(excess[widest][-1] / limit - 1) < 0.1 and error < 1e-8,
        },
        tables={
            "After Kτ steps:": [
                {
                    "τ": tau,
                    "K": size.total // tau,
                    **{f"SVM, {division(share)}": curve[i] for share, curve in losses.items()},
                    **{f"quadratics, spread {s:g}": curve[i] for s, curve in excess.items()},
                }
                for i, tau in enumerate(taus)
            ],
            f"Remark 1 with half of the clients heard (τ = 1, K = {steps}):": [
                {
                    "spread": s,
                    "all heard: f(x^K) − f(x*)": results[whole[s]]["excess"],
                    "f(x^K) − f(x*)": effect["excess"],
                    "‖mean x^K − that with all heard‖": effect["gap"],
                    "its standard error": effect["error"],
                }
                for s, effect in effects.items()
            ],
        },
        figures={"excess": {str(s): c for s, c in excess.items()}},
        panels=[
            Panel("support vector machine", across, "training loss", machine_lines, log="x"),
            Panel("quadratics", across, "f(x^K) − f(x*)", quadratic_lines + formulas, log="x"),
        ],
        seconds=time.monotonic() - began,
    ).write(folder)


def sampling_effect(runs: list[dict[str, Any]], whole: Mapping[str, Any]) -> dict[str, float]:
    """What sampling clients changes at τ = 1, against a run with all of them."""
    x = torch.tensor([run["x"] for run in runs], dtype=torch.float64)
    all_heard = torch.tensor(whole["x"], dtype=torch.float64)
    return {
        "excess": float(np.mean([run["excess"] for run in runs])),
        "gap": float((x.mean(0) - all_heard).norm()),
        "error": float(x.std(0).norm() / len(x) ** 0.5),  # of the mean, over all coordinates
    }


def division(share: float) -> str:
    return "i.i.d." if share == 0 else "sorted" if share == 1 else f"{share:.0%} sorted"
