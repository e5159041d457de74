"""FFGG with conjugate gradients: Figure 1(a) of its paper. `idiolect reproduce ffgg-figure1a`."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch

from idiolect.methods import Ffgg

from ..closed_forms.quadratic import Problem, Quadratic
from ..page import Claim, Page, Row
from ..panels import Line, Panel
from .runs import Curve, Runs, exact

EXACT = "exact solution"


@dataclass(frozen=True)
class Size:
    """The sizes of the experiment; those of the paper as defaults."""

    drawn: Quadratic = Quadratic()  # n = 10000, d_θ = 100, d_w = 50, 32 clients
    taus: tuple[int, ...] = (1, 2, 3, 5, 10, 30, 40)
    rounds: int = 3000
    other_taus: tuple[int, ...] = (1, 2, 5, 10)  # with targets of each client's own
    other_rounds: int = 1500
    few: int = 100  # n for which the values of the paper come out
    few_taus: tuple[int, ...] = (5, 10, 20, 30)
    few_rounds: int = 1500

    @property
    def common(self) -> Quadratic:
        """The problem of the paper's notebook on Byzantine clients, where Assumption 2 holds."""
        return replace(self.drawn, truth="common", noise=0.0, seed=42)


def write(folder: Path, size: Size | None = None) -> list[Path]:
    """Run everything and write the page."""
    began = time.process_time()
    size = size or Size()
    cases = {
        "common θ*": (size.common, size.taus, size.rounds),
        "own targets": (size.drawn, size.other_taus, size.other_rounds),
        f"own targets, n = {size.few}": (
            replace(size.drawn, samples=size.few),
            size.few_taus,
            size.few_rounds,
        ),
    }
    total = sum(rounds * (len(taus) * 10 + sum(taus)) for _, taus, rounds in cases.values())
    with Runs("ffgg-figure1a", total) as runs:
        found = {name: measure(runs, name, *case) for name, case in cases.items()}
    first, own, few = found
    page = Page(
        name="ffgg-figure1a",
        title="FFGG, Figure 1(a): steps of conjugate gradients",
        settings=words(size),
        claims=claims(found[first], found[few], size),
        tables={
            f"‖F(θ)‖ after so many rounds: {name}": rows(found[name], cases[name][2])
            for name in cases
        }
        | {
            "The first problem by an independent implementation, with L as the notebook has it": (
                reference(found[first], size)
            )
        },
        figures={
            name: {c.label: c.line().y for c in curves.values()} for name, curves in found.items()
        },
        panels=[
            Panel(name, "round", "‖F(θ)‖", lines(found[name], size), log="y")
            for name in (first, own, few)
        ],
        seconds=time.process_time() - began,
        order=10,
    )
    return page.write(folder)


def measure(
    runs: Runs, name: str, drawn: Quadratic, taus: tuple[int, ...], rounds: int
) -> dict[str, Curve]:
    """A curve for each τ, and that of exact solutions."""
    problem: Problem = drawn.draw()
    # of F itself, as the seed's problem has it: the largest step that Theorem 1 allows
    lr = 1 / problem.constants().mean_F
    found = {}
    for tau in taus:
        # SciPy's conjugate gradients start at 0 unless told otherwise
        method = Ffgg(part="w.*", lr=lr, solver="cg", steps=tau, start="common")
        label = f"τ = {tau}"
        curve = runs.follow(f"{label}, {name}", problem, method, rounds, 10 + tau, True)
        found[label] = replace(curve, label=label)
    return found | {EXACT: exact(EXACT, problem, lr, rounds)}


def lines(curves: dict[str, Curve], size: Size) -> list[Line]:
    """In every panel the same colour for the same τ."""
    taus = sorted({*size.taus, *size.other_taus, *size.few_taus})
    style = {f"τ = {tau}": place for place, tau in enumerate(taus)} | {EXACT: len(taus)}
    return [c.line(formula=n == EXACT, style=style[n]) for n, c in curves.items()]


def rows(curves: dict[str, Curve], rounds: int) -> list[Row]:
    marks = [r for r in (0, 1, 101, 501, 1000, 1500, 2000, 3000) if r <= rounds] or [0, rounds]
    return [
        {"": c.label} | {f"{r}": float(f"{c.at(r):.3g}") for r in marks} for c in curves.values()
    ]


REFERENCE = {0: 12.80, 1: 1.285, 101: 0.656, 201: 0.337, 501: 4.57e-2, 1000: 1.65e-3}
REFERENCE |= {2000: 2.1e-6, 3000: 2.8e-9}
FLOORS = {1: 2.1e-2, 2: 1.4e-3, 3: 9.2e-5, 5: 6e-7}  # for τ, after many rounds


def reference(curves: dict[str, Curve], size: Size) -> list[Row]:
    """Figures of the exact solution, and of floors, beside those found elsewhere."""
    last = len(curves[EXACT].norms) - 1
    problem = size.common.draw()
    same = exact(EXACT, problem, 1 / notebook_smoothness(problem), last)
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


def notebook_smoothness(problem: Problem) -> float:
    """Of the last client: the top eigenvalue of HᵀH, or the Frobenius norm of Aᵀ(I - BB⁺)A."""
    coupled = problem.slopes[-1] - problem.phi[-1]
    return max(float(torch.linalg.eigvalsh(problem.phi[-1])[-1]), float(coupled.norm()))


def claims(curves: dict[str, Curve], few: dict[str, Curve], size: Size) -> list[Claim]:
    def last(found: dict[str, Curve], tau: int) -> float:
        curve = found[f"τ = {tau}"]
        return curve.at(len(curve.norms))

    end = curves[EXACT].norms[-1]
    rounding = 1e-12 * curves[EXACT].norms[0]
    ten, few_ten, few_end = last(curves, 10), last(few, 10), few[EXACT].norms[-1]
    best = last(curves, max(size.taus))
    by_tau = [last(curves, tau) for tau in size.taus]
    falls = all(b <= 1.01 * a + rounding for a, b in pairwise(by_tau))
    arrives = best < 1.01 * end + rounding
    at_ten = ten < 1.5 * end
    slow = f"with n = {size.few} rows the printed picture comes out, {few_ten:.1g} at τ = 10"
    return [
        Claim(
            "τ = 10 is sufficient to achieve an error as small as 1e-4",
            f"τ = 10 gives {ten:.1g}, as the exact solution ({end:.1g}); 1e-4 takes τ = 3",
            "differs" if at_ten else "agrees",
            f"Bᵀ B has one large eigenvalue and a narrow cluster, so CG gains a factor of 14 per "
            f"step; {slow}"
            if at_ten
            else "",
        ),
        Claim(
            "converges to the exact solution for τ = 30, 40",
            f"τ = {max(size.taus)}: {best:.1g} against {end:.1g} by exact solutions "
            f"(n = {size.few}: {last(few, max(size.few_taus)):.1g} against {few_end:.1g})",
            "agrees" if arrives else "differs",
            "" if arrives else "not found",
        ),
        Claim(
            "convergence improves with an increasing amount of local work",
            "floors " + ", ".join(f"{v:.1g}" for v in by_tau) + f" for τ = {size.taus}",
            "agrees" if falls else "differs",
            "" if falls else "not found",
        ),
    ]


def words(size: Size) -> str:
    d = size.drawn
    return f"""\
As printed: n = {d.samples:,}, d_θ = {d.shared}, d_w = {d.private}, {d.clients} clients, all heard
in every round; matrices uniform on [0, 1], divided by their second dimension; τ steps of conjugate
gradients for line 4 of Algorithm 1.

Left open, and chosen here: the vectors b_m and y_m (those of Appendix E.1; with one common θ* and
no noise, as in the authors' notebook on Byzantine clients and with its seed, and with targets of
each client's own); where CG starts (0, SciPy's default); the step size (γ_θ = 1/L with L = ‖∇F‖,
the smoothness of F itself: Example 1's bound is twice as large and takes twice the rounds);
how many rounds. A run ends where ‖F(θ)‖ stands still. The dashed line is θ ← θ - γ F(θ) in closed
form."""
