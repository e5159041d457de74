"""Asynchronous against synchronous FFGG: Figure 3 of its paper. `idiolect reproduce ffgg-figure3`.

Step sizes are chosen as the paper says, from theoretical values times a few factors: by the closed
form of an update, which is an affine map of θ here. What is shown are runs of the method itself.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect import Ffgg, parse_delays, streams

from ..closed_forms.quadratic import Problem, Quadratic
from ..page import page_from_text
from ..panels import Line, Panel
from ..runs import train_all
from .runs import NormCurve, NormRun, norm_panel, problem_of

NAME = "ffgg-figure3"
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the theoretical step sizes, as printed
SYNC, THEOREM, SHARE = "synchronous", "asynchronous, Theorem 7", "asynchronous, 1/(M L)"
MODES = (SYNC, THEOREM, SHARE)
POINTS = 100  # of a curve
REAL = "measured, two processes"


@dataclass(frozen=True)
class Figure3Size:
    """The sizes of the experiment; those of the paper as defaults."""

    drawn: Quadratic = Quadratic(
        clients=40, samples=1000, shared=400, private=50, zeta=10.0, truth="common"
    )
    taus: tuple[int, ...] = (5, 10, 50, 200)
    rounds: tuple[int, ...] = (100, 100, 60, 30)  # of M updates, for each τ
    delays: str = "exponential(mean=1)"
    real_rounds: int = 10  # with worker processes, for delays of a real machine
    workers: int = 2  # runs at once

    def run(self, tau: int, mode: str, rounds: int, steps: StepSizes) -> NormRun:
        method = Ffgg(part="w.*", lr=steps.lr, solver="gd", private_lr=steps.private_lr, steps=tau)
        engine = () if mode == SYNC else (("timing", "arrivals"), ("delays", self.delays))
        label = f"τ = {tau}, {mode}"
        return NormRun(label, self.drawn, method, rounds, 4.0 + tau, settings=engine)

    def run_in_processes(self, job: NormRun) -> dict[str, Any]:
        """The same by the real clock: hosts in two processes."""
        engine = (("timing", "arrivals"), ("engine", "processes"), ("hosts", 2))
        return replace(job, rounds=self.real_rounds, settings=engine).train()


@dataclass(frozen=True)
class StepSizes:
    """γ_θ and γ_w, and the factors of their theoretical values that they come from."""

    lr: float
    private_lr: float
    outer: float = 1.0
    inner: float = 1.0


# -- step sizes -----------------------------------------------------------------------------------
def order_of(problem: Problem, delays: str, arrivals: int, seed: int = 0) -> list[tuple[int, int]]:
    """(client, its staleness) of every arrival, with all clients always at work."""
    drawn = parse_delays(delays)
    assert drawn is not None
    M = len(problem.t)
    keys = streams.name_keys([str(m) for m in range(M)])
    turns = np.zeros(M, dtype=np.int64)
    queue = [(float(d), m) for m, d in enumerate(drawn.draw(seed, keys, turns))]
    heapq.heapify(queue)
    began = [0] * M
    order = []
    for r in range(arrivals):
        now, m = heapq.heappop(queue)
        order.append((m, r - began[m]))
        turns[m] += 1
        began[m] = r + 1
        more = float(drawn.draw(seed, keys[[m]], turns[[m]])[0])
        heapq.heappush(queue, (now + more, m))
    return order


@dataclass(frozen=True)
class Affine:
    """Line 5 of Algorithm 1 after τ steps of GD: Δ_m(θ) = A_m θ + K_m w_0 - c_m."""

    A: Tensor  # [M, d, d]
    K: Tensor  # [M, d, d_w]
    c: Tensor  # [M, d]

    @classmethod
    def of(cls, problem: Problem, tau: int, private_lr: float) -> Affine:
        values, vectors = torch.linalg.eigh(problem.W.mT @ problem.W)
        # w_τ - w* = (I - γ WᵀW)^τ (w_0 - w*)
        contraction = vectors @ ((1 - private_lr * values) ** tau).diag_embed() @ vectors.mT
        K = problem.T.mT @ problem.W @ contraction
        inverse = torch.linalg.pinv(problem.W)
        zero = torch.zeros(problem.T.shape[-1], dtype=torch.float64)
        best = (inverse @ problem.t.unsqueeze(-1)).squeeze(-1)  # w*(0)
        c = (K @ best.unsqueeze(-1)).squeeze(-1) - problem.operators(zero)
        return cls(problem.slopes + K @ inverse @ problem.T, K, c)


def tuned(
    problem: Problem, tau: int, mode: str, rounds: int, order: Sequence[tuple[int, int]]
) -> StepSizes:
    """The factors with the least ‖F(θ)‖ at the end, of all 25 pairs."""
    base, private = theoretical(problem, mode, max(stale for _, stale in order))
    best = StepSizes(base, private)
    least = float("inf")
    for inner in FACTORS:
        update = Affine.of(problem, tau, inner * private)
        lrs = base * torch.tensor(FACTORS, dtype=torch.float64)
        ends = (
            synchronous(update, lrs, rounds) if mode == SYNC else asynchronous(update, lrs, order)
        )
        for outer, theta in zip(FACTORS, ends, strict=True):
            norm = problem.norm(theta)
            if norm < least:
                least = norm
                best = StepSizes(outer * base, inner * private, outer, inner)
    return best


def theoretical(problem: Problem, mode: str, most: int) -> tuple[float, float]:
    """(γ_θ, γ_w), with γ_θ = 1/L of Example 1, 1/(2 L √(2 M τ_max)) of Theorem 7, or 1/(M L)."""
    constants = problem.constants()
    M = len(problem.t)
    L = constants.example1
    lr = {SYNC: 1 / L, THEOREM: 1 / (2 * L * (2 * M * max(most, 1)) ** 0.5), SHARE: 1 / (M * L)}
    return lr[mode], 1 / constants.w


def synchronous(update: Affine, lrs: Tensor, rounds: int) -> Tensor:  # -> [F, d]
    """θ <- θ - γ mean_m Δ_m(θ), for every step size."""
    rng = np.random.default_rng(0)
    theta = torch.zeros(len(lrs), update.A.shape[-1], dtype=torch.float64)
    A, c = update.A.mean(0), update.c.mean(0)
    for _ in range(rounds):
        w = torch.from_numpy(rng.normal(size=(len(update.K), update.K.shape[-1], 1)))
        theta = theta - lrs[:, None] * (theta @ A.mT + (update.K @ w).mean(0).mT - c)
    return theta


def asynchronous(update: Affine, lrs: Tensor, order: Sequence[tuple[int, int]]) -> Tensor:
    """Line 4 of Algorithm 3, for every step size."""
    rng = np.random.default_rng(0)
    theta = torch.zeros(len(lrs), update.A.shape[-1], dtype=torch.float64)
    started = [theta] * len(update.A)  # what every client was sent last
    for m, _ in order:
        w = torch.from_numpy(rng.normal(size=update.K.shape[-1]))
        step = started[m] @ update.A[m].mT + update.K[m] @ w - update.c[m]
        theta = theta - lrs[:, None] * step
        started[m] = theta
    return theta


# -- the page -------------------------------------------------------------------------------------
Outcomes = Mapping[tuple[int, str], dict[str, Any]]  # by τ and mode


def write(folder: Path, size: Figure3Size | None = None) -> list[Path]:
    """Choose step sizes, run everything and write the page."""
    began = time.monotonic()
    size = size or Figure3Size()
    problem = problem_of(size.drawn)
    M = size.drawn.clients
    step_sizes: dict[tuple[int, str], StepSizes] = {}
    jobs: dict[tuple[int, str], NormRun] = {}
    for tau, rounds in zip(size.taus, size.rounds, strict=True):
        order = order_of(problem, size.delays, rounds * M)
        for mode in MODES:
            steps = tuned(problem, tau, mode, rounds, order)
            step_sizes[tau, mode] = steps
            jobs[tau, mode] = size.run(tau, mode, rounds, steps)
    results = train_all(jobs, folder, NAME, size.workers)
    outcomes = {key: results[job] for key, job in jobs.items()}
    staleness = {size.delays: outcomes[size.taus[0], SHARE]["staleness"]}
    if size.real_rounds:
        real = size.run_in_processes(jobs[size.taus[1], SHARE])
        staleness[REAL] = real["staleness"]
    first = outcomes[size.taus[0], SYNC]["norms"][0]
    marks = sorted({max(1, r * min(size.rounds) // 3) for r in (1, 2, 3)} | {max(size.rounds)})
    curves = {
        (tau, mode): NormCurve(mode, one["norms"]).line(POINTS, digits=4)
        for (tau, mode), one in outcomes.items()
    }
    return page_from_text(
        NAME,
        **statements(outcomes, staleness, size),
        tables={
            f"‖F(θ)‖ after so many updates of a client (at 0: {first:.4g})": [
                {"τ": tau, "": mode}
                | {
                    f"{M * r:,}": float(f"{one['norms'][r]:.3g}") if r < len(one["norms"]) else None
                    for r in marks
                }
                for (tau, mode), one in outcomes.items()
            ],
            "Step sizes: the chosen factors of γ_θ and γ_w": [
                {"τ": tau, "": mode, "γ_θ": s.lr, "factor": s.outer, "γ_w": s.private_lr}
                | {"factor ": s.inner}
                for (tau, mode), s in step_sizes.items()
            ],
            "Staleness: steps of the server between start and arrival": [
                {"delays": name, "arrivals": len(s), "mean": float(np.mean(s))}
                | {"largest": int(max(s))}
                for name, s in staleness.items()
            ],
        },
        figures={f"τ = {tau}, {mode}": line.y for (tau, mode), line in curves.items()},
        panels=[
            *(
                norm_panel(
                    f"τ = {tau}",
                    [replace(line, x=[M * x for x in line.x]) for line in lines],
                    "updates of a client",
                )
                for tau in size.taus
                for lines in [[curves[tau, mode] for mode in MODES]]
            ),
            *stale_panels(outcomes, staleness, size),
        ],
        seconds=time.monotonic() - began,
    ).write(folder)


def stale_panels(
    outcomes: Outcomes, staleness: Mapping[str, Sequence[float]], size: Figure3Size
) -> list[Panel]:
    """Delays, as the paper's second line has them: in steps of the server."""
    longest = size.taus[size.rounds.index(max(size.rounds))]
    simulated = {"exponential, simulated": outcomes[longest, SHARE]["staleness"]}
    measured = {REAL: staleness[REAL]} if REAL in staleness else {}
    panels = []
    for number, (name, stale) in enumerate((simulated | measured).items()):
        every = max(1, len(stale) // 400)
        peaks = [max(stale[i : i + every]) for i in range(0, len(stale), every)]
        across = [float(i) for i in range(0, len(stale), every)]
        what = "staleness" if every == 1 else f"largest staleness of {every}"
        lines = [Line("", across, peaks, style=3 + number)]
        panels.append(Panel(f"delays: {name}", "arrival", what, lines))
    return panels


def statements(
    outcomes: Outcomes, staleness: Mapping[str, Sequence[float]], size: Figure3Size
) -> dict[str, Any]:
    """The facts and verdicts of the page."""

    def norm(tau: int, mode: str, at: int) -> float:
        return float(outcomes[tau, mode]["norms"][at])

    def asynchronous_norm(tau: int, at: int) -> float:
        return min(norm(tau, THEOREM, at), norm(tau, SHARE, at))

    best = {tau: asynchronous_norm(tau, -1) for tau in size.taus}
    slower = [best[tau] > norm(tau, SYNC, -1) for tau in size.taus]
    half = {tau: len(outcomes[tau, SYNC]["norms"]) // 2 for tau in size.taus}
    ahead = [
        tau for tau in size.taus if asynchronous_norm(tau, half[tau]) < norm(tau, SYNC, half[tau])
    ]
    half_way = "; half way the asynchronous one is ahead for τ = " + ", ".join(map(str, ahead))
    first, last = size.taus[0], size.taus[-1]
    at = min(size.rounds)
    gains = [norm(first, mode, at) / norm(last, mode, at) for mode in MODES]
    M = size.drawn.clients
    stale = max(staleness[size.delays])
    updates = zip(size.taus, size.rounds, strict=True)
    measured = REAL in staleness
    facts = {
        "size": size,
        "drawn": size.drawn,
        "factors": ", ".join(f"{f:g}" for f in FACTORS),
        "updates": ", ".join(f"{r * M:,} (τ = {t})" for t, r in updates),
        "ends": ", ".join(f"τ = {t}: {best[t]:.2g} against {norm(t, SYNC, -1):.2g}" for t in best),
        "half_way": half_way if ahead else "",
        "best": ", ".join(f"{norm:.2g} (τ = {t})" for t, norm in best.items()),
        "first": first,
        "last": last,
        "updates_compared": at * M,
        "gain": max(gains[1:]),
        "gains": gains,
        "stale": stale,
        "measured": f" Delays of a real machine are measured beside it: two worker processes that "
        f"work off the orders of all {M} clients, {size.real_rounds * M} arrivals at "
        f"τ = {size.taus[1]}."
        if measured
        else "",
        "stale_measured": f", {max(staleness[REAL]):.0f} as measured with two processes"
        if measured
        else "",
    }
    verdicts: dict[str, bool | str] = {
        "faster": (all(slower) and not ahead) or ("same order" if any(slower) else False),
        "improves": all(b < a for a, b in pairwise(list(best.values())[:3])),
        "slower": max(gains[1:]) < gains[0],
        "delays": stale > 3 * M,
    }
    return {"facts": facts, "verdicts": verdicts}
