"""Test loss against λ under attack: Figure 1 of the lp-proj paper, and for its other two attacks.

`idiolect reproduce lp-proj-figure1`. Formulas are those of Appendix B (`closed_forms`), points are
runs of the methods (`regression` says why a run is the paper's setting).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from idiolect.data.sets.regression import LinearRegression

from ..closed_forms import linear_regression as linear
from ..closed_forms.problems import matrix_of
from ..page import Facts, Row, page_from_text
from ..panels import Line, Panel
from ..runs import Work, train_all
from ..theory import Mean, banded
from . import regression
from .regression import DITTO, LPPROJ, PFEDME, malicious_of, play, tested

NAME = "lp-proj-figure1"
ATTACKS: dict[str, Callable[..., float]] = {
    "same-value": linear.same_value_spread,
    "sign-flip": linear.sign_flip_spread,
    "gaussian": linear.gaussian_spread,
}
TIED = (PFEDME, LPPROJ)  # the methods with formulas of their own
LARGEST = 1.2  # λ from which on the inner problem of lp-proj takes many steps


@dataclass(frozen=True)
class AttackedSize:
    """The sizes of the experiment; those of the paper as defaults."""

    setting: LinearRegression = LinearRegression()  # n = 200, N = 100, d = 100, b = 1, σ = 1
    dim: int = 10
    malicious: int = 20
    tau: float = 100.0
    around: float = 0.1  # Σ₁
    multiples: tuple[float, ...] = (0.25, 1, 2, 3, 4, 12, 32, 90, 256, 720, 2048)  # of the best λ
    seeds: int = 10
    plays: int = 16  # of the paper's round per seed
    ditto_seeds: int = 2

    def draw_setting(self, seed: int) -> LinearRegression:
        """The setting of a seed: Σ₁ is as given, in expectation over the true parameters."""
        N = self.setting.clients
        benign = N - self.malicious
        share = (1 - 1 / N) ** 2 + (benign - 1) / N**2  # of E Σ₁ in the variance of a coefficient
        return replace(self.setting, heterogeneity=self.around / share, seed=seed)

    def run_settings(self, attack: str) -> dict[str, Any]:
        return {"attack": f"{attack}(std={self.tau:g})", "malicious": float(self.malicious)}


# -- runs -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class AloneRun(Work):
    """Local's test loss on the benign clients of a seed, and Σ' of the attack on its parameters."""

    attack: str
    size: AttackedSize
    seed: int

    def train(self) -> dict[str, float]:
        size, setting = self.size, self.size.draw_setting(self.seed)
        federation, w = setting.draw()
        method = regression.local(setting)
        alone = play(method, federation, self.seed, 1, **size.run_settings(self.attack))
        malicious = malicious_of(alone)
        P = matrix_of("orthogonal", size.dim, setting.features, self.seed)
        spread = ATTACKS[self.attack]
        return {
            "loss": alone.summary()["loss"]["mean"],
            "spread": spread(setting, w, malicious, size.tau),  # of the whole space
            "spread_seen": spread(setting, w, malicious, size.tau, P),  # of the subspace
        }


@dataclass(frozen=True)
class TiedRuns(Work):
    """Test losses of methods on the benign clients of a seed: [λ, play] for each."""

    attack: str
    size: AttackedSize
    seed: int
    lams: tuple[float, ...]
    methods: tuple[str, ...] = TIED
    ditto: bool = False

    def cost(self) -> float:
        return len(self.lams) * (len(self.methods) + self.ditto)

    def train(self) -> dict[str, list[list[float]]]:
        size = self.size
        federation, _ = size.draw_setting(self.seed).draw()
        run_settings = size.run_settings(self.attack) | {"eval_every": 1}

        def losses(name: str, lam: float) -> list[float]:
            method = regression.tied(name, size.setting, lam, size.dim)
            result = play(method, federation, self.seed, size.plays + 1, **run_settings)
            return tested(result).tolist()

        names = (*self.methods, DITTO) if self.ditto else self.methods
        return {name: [losses(name, lam) for lam in self.lams] for name in names}


@dataclass(frozen=True)
class AttackOutcome:
    """Losses of runs and formulas under one attack."""

    size: AttackedSize
    lams: list[float]
    alone: np.ndarray  # [seed]: Local's
    runs: dict[str, np.ndarray]  # [λ, seed], by method; Ditto's has few seeds
    draws: np.ndarray  # of pFedMe at the largest λ: every play of every seed
    spreads: np.ndarray  # [seed]: Σ' of the whole space
    spreads_seen: np.ndarray  # and of the subspace

    @property
    def spread(self) -> float:
        return float(self.spreads.mean())

    @property
    def spread_seen(self) -> float:
        return float(self.spreads_seen.mean())

    @property
    def best(self) -> float:
        return linear.best_lam(self.size.setting, self.spread)

    @property
    def threshold(self) -> float:
        return linear.lpproj_wins_from(self.size.setting, self.spread)

    def excess(self, name: str) -> list[Mean]:
        """Test loss minus Local's on the same data, for each λ."""
        return [Mean.of(row) for row in self.runs[name] - self.alone]

    def error(self, name: str) -> list[Mean]:
        """What runs and formula differ by, both as a difference from Local."""
        formula = self.formulas(name) - linear.local_loss(self.size.setting)
        return [Mean.of(row) for row in (self.runs[name] - self.alone) - formula]

    def gap(self) -> list[Mean]:
        """lp-proj minus pFedMe on the same data under the same draws, for each λ."""
        return [Mean.of(row) for row in self.runs[LPPROJ] - self.runs[PFEDME]]

    def formula(self, name: str, lam: float, seed: int | None = None) -> float:
        """The loss at a seed's parameters; by default at the means of Σ' over seeds."""
        setting = self.size.setting
        if name == PFEDME:
            return linear.pfedme_loss(
                setting, lam, self.spread if seed is None else self.spreads[seed]
            )
        seen = self.spread_seen if seed is None else self.spreads_seen[seed]
        return linear.lpproj_loss(setting, lam, self.size.dim, seen)

    def formulas(self, name: str) -> np.ndarray:  # [λ, seed]
        seeds = range(len(self.alone))
        return np.array([[self.formula(name, lam, seed) for seed in seeds] for lam in self.lams])


def measure(
    size: AttackedSize, folder: Path, workers: int = 2, attacks: tuple[str, ...] = tuple(ATTACKS)
) -> dict[str, AttackOutcome]:
    """What came out under every attack."""
    seeds = range(size.seeds)
    local = {attack: [AloneRun(attack, size, seed) for seed in seeds] for attack in attacks}
    alone = train_all(local, folder, NAME, workers)
    lams: dict[str, list[float]] = {}
    tied = {}
    for attack, jobs in local.items():
        spread = float(np.mean([alone[job]["spread"] for job in jobs]))
        best = linear.best_lam(size.setting, spread)
        lams[attack] = [best * m for m in size.multiples if best * m <= LARGEST]
        tied[attack] = [
            TiedRuns(attack, size, seed, tuple(lams[attack]), ditto=seed < size.ditto_seeds)
            for seed in seeds
        ]
    losses = train_all(tied, folder, NAME, workers)
    outcomes = {}
    for attack in attacks:
        by_seed = [losses[job] for job in tied[attack]]
        own = [alone[job] for job in local[attack]]
        outcomes[attack] = AttackOutcome(
            size,
            lams[attack],
            alone=np.array([one["loss"] for one in own]),
            runs={
                name: np.array([np.mean(one[name], 1) for one in by_seed if name in one]).T
                for name in (PFEDME, DITTO, LPPROJ)
            },
            draws=np.concatenate([one[PFEDME][-1] for one in by_seed]),
            spreads=np.array([one["spread"] for one in own]),
            spreads_seen=np.array([one["spread_seen"] for one in own]),
        )
    return outcomes


# -- the page -------------------------------------------------------------------------------------
def write(folder: Path, size: AttackedSize | None = None, workers: int = 2) -> list[Path]:
    """Run everything and write the page."""
    began = time.perf_counter()
    size = size or AttackedSize()
    outcomes = measure(size, folder, workers)
    printed = linear.attacked_spread(size.setting, size.around, size.malicious, size.tau**2)
    paper = size == replace(
        AttackedSize(), multiples=size.multiples, seeds=size.seeds, plays=size.plays
    )
    facts = {
        "size": size,
        "largest_multiple": size.multiples[-1],
        "largest": LARGEST,
        "best": linear.best_lam(size.setting, printed),
        "threshold": linear.lpproj_wins_from(size.setting, printed),
    }
    return page_from_text(
        NAME,
        facts,
        verdicts={
            "best": "differs" if paper else None,
            "same": same(outcomes),
            "crossing": crossing(outcomes),
            "negligible": negligible(outcomes),
            "order": order(outcomes),
            "fit": fit(outcomes),
            "gaussian": gaussian(outcomes),
        },
        tables={
            f"{attack}: test loss of benign clients, mean over {size.seeds} seeds ± 95 % interval; "
            f"Local {Mean.of(outcome.alone).text(4)}": rows(outcome)
            for attack, outcome in outcomes.items()
        },
        figures={attack: figures(outcome) for attack, outcome in outcomes.items()},
        panels=[
            *(whole(attack, outcome) for attack, outcome in outcomes.items()),
            *(near(attack, outcome) for attack, outcome in outcomes.items()),
        ],
        seconds=time.perf_counter() - began,
    ).write(folder)


def rows(outcome: AttackOutcome) -> list[Row]:
    """The table of one attack."""
    table = []
    for i, lam in enumerate(outcome.lams):
        row: Row = {"λ": f"{lam:.3g}", "λ/λ*": f"{lam / outcome.best:g}"}
        for name in TIED:
            row[f"{name}, formula"] = f"{outcome.formulas(name)[i].mean():.5g}"
            row[f"{name}, runs - formula"] = outcome.error(name)[i].text(2)
        row["lp-proj - pFedMe, runs"] = outcome.gap()[i].text(2)
        table.append(row)
    return table


def figures(outcome: AttackOutcome) -> dict[str, Any]:
    """The plain data behind the table; null where Ditto was not run."""
    seeds = len(outcome.alone)
    return {
        "lams": outcome.lams,
        "best_lam": outcome.best,
        "threshold": outcome.threshold,
        "spread": outcome.spread,
        "spread_of_subspace": outcome.spread_seen,
        "local": outcome.alone.tolist(),
        "runs": {
            name: [[*row, *[None] * (seeds - len(row))] for row in losses.tolist()]
            for name, losses in outcome.runs.items()
        },
        "formulas": {name: outcome.formulas(name).tolist() for name in TIED},
    }


# -- what the paper says of it --------------------------------------------------------------------
Judged = list[tuple[bool | str, Facts]]
Outcomes = dict[str, AttackOutcome]


def same(outcomes: Outcomes) -> Judged:
    """Proposition 16 (i)."""
    apart = max(
        float(np.abs(o.runs[DITTO] / o.runs[PFEDME][:, : o.runs[DITTO].shape[1]] - 1).max())
        for o in outcomes.values()
    )
    return [(apart < 1e-9, {"apart": apart})]


def crossing(outcomes: Outcomes) -> Judged:
    """Proposition 16 (ii): signs of the measured gaps, where the interval decides them."""
    right, wrong, undecided = 0, 0, 0
    for outcome in outcomes.values():
        for lam, gap in zip(outcome.lams, outcome.gap(), strict=True):
            if gap.holds_zero:
                undecided += 1
            elif (gap.value < 0) == (lam > outcome.threshold):
                right += 1
            else:
                wrong += 1
    where = ", ".join(f"{o.threshold:.3g} ({attack})" for attack, o in outcomes.items())
    facts = {"where": where, "total": right + wrong + undecided}
    return [(not wrong, facts | {"right": right, "wrong": wrong, "undecided": undecided})]


def negligible(outcomes: Outcomes) -> Judged:
    parts = []
    worst = 0.0
    for attack, o in outcomes.items():
        alone = linear.local_loss(o.size.setting)
        pfedme, lpproj = (o.formula(name, o.best) for name in TIED)
        runs = o.gap()[int(np.argmin(np.abs(np.array(o.lams) - o.best)))]
        worst = max(worst, (lpproj - pfedme) / alone)
        parts.append(f"{lpproj - pfedme:.1e} by the formula, {runs.text(2)} in runs ({attack})")
    facts = {"parts": "; ".join(parts), "alone": alone, "percent": 100 * worst}
    return [(worst < 0.01, facts)]


def order(outcomes: Outcomes) -> Judged:
    """L^loc <= L^l2 <= L^Me above the threshold (after Theorem 30)."""
    signs = {1: 0, -1: 0, 0: 0}
    worst = 0.0
    for outcome in outcomes.values():
        ours, theirs = outcome.runs[LPPROJ], outcome.runs[PFEDME]
        for i, lam in enumerate(outcome.lams):
            if lam > outcome.threshold:
                for over in (outcome.excess(LPPROJ)[i], Mean.of(theirs[i] - ours[i])):
                    signs[0 if over.holds_zero else int(np.sign(over.value))] += 1
        worst = max(worst, float(theirs[-1].mean() / ours[-1].mean()))
    facts = {"total": sum(signs.values()), "right": signs[1], "wrong": signs[-1]}
    return [(not signs[-1], facts | {"undecided": signs[0], "worst": worst})]


def fit(outcomes: Outcomes) -> Judged:
    """Formulas against runs, attack by attack."""
    judged: Judged = []
    for attack, outcome in outcomes.items():
        inside = [mean.holds_zero for name in TIED for mean in outcome.error(name)]
        verdict = "agrees" if sum(inside) / len(inside) >= 0.8 else "same order"
        equation = "B.3.3" if attack == "sign-flip" else "(39)"
        facts = {"attack": attack, "equation": equation, "places": len(inside)}
        judged.append((verdict, facts | {"inside": sum(inside)}))
    return judged


def gaussian(outcomes: Outcomes) -> Judged:
    """Same-value against Gaussian attacks: mean, and spread of single rounds in per cent of it."""
    facts = {}
    for attack in ("gaussian", "same-value"):
        draws = outcomes[attack].draws
        facts[attack] = outcomes[attack].runs[PFEDME][-1].mean()
        facts[f"{attack} spread"] = 100 * draws.std() / draws.mean()
    return [("agrees", facts)]


# -- panels ---------------------------------------------------------------------------------------
def whole(attack: str, outcome: AttackOutcome) -> Panel:
    """Test loss over all λ."""
    lams = outcome.lams
    lines = _formulas(outcome, np.geomspace(lams[0], lams[-1], 60).tolist(), 0.0, 1.0)
    for style, name in enumerate(TIED):
        means = [Mean.of(row) for row in outcome.runs[name]]
        lines.append(banded(f"{name}, runs", lams, means, style))
    alone = linear.local_loss(outcome.size.setting)
    ends = [lams[0], lams[-1]]
    lines.append(Line("Local, formula", ends, [alone] * 2, style=2, formula=True))
    marks = [(outcome.threshold, "threshold")]
    return Panel(attack, "λ", "test loss, benign clients", lines, log="xy", vertical=marks)


def near(attack: str, outcome: AttackOutcome) -> Panel:
    """Around the threshold, against Local."""
    end = 2.2 * outcome.threshold
    lams = [lam for lam in outcome.lams if lam <= end]
    scale = 1e4
    alone = linear.local_loss(outcome.size.setting)
    lines = _formulas(outcome, np.linspace(lams[0], lams[-1], 40).tolist(), alone, scale)
    for style, name in enumerate(TIED):
        means = [mean.scaled(scale) for mean in outcome.excess(name)[: len(lams)]]
        lines.append(banded(f"{name}, runs", lams, means, style))
    marks = [(outcome.best, "λ*"), (outcome.threshold, "threshold")]
    title = f"{attack}, near the threshold"
    return Panel(title, "λ", "(loss - Local's) × 10⁴", lines, vertical=marks)


def _formulas(outcome: AttackOutcome, lams: list[float], minus: float, scale: float) -> list[Line]:
    lines = []
    for style, name in enumerate(TIED):
        y = [outcome.formula(name, lam) for lam in lams]
        label = f"{'pFedMe = Ditto' if name == PFEDME else name}, formula"
        values = [scale * (value - minus) for value in y]
        lines.append(Line(label, lams, values, style=style, formula=True))
    return lines
