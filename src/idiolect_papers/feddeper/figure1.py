"""Figure 1 and Remark 1 of the FedDeper paper: heterogeneity hurts FedAvg only between averagings.

The training loss after a fixed number Kτ of steps, against the local steps τ per round: of a
support vector machine on i.i.d. and on sorted data, and of quadratics, where a formula says it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import idiolect as il
from idiolect.core.types import Tree
from idiolect.data.federation import Federation
from idiolect.methods import FedAvg
from idiolect.run.run import torch_threads
from idiolect.task.losses import Loss, beside, logits
from idiolect.task.task import Task

from ..closed_forms.problems import Means
from ..page import Claim, Page, Row
from ..panels import Line, Panel
from ..rates import checked
from ..runs import Work, finished

NAME = "feddeper-figure1"
EXCESS, GAP, ERROR = "f(x^K) − f(x*)", "‖mean x^K − that with all heard‖", "its standard error"
DECAY = 0.01  # of the support vector machine: (DECAY/2) ||x||²


@dataclass(frozen=True)
class Size:
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

    def each(self, outputs: Tree, targets: Tree) -> Tensor:
        found = beside(logits(outputs), targets)
        return 0.5 * (1 - (2 * targets - 1) * found).clamp(min=0) ** 2

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

    found = load_digits()
    rng = np.random.default_rng(0)
    order = rng.permutation(len(found.target) // clients * clients)
    at_random = rng.random(len(order)) >= share
    place = np.empty(len(order), dtype=np.int64)
    kept = order[~at_random]
    slots = np.arange(len(order))
    fixed = np.sort(rng.choice(slots, len(kept), replace=False)) if len(kept) else slots[:0]
    place[fixed] = kept[np.argsort(found.target[kept], kind="stable")]
    place[np.setdiff1d(slots, fixed)] = order[at_random]
    inputs = torch.from_numpy(found.data[place] / 16.0)
    targets = torch.from_numpy(found.target[place] % 2)
    ids = np.repeat(np.arange(clients), len(order) // clients)
    federation = Federation.from_arrays(
        inputs, targets, ids, classes=2, valid=0, test=0, name="digits, odd or even"
    )
    return federation, inputs, targets


@dataclass(frozen=True)
class Machine(Work):
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
        with torch_threads(1):
            rounds = il.iterate(
                FedAvg(lr=self.lr, steps=self.tau),
                task,
                federation,
                rounds=self.total // self.tau,
                sample=self.clients,
                batching="full",
                weight_decay=DECAY,
                dtype="float64",
            )
            *_, last = rounds
        x = last.server["w"]
        losses = SquaredHinge().each(inputs @ x[:64, None] + x[64], targets)
        return {"loss": float(losses.mean() + DECAY / 2 * x.square().sum())}


@dataclass(frozen=True)
class Quadratics(Work):
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
        with torch_threads(1):
            rounds = il.iterate(
                FedAvg(lr=self.lr, steps=self.tau),
                problem.task(),
                problem.federation(self.repetition),
                rounds=self.total // self.tau,
                sample=self.heard or problem.clients,
                batching="full",
                dtype="float64",
            )
            *_, last = rounds
        x = last.server["w"]
        return {"excess": float(problem.excess(x)), "x": x.tolist()}


class Cases:
    def __init__(self, size: Size):
        self.size = size
        n = size.clients
        base = Means(clients=n, samples=2, d=20, low=0.5, high=4.0, noise=0.0)
        problems = {s: replace(base, spread=s) for s in size.spreads}
        self.machines = {
            share: {tau: Machine(share, tau, size.total, n) for tau in size.taus}
            for share in size.sorted
        }
        self.quadratics = {
            s: {tau: Quadratics(p, tau, size.total) for tau in size.taus}
            for s, p in problems.items()
        }
        steps = min(64, size.total)
        self.sampled = {
            s: [
                Quadratics(p, 1, steps, heard=n // 2, repetition=r) for r in range(size.repetitions)
            ]
            for s, p in problems.items()
        }
        self.whole = {s: Quadratics(p, 1, steps) for s, p in problems.items()}

    def all(self) -> Iterator[Work]:
        groups: list[dict[Any, Any]] = [*self.machines.values(), *self.quadratics.values()]
        for group in groups:
            yield from group.values()
        for jobs in self.sampled.values():
            yield from jobs
        yield from self.whole.values()


def write(folder: Path, size: Size | None = None, workers: int = 2) -> list[Path]:
    """Under two minutes on two cores."""
    began = time.monotonic()
    cases = Cases(size or Size())
    results = finished(list(cases.all()), folder, NAME, workers)
    return _reproduced(cases, results, time.monotonic() - began).write(folder)


def _reproduced(cases: Cases, results: dict[Work, dict[str, Any]], seconds: float) -> Page:
    size = cases.size
    taus = list(size.taus)
    losses = {
        share: [results[job]["loss"] for job in group.values()]
        for share, group in cases.machines.items()
    }
    excess = {
        s: [results[job]["excess"] for job in group.values()]
        for s, group in cases.quadratics.items()
    }
    formula = {
        s: [float(job.problem.excess(job.end())) for job in group.values()]
        for s, group in cases.quadratics.items()
    }
    machine_gap = max(abs(curve[0] - losses[0.0][0]) for curve in losses.values())
    quadratic_gap = max(abs(curve[0] - excess[0.0][0]) for curve in excess.values())
    iid, mixed = losses[size.sorted[0]], losses[size.sorted[-1]]
    rises = all(late >= early - 1e-12 for early, late in pairwise(mixed))
    error = max(
        abs(a - b) for s in size.spreads for a, b in zip(excess[s], formula[s], strict=True)
    )
    limits = {
        s: float(p.problem.excess(p.problem.centres.mean(0)))
        for s, p in ((s, next(iter(g.values()))) for s, g in cases.quadratics.items())
    }
    widest = size.spreads[-1]
    rows = _sampled(cases, results)
    claims = [
        checked(
            "Remark 1 (i): at τ = 1 heterogeneity has no effect",
            f"the losses of i.i.d. and sorted data differ by {machine_gap:.1e} (support vector "
            f"machine) and {quadratic_gap:.1e} (quadratics): rounding errors. All "
            "clients heard, exact gradients",
            machine_gap < 1e-9 and quadratic_gap < 1e-9,
        ),
        Claim(
            "in expectation also where clients are sampled",
            f"the mean of x^K over {size.repetitions} repetitions is "
            f"{rows[-1][GAP]:.2g} from that with all heard (standard error {rows[-1][ERROR]:.2g}); "
            f"but {EXCESS} goes from {rows[0][EXCESS]:.2g} to {rows[-1][EXCESS]:.2g} with the "
            "heterogeneity",
            "same order",
            "who is sampled matters more if clients are unlike: the variance of x^K grows, which "
            "an expectation of x^K does not show",
        ),
        checked(
            "Figure 1: with Kτ fixed, the loss grows with τ on non-i.i.d. data",
            f"sorted data: {mixed[0]:.4f} at τ = 1 to {mixed[-1]:.4f} at τ = {taus[-1]}; i.i.d. "
            f"data: {iid[0]:.4f} to {iid[-1]:.4f}",
            rises and mixed[-1] > iid[-1],
        ),
        checked(
            "until it reaches an upper limit, set by ‖x* − v_i*‖",
            f"quadratics: {excess[widest][-1]:.4g} at τ = {taus[-1]}; the loss at the mean of the "
            f"v_i* is {limits[widest]:.4g}; measured and formula differ by {error:.0e}. The loss "
            f"of the machine still grows by {mixed[-1] - mixed[-2]:.3f} in the last doubling of τ: "
            "its clients are far from their own solutions after so few steps",
            abs(excess[widest][-1] / limits[widest] - 1) < 0.1 and error < 1e-8,
        ),
    ]
    panels = [
        Panel(
            "support vector machine",
            "local steps τ (Kτ fixed)",
            "training loss",
            [Line(_named(share), taus, curve, points=True) for share, curve in losses.items()],
            log="x",
        ),
        Panel(
            "quadratics",
            "local steps τ (Kτ fixed)",
            "f(x^K) − f(x*)",
            [
                *(
                    Line(f"spread {s:g}", taus, curve, points=True, style=i)
                    for i, (s, curve) in enumerate(excess.items())
                ),
                *(
                    Line("formula" if i == 0 else "", taus, curve, formula=True, style=6)
                    for i, curve in enumerate(formula.values())
                ),
            ],
            log="x",
        ),
    ]
    by_tau: list[Row] = [
        {
            "τ": tau,
            "K": size.total // tau,
            **{f"SVM, {_named(share)}": curve[i] for share, curve in losses.items()},
            **{f"quadratics, spread {s:g}": curve[i] for s, curve in excess.items()},
        }
        for i, tau in enumerate(taus)
    ]
    return Page(
        NAME,
        "FedDeper, Figure 1 and Remark 1: heterogeneity and local steps",
        settings=SETTINGS.format(size=size, problem=cases.whole[widest].problem, decay=DECAY),
        claims=claims,
        tables={
            "After Kτ steps:": by_tau,
            f"Remark 1 with half of the clients heard (τ = 1, K = {cases.whole[widest].total}):": (
                rows
            ),
        },
        figures={"excess": {str(s): c for s, c in excess.items()}},
        panels=panels,
        seconds=seconds,
        order=30,
    )


def _sampled(cases: Cases, results: dict[Work, dict[str, Any]]) -> list[Row]:
    """What sampling clients changes at τ = 1."""
    rows = []
    for s, jobs in cases.sampled.items():
        x = torch.tensor([results[job]["x"] for job in jobs], dtype=torch.float64)
        all_heard = torch.tensor(results[cases.whole[s]]["x"], dtype=torch.float64)
        error = x.std(0).norm() / len(x) ** 0.5  # of the mean, over all coordinates
        rows.append(
            {
                "spread": s,
                "all heard: f(x^K) − f(x*)": results[cases.whole[s]]["excess"],
                EXCESS: float(np.mean([results[job]["excess"] for job in jobs])),
                GAP: float((x.mean(0) - all_heard).norm()),
                ERROR: float(error),
            }
        )
    return rows


def _named(share: float) -> str:
    return "i.i.d." if share == 0 else "sorted" if share == 1 else f"{share:.0%} sorted"


SETTINGS = """\
The paper's Figure 1: FedAvg with a support vector machine on i.i.d. and non-i.i.d. data, the
training loss against τ with Kτ fixed. It names neither the data nor n, Kτ, η or the machine. Here:
the digits of scikit-learn, odd or even, a linear machine with squared hinge loss and
({decay}/2) ‖x‖² from zero, n = {size.clients} clients with equally many samples, all heard, exact
gradients, η = 0.1 and Kτ = {size.total}. The mean of the f_i is the same function however the
samples are dealt out, so that only the division differs: at random, or in the order of the digits
(one digit per client), or half of the samples so.

Beside it quadratics f_i(x) = (h_i/2) ‖x − c_i‖² in R^{problem.d}, h_i from {problem.low:g} to
{problem.high:g}, c_i around x* with a spread that is the heterogeneity, η = 0.05, for which x^K is
known: x̄ + (1 − mean g_i)^K (x⁰ − x̄), g_i = 1 − (1 − η h_i)^τ, x̄ the mean of the c_i weighted by
the g_i. As τ grows x̄ goes from x* to the plain mean of the clients' own solutions v_i* = c_i.
"""
