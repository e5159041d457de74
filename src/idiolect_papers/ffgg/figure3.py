"""Asynchronous against synchronous FFGG: Figure 3 of its paper. `idiolect reproduce ffgg-figure3`.

Step sizes are chosen as the paper says, from theoretical values times a few factors: by the closed
form of an update, which is an affine map of θ here. What is shown are runs of the method itself.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idiolect import Ffgg, Moment, parse_delays, run, streams

from ..closed_forms.quadratic import Problem, Quadratic
from ..page import Claim, Page, Row
from ..panels import Line, Panel
from ..runs import Work, finished

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the theoretical step sizes, as printed
SYNC, THEOREM, SHARE = "synchronous", "asynchronous, Theorem 7", "asynchronous, 1/(M L)"
MODES = (SYNC, THEOREM, SHARE)
POINTS = 100  # of a curve
REAL = "measured, two processes"


@dataclass(frozen=True)
class Size:
    """The sizes of the experiment; those of the paper as defaults."""

    drawn: Quadratic = Quadratic(
        clients=40, samples=1000, shared=400, private=50, zeta=10.0, truth="common"
    )
    taus: tuple[int, ...] = (5, 10, 50, 200)
    rounds: tuple[int, ...] = (100, 100, 60, 30)  # of M updates, for each τ
    delays: str = "exponential(mean=1)"
    real_rounds: int = 10  # with worker processes, for delays of a real machine
    workers: int = 2  # runs at once


@dataclass(frozen=True)
class Steps:
    """Step sizes: their theoretical values, the best factors, and what they come to."""

    lr: float
    private_lr: float
    outer: float
    inner: float


@dataclass(frozen=True)
class Job(Work):
    """One run, followed by ‖F(θ)‖ after every M updates."""

    drawn: Quadratic = field(default_factory=Quadratic)
    mode: str = SYNC
    tau: int = 5
    rounds: int = 100
    lr: float = 1.0
    private_lr: float = 1.0
    delays: str = ""

    def cost(self) -> float:
        return self.rounds * (4.0 + self.tau)

    def train(self) -> dict[str, Any]:
        problem = self.drawn.draw()
        return follow(problem, self)


def follow(problem: Problem, job: Job, **settings: Any) -> dict[str, Any]:
    """Norms after every round, and the staleness of every update."""
    norms = [problem.norm(torch.zeros(problem.T.shape[-1], dtype=torch.float64))]
    stale: list[float] = []

    def watch(moment: Moment) -> None:
        norms.append(problem.norm(moment.state()["theta"]))
        stale.extend(line["staleness"] for line in moment.delays)

    method = Ffgg(part="w.*", lr=job.lr, solver="gd", private_lr=job.private_lr, steps=job.tau)
    engine = {"delays": job.delays} if job.delays else {}
    if job.mode != SYNC:
        engine["timing"] = "arrivals"
    run_settings: dict[str, Any] = {
        "rounds": job.rounds,
        "sample": len(problem.t),
        "batching": "full",
        "dtype": "float64",
        "eval_every": 0,
        "threads": 1,
        "progress": False,
        "on_round": watch,
        **engine,
        **settings,
    }
    run(method, problem.task(), problem.federation(), **run_settings)
    return {"norms": norms, "staleness": stale}


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
) -> Steps:
    """The factors with the least ‖F(θ)‖ at the end, of all 25 pairs."""
    base, private = theoretical(problem, mode, max(stale for _, stale in order))
    best = Steps(base, private, 1.0, 1.0)
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
                best = Steps(outer * base, inner * private, outer, inner)
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
def write(folder: Path, size: Size | None = None) -> list[Path]:
    """Choose step sizes, run everything and write the page."""
    began = time.perf_counter()
    size = size or Size()
    problem = size.drawn.draw()
    step_sizes: dict[tuple[int, str], Steps] = {}
    jobs: dict[tuple[int, str], Job] = {}
    for tau, rounds in zip(size.taus, size.rounds, strict=True):
        order = order_of(problem, size.delays, rounds * len(problem.t))
        for mode in MODES:
            steps = tuned(problem, tau, mode, rounds, order)
            step_sizes[tau, mode] = steps
            delays = "" if mode == SYNC else size.delays
            jobs[tau, mode] = Job(size.drawn, mode, tau, rounds, steps.lr, steps.private_lr, delays)
    results = finished(list(jobs.values()), folder, "ffgg-figure3", size.workers)
    outcomes = {key: results[job] for key, job in jobs.items()}
    real = measured(problem, jobs[size.taus[1], SHARE], size) if size.real_rounds else {}
    first = outcomes[size.taus[0], SYNC]["norms"][0]
    page = Page(
        name="ffgg-figure3",
        title="FFGG, Figure 3: asynchronous against synchronous",
        settings=words(size, bool(real)),
        claims=claims(outcomes, real, size),
        tables={
            f"‖F(θ)‖ after so many updates of a client (at 0: {first:.4g})": rows(outcomes, size),
            "Step sizes: the chosen factors of γ_θ and γ_w": [
                {"τ": tau, "": mode, "γ_θ": s.lr, "factor": s.outer, "γ_w": s.private_lr}
                | {"factor ": s.inner}
                for (tau, mode), s in step_sizes.items()
            ],
            "Staleness: steps of the server between start and arrival": stale_rows(
                outcomes, real, size
            ),
        },
        figures={f"τ = {tau}, {mode}": thin(one["norms"]) for (tau, mode), one in outcomes.items()},
        panels=[*norm_panels(outcomes, size), *stale_panels(outcomes, real, size)],
        seconds=time.perf_counter() - began,
        order=13,
    )
    return page.write(folder)


def measured(problem: Problem, job: Job, size: Size) -> dict[str, Any]:
    """The same by the real clock: hosts in two processes."""
    short = Job(job.drawn, job.mode, job.tau, size.real_rounds, job.lr, job.private_lr, "")
    return follow(problem, short, engine="processes", hosts=2)


def thin(values: Sequence[float]) -> list[float]:
    places = np.unique(np.linspace(0, len(values) - 1, POINTS).astype(int))
    return [float(f"{values[i]:.4g}") for i in places]


def norm_panels(outcomes: dict[tuple[int, str], dict[str, Any]], size: Size) -> list[Panel]:
    M = size.drawn.clients
    panels = []
    for tau, rounds in zip(size.taus, size.rounds, strict=True):
        lines = [
            Line(
                mode,
                [M * float(x) for x in np.unique(np.linspace(0, rounds, POINTS).astype(int))],
                thin(outcomes[tau, mode]["norms"]),
            )
            for mode in MODES
        ]
        panels.append(Panel(f"τ = {tau}", "updates of a client", "‖F(θ)‖", lines, log="y"))
    return panels


def stale_panels(
    outcomes: dict[tuple[int, str], dict[str, Any]], real: dict[str, Any], size: Size
) -> list[Panel]:
    """Delays, as the paper's second line has them: in steps of the server."""
    longest = max(size.taus, key=lambda tau: size.rounds[size.taus.index(tau)])
    both = {"exponential, simulated": outcomes[longest, SHARE]["staleness"]}
    if real:
        both[REAL] = real["staleness"]
    panels = []
    for number, (name, stale) in enumerate(both.items()):
        every = max(1, len(stale) // 400)
        peaks = [max(stale[i : i + every]) for i in range(0, len(stale), every)]
        across = [float(i) for i in range(0, len(stale), every)]
        line = Line("", across, peaks, style=3 + number)
        what = "staleness" if every == 1 else f"largest staleness of {every}"
        panels.append(Panel(f"delays: {name}", "arrival", what, [line]))
    return panels


def rows(outcomes: dict[tuple[int, str], dict[str, Any]], size: Size) -> list[Row]:
    M = size.drawn.clients
    marks = sorted({max(1, r * min(size.rounds) // 3) for r in (1, 2, 3)} | {max(size.rounds)})
    return [
        {"τ": tau, "": mode}
        | {
            f"{M * r:,}": float(f"{one['norms'][r]:.3g}") if r < len(one["norms"]) else None
            for r in marks
        }
        for (tau, mode), one in outcomes.items()
    ]


def stale_rows(
    outcomes: dict[tuple[int, str], dict[str, Any]], real: dict[str, Any], size: Size
) -> list[Row]:
    named = {size.delays: outcomes[size.taus[0], SHARE]["staleness"]}
    if real:
        named[REAL] = real["staleness"]
    return [
        {"delays": name, "arrivals": len(s), "mean": float(np.mean(s)), "largest": int(max(s))}
        for name, s in named.items()
    ]


def claims(
    outcomes: dict[tuple[int, str], dict[str, Any]], real: dict[str, Any], size: Size
) -> list[Claim]:
    def end(tau: int, mode: str) -> float:
        return float(outcomes[tau, mode]["norms"][-1])

    def best(tau: int) -> float:
        return min(end(tau, THEOREM), end(tau, SHARE))

    def at_half(tau: int, mode: str) -> float:
        return float(outcomes[tau, mode]["norms"][len(outcomes[tau, mode]["norms"]) // 2])

    slower = [best(tau) > end(tau, SYNC) for tau in size.taus]
    ahead = [
        tau
        for tau in size.taus
        if min(at_half(tau, THEOREM), at_half(tau, SHARE)) < at_half(tau, SYNC)
    ]
    on_the_way = ", ".join(f"{tau}" for tau in ahead)
    ends = ", ".join(f"τ = {t}: {best(t):.2g} against {end(t, SYNC):.2g}" for t in size.taus)
    falling = all(b < a for a, b in pairwise(best(t) for t in size.taus[:3]))
    first, last = size.taus[0], size.taus[-1]
    at = min(size.rounds)

    def gain(mode: str) -> float:
        norms = [outcomes[tau, mode]["norms"][at] for tau in (first, last)]
        return float(norms[0] / norms[1])

    gains = {mode: gain(mode) for mode in MODES}
    stale = max(outcomes[size.taus[0], SHARE]["staleness"])
    M = size.drawn.clients
    less = max(gains[THEOREM], gains[SHARE]) < gains[SYNC]
    return [
        Claim(
            "The synchronous variant is faster than the asynchronous one",
            f"at the end, the better asynchronous run against the synchronous: {ends}"
            + (f"; half way the asynchronous one is ahead for τ = {on_the_way}" if ahead else ""),
            "agrees" if all(slower) and not ahead else "same order" if any(slower) else "differs",
            "" if all(slower) and not ahead else "not for every τ, and not all the way",
        ),
        Claim(
            "The asynchronous variant improves by increasing the local steps τ",
            "at the end "
            + ", ".join(f"{best(t):.2g} (τ = {t})" for t in size.taus)
            + f"; after {at * M:,} updates τ = {last} is {max(gains[THEOREM], gains[SHARE]):.2g} "
            f"times as near as τ = {first}",
            "agrees" if falling else "differs",
            "" if falling else "not found",
        ),
        Claim(
            "Its improvement with τ is slower than that of the synchronous variant",
            f"from τ = {first} to {last}, ‖F‖ after {at * M:,} updates falls by a factor of "
            f"{gains[SYNC]:.2g} (synchronous), {gains[THEOREM]:.2g} (Theorem 7), "
            f"{gains[SHARE]:.2g} (1/(M L)): with the noise ι no θ is best for every client, and "
            "arrivals, which weigh clients unequally for a while, stop at a floor",
            "agrees" if less else "differs",
            "" if less else "not found",
        ),
        Claim(
            "The maximum delay is typically much larger than the number of workers",
            f"the largest staleness is {stale:.0f} with {M} clients and exponential delays"
            + (f", {max(real['staleness']):.0f} as measured with two processes" if real else ""),
            "agrees" if stale > 3 * M else "differs",
            "" if stale > 3 * M else "delays of another kind",
        ),
    ]


def words(size: Size, real: bool) -> str:
    d = size.drawn
    rounds = ", ".join(
        f"{r * d.clients:,} (τ = {t})" for t, r in zip(size.taus, size.rounds, strict=True)
    )
    measured = (
        " Delays of a real machine are measured beside it: two worker processes that work off the "
        f"orders of all {d.clients} clients, {size.real_rounds * d.clients} arrivals at τ = "
        f"{size.taus[1]}."
        if real
        else ""
    )
    factors = ", ".join(f"{f:g}" for f in FACTORS)
    sizes = f"M = {d.clients}, d_θ = {d.shared}, d_w = {d.private}, n = {d.samples:,}"
    return f"""\
As printed (Appendix E.2): the problem of E.1 with {sizes},
ζ = {d.zeta:g}; τ steps of GD for line 4; step sizes are theoretical values times {factors},
inner and outer ones, the best pair at the end of the run. A client's update is one direction; a
synchronous round has {d.clients}. Algorithm 3 applies a whole γ_θ Δ for every arrival, without 1/M.

Left open, and chosen here: which theoretical value the asynchronous γ_θ starts from. Theorem 7 has
1/(2 L √(2 M τ_max)), with τ_max of the run; the authors' notebook takes the same number for every
update in both variants, and sums the 40 of a synchronous round, which is 1/(M L) per arrival: both
are shown. L is that of Example 1. The vectors have one common θ* (b_1 = y_1), so that Assumption 2
holds but for the noise ι = {d.noise:g}. Delays are not those of the authors' machine but drawn:
{size.delays} for every piece of work, all clients always at work.{measured}
Updates: {rounds}; the paper does not say how many."""
