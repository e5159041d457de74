"""Figure 1 of the FFGG paper: conjugate gradients (a), and FFGG against other methods (b to d).

`idiolect reproduce ffgg-figure1a` and `ffgg-figure1b`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

import idiolect as il

from ..closed_forms.quadratic import Problem, Quadratic
from ..page import Row, page_from_text
from .runs import (
    FFGG,
    JOINT,
    L2GD,
    LOCAL,
    SCAFFOLD,
    Curves,
    NormCurve,
    NormRun,
    baselines,
    exact,
    ffgg,
    joint,
    l2gd,
    norm_panel,
    problem_of,
    stored_curves,
    train_curves,
)

EXACT = "exact solution"
TRUE = "FFGG, 1/L_F"
FEW_STEPS = "L2GD, first iterations"  # before its first message: plain gradient steps
LABELS = (FFGG, TRUE, SCAFFOLD, LOCAL, L2GD, JOINT)
# of the first problem of (a), by an independent implementation: ‖F(θ)‖ by rounds, floors by τ
REFERENCE = {0: 12.80, 1: 1.285, 101: 0.656, 201: 0.337, 501: 4.57e-2, 1000: 1.65e-3}
REFERENCE |= {2000: 2.1e-6, 3000: 2.8e-9}
FLOORS = {1: 2.1e-2, 2: 1.4e-3, 3: 9.2e-5, 5: 6e-7}


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


def write_a(folder: Path, size: Figure1aSize | None = None, workers: int = 2) -> list[Path]:
    """Run everything and write the page of (a)."""
    began = time.monotonic()
    size = size or Figure1aSize()
    fewer = replace(size.drawn, samples=size.few)
    cases = {
        "common θ*": (common(size.drawn), size.taus, size.rounds),
        "own targets": (size.drawn, size.other_taus, size.other_rounds),
        f"own targets, n = {size.few}": (fewer, size.few_taus, size.few_rounds),
    }
    # of F itself, as the seed's problem has it: the largest step that Theorem 1 allows
    lrs = {drawn: 1 / problem_of(drawn).constants().mean_F for drawn, *_ in cases.values()}
    jobs = {
        name: {
            label: NormRun(
                label,
                drawn,
                # SciPy's conjugate gradients start at 0 by default
                il.Ffgg(part="w.*", lr=lrs[drawn], solver="cg", steps=tau, start="common"),
                rounds,
                10 + tau,
                stands_still=True,
            )
            for tau in taus
            for label in [f"τ = {tau}"]
        }
        for name, (drawn, taus, rounds) in cases.items()
    }
    curves = train_curves(jobs, folder, "ffgg-figure1a", workers)
    for name, (drawn, _, rounds) in cases.items():
        curves[name][EXACT] = exact(EXACT, problem_of(drawn), lrs[drawn], rounds)
    first, _, few = curves.values()
    end = first[EXACT].norms[-1]
    floors = [floor(first, tau) for tau in size.taus]
    ten, best = floor(first, 10), floor(first, max(size.taus))
    rounding = 1e-12 * first[EXACT].norms[0]
    shown = (0, 1, 101, 501, 1000, 1500, 2000, 3000)
    styles = [f"τ = {tau}" for tau in sorted({*size.taus, *size.other_taus, *size.few_taus})]
    return page_from_text(
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
            "few_end": few[EXACT].norms[-1],
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
                reference_rows(first, problem_of(common(size.drawn)))
            )
        },
        figures={name: stored_curves(group) for name, group in curves.items()},
        panels=[
            norm_panel(
                name,
                [
                    *(group[s].line(style=i) for i, s in enumerate(styles) if s in group),
                    group[EXACT].line(formula=True, style=len(styles)),
                ],
                "round",
            )
            for name, group in curves.items()
        ],
        seconds=time.monotonic() - began,
    ).write(folder)


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

    def runs(self, drawn: Quadratic, tau: int) -> dict[str, NormRun]:
        """All methods with τ local steps (FFGG for the first τ with both its step sizes)."""
        constants = problem_of(drawn).constants()
        methods: dict[str, il.Method] = {FFGG: ffgg(constants, tau)}
        if tau == self.taus[0]:
            methods[TRUE] = ffgg(constants, tau, true=True)
        methods |= baselines(constants, tau)
        jobs = {
            label: NormRun(label, drawn, method, self.rounds, 10 + tau)
            for label, method in methods.items()
        }
        loopless = l2gd(constants, tau)
        alone = il.FedAvg(lr=loopless.lr / (1 - loopless.p), steps=self.rounds)
        return jobs | {FEW_STEPS: NormRun(FEW_STEPS, drawn, alone, 1, self.rounds)}


def write_b(folder: Path, size: Figure1bSize | None = None, workers: int = 2) -> list[Path]:
    """Run everything and write the page of (b) to (d)."""
    began = time.monotonic()
    size = size or Figure1bSize()
    rounds = size.rounds
    cases = {f"τ = {tau}, own targets": (size.drawn, tau) for tau in size.taus}
    cases |= {f"τ = {tau}, common θ*": (common(size.drawn), tau) for tau in size.other_taus}
    jobs = {title: size.runs(*case) for title, case in cases.items()}
    curves = train_curves(jobs, folder, "ffgg-figure1b", workers)
    counts, places = {}, {}
    for title, (drawn, tau) in cases.items():
        alone = curves[title].pop(FEW_STEPS).norms[-1]
        counts[title] = iterations(len(curves[title][L2GD].norms) - 1, tau)
        places[title] = at_iteration(curves[title][L2GD], counts[title], alone, rounds)
        curves[title][JOINT] = joint(problem_of(drawn), rounds)
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
    return page_from_text(
        "ffgg-figure1b",
        facts={
            "size": size,
            "drawn": size.drawn,
            "constants": problem_of(size.drawn).constants(),
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
                for title, group in curves.items()
                for row in iteration_rows(title, group[L2GD], counts[title], *places[title])
            ],
        },
        figures={title: stored_curves(group) for title, group in curves.items()},
        panels=[
            norm_panel(
                title,
                [  # the first panel's legend holds for all panels
                    replace(line, label=label if title == first else "")
                    for label, curve in group.items()
                    for line in [curve.line(formula=label == JOINT, style=LABELS.index(label))]
                ],
            )
            for title, group in curves.items()
        ],
        seconds=time.monotonic() - began,
    ).write(folder)


def iterations(rounds: int, tau: int, seed: int = 0) -> list[int]:
    """L2GD's iterations after each round, which begins with mean steps; gradient steps follow."""

    def trials(u: float, stop: float) -> int:  # until the first success
        return 1 if stop >= 1 else 1 + int(math.log1p(-u) / math.log1p(-stop))

    count = [0]
    for t in range(rounds):
        u = il.streams.uniform(il.streams.keys(seed, "l2gd", t), 2)[0]
        mean_steps = trials(u[0], 1 - 1 / tau) if t else 0
        count.append(count[-1] + mean_steps + trials(u[1], 1 / tau))
    return count


def at_iteration(
    curve: NormCurve, counts: Sequence[int], alone: float, count: int
) -> tuple[int, float]:
    """(iterations, ‖F(θ)‖) of L2GD's mean model after `count` iterations.

    Until the first message these are gradient steps (`alone`); then the next message counts.
    """
    if count <= counts[1]:
        return count, alone
    r = int(np.searchsorted(counts, count))
    return counts[r], curve.norms[r]


def iteration_rows(
    title: str, curve: NormCurve, counts: Sequence[int], count: int, norm: float
) -> list[Row]:
    messages = int(np.searchsorted(counts, count, side="right")) - 1
    places = {(count, messages, norm)}
    places |= {(counts[r], r, curve.norms[r]) for r in (1, 2, len(curve.norms) - 1)}
    return [
        {"": title, "iterations": i, "communications": r, "‖F(θ)‖": float(f"{norm:.3g}")}
        for i, r, norm in sorted(places)
    ]
