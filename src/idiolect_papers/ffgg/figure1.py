"""Figure 1 of the FFGG paper: conjugate gradients (a), and FFGG against other methods (b to d).

`idiolect reproduce ffgg-figure1a` and `ffgg-figure1b`.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

import idiolect as il

from ..closed_forms.quadratic import Problem, Quadratic
from ..page import Row
from ..panels import Line, Panel
from ..theory import theory_page
from . import runs as methods
from .runs import FFGG, JOINT, L2GD, LOCAL, SCAFFOLD, FollowedRuns, NormCurve, exact

EXACT = "exact solution"
TRUE = "FFGG, 1/L_F"
STYLES = {FFGG: 0, TRUE: 1, SCAFFOLD: 2, LOCAL: 3, L2GD: 4, JOINT: 5}
# of the first problem of (a), by an independent implementation: ‖F(θ)‖ by rounds, floors by τ
REFERENCE = {0: 12.80, 1: 1.285, 101: 0.656, 201: 0.337, 501: 4.57e-2, 1000: 1.65e-3}
REFERENCE |= {2000: 2.1e-6, 3000: 2.8e-9}
FLOORS = {1: 2.1e-2, 2: 1.4e-3, 3: 9.2e-5, 5: 6e-7}
Curves = dict[str, NormCurve]


def common(drawn: Quadratic) -> Quadratic:
    """The problem of the paper's notebook on Byzantine clients, where Assumption 2 holds."""
    return replace(drawn, truth="common", noise=0.0, seed=42)


# -- (a) steps of conjugate gradients --------------------------------------------------------------
@dataclass(frozen=True)
class Figure1aSize:
    """The sizes of the experiment; those of the paper as defaults."""

    drawn: Quadratic = Quadratic()  # n = 10000, d_θ = 100, d_w = 50, 32 clients
    taus: tuple[int, ...] = (1, 2, 3, 5, 10, 30, 40)
    rounds: int = 3000
    other_taus: tuple[int, ...] = (1, 2, 5, 10)  # with targets of each client's own
    other_rounds: int = 1500
    few: int = 100  # n for which the values of the paper come out
    few_taus: tuple[int, ...] = (5, 10, 20, 30)
    few_rounds: int = 1500


def write_a(folder: Path, size: Figure1aSize | None = None) -> list[Path]:
    """Run everything and write the page of (a)."""
    began = time.process_time()
    size = size or Figure1aSize()
    fewer = replace(size.drawn, samples=size.few)
    cases = {
        "common θ*": (common(size.drawn), size.taus, size.rounds),
        "own targets": (size.drawn, size.other_taus, size.other_rounds),
        f"own targets, n = {size.few}": (fewer, size.few_taus, size.few_rounds),
    }
    total = sum(rounds * (len(taus) * 10 + sum(taus)) for _, taus, rounds in cases.values())
    with FollowedRuns("ffgg-figure1a", total) as runs:
        curves = {name: conjugate_gradients(runs, name, *case) for name, case in cases.items()}
    first, _, few = curves.values()
    end, few_end = first[EXACT].norms[-1], few[EXACT].norms[-1]
    floors = [floor(first, tau) for tau in size.taus]
    ten, best = floor(first, 10), floor(first, max(size.taus))
    rounding = 1e-12 * first[EXACT].norms[0]
    shown = (0, 1, 101, 501, 1000, 1500, 2000, 3000)
    styles = sorted({*size.taus, *size.other_taus, *size.few_taus})  # one colour for one τ
    return theory_page(
        "ffgg-figure1a",
        facts={
            "size": size,
            "drawn": size.drawn,
            "end": end,
            "ten": ten,
            "few_ten": floor(few, 10),
            "most": max(size.taus),
            "best": best,
            "few_best": floor(few, max(size.few_taus)),
            "few_end": few_end,
            "floors": ", ".join(f"{value:.1g}" for value in floors),
        },
        verdicts={
            "ten_steps": ten >= 1.5 * end,
            "many_steps": best < 1.01 * end + rounding,
            "local_work": all(b <= 1.01 * a + rounding for a, b in pairwise(floors)),
        },
        tables={
            f"‖F(θ)‖ after so many rounds: {name}": [
                {"": label} | curve.row([r for r in shown if r <= rounds] or [0, rounds])
                for label, curve in curves[name].items()
            ]
            for name, (*_, rounds) in cases.items()
        }
        | {
            "The first problem by an independent implementation, with L as the notebook has it": (
                reference_rows(first, common(size.drawn).draw())
            )
        },
        figures={
            name: {label: c.line().y for label, c in group.items()}
            for name, group in curves.items()
        },
        panels=[
            Panel(
                name,
                "round",
                "‖F(θ)‖",
                [
                    *(
                        group[label].line(style=place)
                        for place, tau in enumerate(styles)
                        if (label := f"τ = {tau}") in group
                    ),
                    group[EXACT].line(formula=True, style=len(styles)),
                ],
                log="y",
            )
            for name, group in curves.items()
        ],
        seconds=time.process_time() - began,
    ).write(folder)


def conjugate_gradients(
    runs: FollowedRuns, name: str, drawn: Quadratic, taus: tuple[int, ...], rounds: int
) -> Curves:
    """A curve for each τ, and that of exact solutions."""
    problem = drawn.draw()
    # of F itself, as the seed's problem has it: the largest step that Theorem 1 allows
    lr = 1 / problem.constants().mean_F
    curves = {}
    for tau in taus:
        # SciPy's conjugate gradients start at 0 by default
        method = il.Ffgg(part="w.*", lr=lr, solver="cg", steps=tau, start="common")
        curve = runs.follow(f"τ = {tau}", problem, method, rounds, 10 + tau, True, case=name)
        curves[curve.label] = curve
    return curves | {EXACT: exact(EXACT, problem, lr, rounds)}


def floor(curves: Curves, tau: int) -> float:
    return curves[f"τ = {tau}"].norms[-1]


def reference_rows(curves: Curves, problem: Problem) -> list[Row]:
    """The exact solution and the floors, against those of an independent implementation."""
    last = len(curves[EXACT].norms) - 1
    # of the last client: the top eigenvalue of HᵀH, or the Frobenius norm of Aᵀ(I - BB⁺)A
    coupled = problem.slopes[-1] - problem.phi[-1]
    L = max(float(torch.linalg.eigvalsh(problem.phi[-1])[-1]), float(coupled.norm()))
    same = exact(EXACT, problem, 1 / L, last)
    at = [
        {"": f"exact, round {r}", "there": there, "here": float(f"{same.at(r):.4g}")}
        for r, there in REFERENCE.items()
        if r <= last
    ]
    floors = [
        {"": f"floor, τ = {tau}", "there": there, "here": float(f"{curves[name].at(last):.2g}")}
        for tau, there in FLOORS.items()
        if (name := f"τ = {tau}") in curves
    ]
    return at + floors


# -- (b) to (d) against SCAFFOLD, Local GD and L2GD ------------------------------------------------
@dataclass(frozen=True)
class Figure1bSize:
    """The sizes of the experiment; those of the paper as defaults."""

    drawn: Quadratic = Quadratic()  # n = 10000, d_θ = 100, d_w = 50, 32 clients
    taus: tuple[int, ...] = (100, 200, 500)
    other_taus: tuple[int, ...] = (100,)  # with one common θ*
    rounds: int = 150


def write_b(folder: Path, size: Figure1bSize | None = None) -> list[Path]:
    """Run everything and write the page of (b) to (d)."""
    began = time.process_time()
    size = size or Figure1bSize()
    rounds = size.rounds
    cases = {f"τ = {tau}, own targets": (size.drawn, tau) for tau in size.taus}
    cases |= {f"τ = {tau}, common θ*": (common(size.drawn), tau) for tau in size.other_taus}
    with FollowedRuns(
        "ffgg-figure1b", sum(5 * (10 + t) * rounds for _, t in cases.values())
    ) as runs:
        problems = {drawn: drawn.draw() for drawn, _ in cases.values()}
        curves = {
            title: compare(runs, problems[drawn], tau, rounds, both=tau == size.taus[0])
            for title, (drawn, tau) in cases.items()
        }
        by_iteration = {
            title: iterations(curves[title][L2GD], tau) for title, (_, tau) in cases.items()
        }
        places = {
            title: at_iteration(runs, problems[drawn], by_iteration[title], tau, rounds)
            for title, (drawn, tau) in cases.items()
        }
    ends = {
        title: {label: curve.at(rounds) for label, curve in group.items()}
        for title, group in curves.items()
    }
    first = next(iter(ends))
    end = ends[first]
    ahead = all(e[FFGG] < min(e[SCAFFOLD], e[LOCAL]) for e in ends.values())
    by_tau = [e[FFGG] for e in list(ends.values())[: len(size.taus)]]
    by_steps = all(ends[title][FFGG] < places[title][1] for title in ends)
    shown = sorted({0, rounds // 10, rounds // 3, rounds})
    names = f"FFGG {end[FFGG]:.3g}, SCAFFOLD {end[SCAFFOLD]:.3g},"
    return theory_page(
        "ffgg-figure1b",
        facts={
            "size": size,
            "drawn": size.drawn,
            "constants": problems[size.drawn].constants(),
            "first": first,
            "end": end,
            "one_model": f"{first}, {rounds} rounds: {names} Local GD {end[LOCAL]:.3g}; "
            "FFGG is ahead in every case"
            if ahead
            else f"{first}: {names} Local {end[LOCAL]:.3g}",
            "place": places[first],
            "ahead": "ahead" if by_steps else "not ahead either",
            "by_tau": ", ".join(f"{value:.4g}" for value in by_tau),
        },
        verdicts={
            "one_model": ahead,
            "l2gd": all(e[FFGG] < e[L2GD] for e in ends.values()),
            "local_steps": by_tau[0] / by_tau[-1] - 1 > 0.01,
        },
        tables={
            "‖F(θ)‖ after so many communication rounds": [
                {"": title, "method": label} | curve.row(shown)
                for title, group in curves.items()
                for label, curve in group.items()
            ],
            "L2GD by iterations, gradient and mean steps alike, as the authors' notebook counts": [
                row
                for title, curve in by_iteration.items()
                for row in iteration_rows(title, curve, *places[title])
            ],
        },
        figures={
            title: {label: curve.line().y for label, curve in group.items()}
            for title, group in curves.items()
        },
        panels=[
            Panel(
                title,
                "communication round",
                "‖F(θ)‖",
                [
                    unlabelled(
                        curve.line(formula=label == JOINT, style=STYLES[label]), title != first
                    )
                    for label, curve in group.items()
                ],
                log="y",
            )
            for title, group in curves.items()
        ],
        seconds=time.process_time() - began,
    ).write(folder)


def unlabelled(line: Line, condition: bool) -> Line:
    """The first panel's legend holds for all panels."""
    return replace(line, label="") if condition else line


def compare(runs: FollowedRuns, problem: Problem, tau: int, rounds: int, both: bool) -> Curves:
    """All methods with τ local steps (FFGG with `both` its step sizes), and the joint optimum."""
    constants = problem.constants()
    compared = {
        FFGG: methods.ffgg(constants, tau),
        **({TRUE: methods.ffgg(constants, tau, true=True)} if both else {}),
        **methods.baselines(constants, tau),
    }
    return {
        label: runs.follow(label, problem, method, rounds, 10 + tau, case=f"τ = {tau}")
        for label, method in compared.items()
    } | {JOINT: methods.joint(problem, rounds)}


def iterations(curve: NormCurve, tau: int, seed: int = 0) -> NormCurve:
    """L2GD over its iterations: each round begins with mean steps, and gradient steps follow."""

    def trials(u: float, stop: float) -> int:  # until the first success
        return 1 if stop >= 1 else 1 + int(math.log1p(-u) / math.log1p(-stop))

    count = [0]
    for t in range(len(curve.norms) - 1):
        u = il.streams.uniform(il.streams.keys(seed, "l2gd", t), 2)[0]
        mean_steps = trials(u[0], 1 - 1 / tau) if t else 0
        count.append(count[-1] + mean_steps + trials(u[1], 1 / tau))
    return replace(curve, across=tuple(count))


def at_iteration(
    runs: FollowedRuns, problem: Problem, curve: NormCurve, tau: int, count: int
) -> tuple[int, float]:
    """(iterations, ‖F(θ)‖) of L2GD's mean model after `count` iterations.

    Until the first message these are gradient steps, as Local GD's; then the next message counts.
    """
    if count <= curve.rounds[1]:
        l2gd = methods.l2gd(problem.constants(), tau)
        method = il.FedAvg(lr=l2gd.lr / (1 - l2gd.p), steps=count)
        return count, runs.follow(f"L2GD, {count} iterations", problem, method, 1, 0).norms[-1]
    r = int(np.searchsorted(curve.rounds, count))
    return int(curve.rounds[r]), curve.norms[r]


def iteration_rows(title: str, curve: NormCurve, count: int, norm: float) -> list[Row]:
    messages = int(np.searchsorted(curve.rounds, count, side="right")) - 1
    places = {(count, messages, norm)}
    places |= {(int(curve.rounds[r]), r, curve.norms[r]) for r in (1, 2, len(curve.norms) - 1)}
    return [
        {"": title, "iterations": i, "communications": r, "‖F(θ)‖": float(f"{norm:.3g}")}
        for i, r, norm in sorted(places)
    ]
