"""FFGG against SCAFFOLD, Local GD and L2GD: Figure 1(b-d) of its paper.

`idiolect reproduce ffgg-figure1b`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from idiolect.core import streams
from idiolect.methods import FedAvg
from idiolect.methods.l2gd import waiting

from ..closed_forms.quadratic import Problem, Quadratic
from ..page import Claim, Page, Row
from ..panels import Line, Panel
from . import runs as how
from .runs import Curve, Runs

FFGG, TRUE, SCAFFOLD, LOCAL, L2GD = "FFGG", "FFGG, 1/L_F", "SCAFFOLD", "Local GD", "L2GD"
JOINT = "best with one w for all"


@dataclass(frozen=True)
class Size:
    """The sizes of the experiment; those of the paper as defaults."""

    drawn: Quadratic = Quadratic()  # n = 10000, d_θ = 100, d_w = 50, 32 clients
    taus: tuple[int, ...] = (100, 200, 500)
    other_taus: tuple[int, ...] = (100,)  # with one common θ*
    rounds: int = 150

    @property
    def common(self) -> Quadratic:
        """The problem of the paper's notebook on Byzantine clients, where Assumption 2 holds."""
        return replace(self.drawn, truth="common", noise=0.0, seed=42)


def write(folder: Path, size: Size | None = None) -> list[Path]:
    """Run everything and write the page."""
    began = time.process_time()
    size = size or Size()
    cases = [("own targets", size.drawn, tau) for tau in size.taus]
    cases += [("common θ*", size.common, tau) for tau in size.other_taus]
    with Runs("ffgg-figure1b", sum(5 * (10 + tau) * size.rounds for *_, tau in cases)) as runs:
        problems = {drawn: drawn.draw() for drawn in dict.fromkeys(d for _, d, _ in cases)}
        found = {
            f"τ = {tau}, {name}": compare(
                runs, problems[drawn], tau, size.rounds, both=tau == size.taus[0]
            )
            for name, drawn, tau in cases
        }
        by_iteration = {
            title: iterations(curves[L2GD], tau)
            for (title, curves), (*_, tau) in zip(found.items(), cases, strict=True)
        }
        place = {
            title: at_iteration(runs, problems[drawn], by_iteration[title], tau, size.rounds)
            for title, (_, drawn, tau) in zip(found, cases, strict=True)
        }
    page = Page(
        name="ffgg-figure1b",
        title="FFGG, Figure 1(b-d): against SCAFFOLD, Local GD and L2GD",
        settings=words(size, problems[size.drawn]),
        claims=claims(found, place, size),
        tables=tables(found, by_iteration, place, size),
        figures={
            title: {label: c.line().y for label, c in curves.items()}
            for title, curves in found.items()
        },
        panels=panels(found),
        seconds=time.process_time() - began,
        order=11,
    )
    return page.write(folder)


def compare(runs: Runs, problem: Problem, tau: int, rounds: int, both: bool) -> dict[str, Curve]:
    """All methods with τ local steps (FFGG with `both` its step sizes); where one w leads to."""
    constants = problem.constants()
    methods = {
        FFGG: how.ffgg(constants, tau),
        **({TRUE: how.ffgg(constants, tau, true=True)} if both else {}),
        SCAFFOLD: how.scaffold(constants, tau),
        LOCAL: how.local_gd(constants, tau),
        L2GD: how.l2gd(constants, tau),
    }
    found = {
        label: replace(
            runs.follow(f"{label}, τ = {tau}", problem, method, rounds, 10 + tau), label=label
        )
        for label, method in methods.items()
    }
    joint = problem.norm(problem.joint_minimiser()[0])
    return found | {JOINT: Curve(JOINT, [joint] * (rounds + 1))}


def iterations(curve: Curve, tau: int, seed: int = 0) -> Curve:
    """L2GD over its iterations: each round begins with mean steps, and gradient steps follow."""
    count = [0]
    for t in range(len(curve.norms) - 1):
        u = streams.uniform(streams.keys(seed, "l2gd", t), 2)[0]
        mean_steps = waiting(u[0], 1 - 1 / tau) if t else 0
        count.append(count[-1] + mean_steps + waiting(u[1], 1 / tau))
    return replace(curve, across=tuple(count))


def at_iteration(
    runs: Runs, problem: Problem, curve: Curve, tau: int, count: int
) -> tuple[int, float]:
    """(iterations, ‖F(θ)‖) of L2GD's mean model after so many iterations.

    Until the first message these are gradient steps, as Local GD's; later on the next message.
    """
    if count <= curve.rounds[1]:
        l2gd = how.l2gd(problem.constants(), tau)
        method = FedAvg(lr=l2gd.lr / (1 - l2gd.p), steps=count)
        return count, runs.follow(f"L2GD, {count} iterations", problem, method, 1, 0).norms[-1]
    r = int(np.searchsorted(curve.rounds, count))
    return int(curve.rounds[r]), curve.norms[r]


STYLES = {FFGG: 0, TRUE: 1, SCAFFOLD: 2, LOCAL: 3, L2GD: 4, JOINT: 5}


def lines(curves: dict[str, Curve]) -> list[Line]:
    return [c.line(formula=n == JOINT, style=STYLES[n]) for n, c in curves.items()]


def panels(found: dict[str, dict[str, Curve]]) -> list[Panel]:
    """Colours are told in the first panel."""
    shown: list[Panel] = []
    for title, curves in found.items():
        mine = lines(curves)
        mine = [replace(line, label="") for line in mine] if shown else mine
        shown.append(Panel(title, "communication round", "‖F(θ)‖", mine, log="y"))
    return shown


Places = dict[str, tuple[int, float]]  # iterations and ‖F(θ)‖ of L2GD, for each case


def tables(
    found: dict[str, dict[str, Curve]], l2gd: dict[str, Curve], place: Places, size: Size
) -> dict[str, list[Row]]:
    marks = sorted({0, size.rounds // 10, size.rounds // 3, size.rounds})
    by_round = [
        {"": title, "method": label} | {f"{r}": float(f"{c.at(r):.3g}") for r in marks}
        for title, curves in found.items()
        for label, c in curves.items()
    ]
    by_iteration: list[Row] = []
    for title, curve in l2gd.items():
        count, norm = place[title]
        sent = int(np.searchsorted(curve.rounds, count, side="right")) - 1
        places = [(count, sent, norm)]
        places += [(int(curve.rounds[r]), r, curve.norms[r]) for r in (1, 2, len(curve.norms) - 1)]
        by_iteration += [
            {"": title, "iterations": i, "communications": r, "‖F(θ)‖": float(f"{norm:.3g}")}
            for i, r, norm in sorted(set(places))
        ]
    return {
        "‖F(θ)‖ after so many communication rounds": by_round,
        "L2GD by iterations, gradient and mean steps alike, as the authors' notebook counts": (
            by_iteration
        ),
    }


def claims(found: dict[str, dict[str, Curve]], place: Places, size: Size) -> list[Claim]:
    end = {
        title: {n: c.at(size.rounds) for n, c in curves.items()} for title, curves in found.items()
    }
    first = next(iter(found))
    shared = all(e[FFGG] < min(e[SCAFFOLD], e[LOCAL]) for e in end.values())
    rounds = all(e[FFGG] < e[L2GD] for e in end.values())
    steps = all(end[t][FFGG] < place[t][1] for t in end)
    by_tau = [end[title][FFGG] for title in list(found)[: len(size.taus)]]
    gain = by_tau[0] / by_tau[-1] - 1
    e = end[first]
    return [
        Claim(
            "FFGG outperforms SCAFFOLD and Local GD in all cases",
            f"{first}, {size.rounds} rounds: FFGG {e[FFGG]:.3g}, SCAFFOLD {e[SCAFFOLD]:.3g}, "
            f"Local GD {e[LOCAL]:.3g}; FFGG is ahead in every case"
            if shared
            else f"{first}: FFGG {e[FFGG]:.3g}, SCAFFOLD {e[SCAFFOLD]:.3g}, Local {e[LOCAL]:.3g}",
            "agrees" if shared else "differs",
            "" if shared else "not found",
        ),
        Claim(
            "FFGG outperforms L2GD in all cases",
            f"{first}: after {size.rounds} communications FFGG {e[FFGG]:.3g}, L2GD {e[L2GD]:.3g}; "
            f"after {place[first][0]} iterations L2GD is at {place[first][1]:.3g}",
            "agrees" if rounds else "differs",
            ""
            if rounds
            else "the authors' notebook counts L2GD's iterations where it counts FFGG's rounds: "
            + ("so counted, FFGG is ahead" if steps else "so counted, FFGG is not ahead either"),
        ),
        Claim(
            "FFGG's convergence improves with more local steps",
            f"‖F(θ)‖ {', '.join(f'{v:.4g}' for v in by_tau)} for τ = {size.taus}",
            "agrees" if gain > 0.01 else "differs",
            ""
            if gain > 0.01
            else f"{size.taus[0]} steps already solve line 4 better than {size.rounds} rounds "
            "can show",
        ),
    ]


def words(size: Size, problem: Problem) -> str:
    d = size.drawn
    c = problem.constants()
    return f"""\
As printed: the problem of Figure 1(a) (n = {d.samples:,}, d_θ = {d.shared}, d_w = {d.private},
{d.clients} clients); FFGG with gradient descent for line 4; SCAFFOLD with outer step 0.5 and inner
step 1/(L_f τ); Local GD (FedAvg) with step 1/(L_f τ); L2GD with λ = 0.1 and p = 1/τ.

Left open, and chosen here: b_m and y_m (those of Appendix E.1, each client's own; and for τ = 100
the problem with one common θ* of the authors' notebook on Byzantine clients); γ_θ = 1/L with
Example 1's L = {c.example1:.3g}, and for the first τ with the true smoothness L_F = {c.F:.3g} too;
γ_w = 1/L_w (L_w = {c.w:.3g}); start θ = 0, w ~ N(0, I) for FFGG (anew in each round) and 0 for the
others; {size.rounds} rounds. L_f = {c.f:.3g}. L2GD's step (2M)⁻¹ max{{L/(1-p), λ/p}} is read as its
reciprocal: as printed its gradient steps are above 2/L_f and diverge. θ of SCAFFOLD, Local GD
and L2GD is that of the mean model."""
