"""Test loss against λ under attack: Figure 1 of the lp-proj paper, and for its other two attacks.

`idiolect reproduce lp-proj-figure1`. Formulas are those of Appendix B (`closed_forms`), points are
runs of the methods (`regression` says why a run is the paper's setting).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from idiolect import Federation
from idiolect.data.sets.regression import LinearRegression

from ..closed_forms import linear_regression as linear
from ..page import Claim, judged
from ..panels import Line, Panel
from ..theory import theory_page
from . import regression
from .regression import Mean, malicious_of, play, tested

ATTACKS: dict[str, Callable[..., float]] = {
    "same-value": linear.same_value_spread,
    "sign-flip": linear.sign_flip_spread,
    "gaussian": linear.gaussian_spread,
}
PFEDME, DITTO, LPPROJ = "pFedMe", "Ditto", "lp-proj-2"
LARGEST = 1.2  # λ from which on the inner problem of lp-proj takes many steps


@dataclass(frozen=True)
class Figure1Size:
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

    def with_dim(self, dim: int) -> Figure1Size:
        """The same with another d_sub."""
        return replace(self, dim=dim)


@dataclass
class AttackedFederation:
    """A federation, who is malicious in it, and what the formulas need to know of it."""

    federation: Federation
    malicious: Tensor  # bool[N]
    alone: float  # Local's test loss on the benign clients
    spread: float  # Σ' of the whole space
    spread_seen: float  # Σ' of the subspace


def prepare(attack: str, size: Figure1Size, seed: int) -> AttackedFederation:
    """The federation of a seed with its malicious clients, and Local's loss on the others."""
    s = size.draw_setting(seed)
    federation, w = s.draw()
    alone = play(regression.local(s), federation, seed, 1, **settings(attack, size))
    malicious = malicious_of(alone)
    P = regression.subspace(size.dim, s.features, seed)
    spread = ATTACKS[attack]
    return AttackedFederation(
        federation,
        malicious,
        alone.summary()["loss"]["mean"],
        spread(s, w, malicious, size.tau),
        spread(s, w, malicious, size.tau, P),
    )


def settings(attack: str, size: Figure1Size) -> dict[str, Any]:
    return {"attack": f"{attack}(std={size.tau:g})", "malicious": float(size.malicious)}


def measure(attack: str, size: Figure1Size) -> dict[str, Any]:
    """Losses of runs and formulas: [λ, seed] for each method."""
    s = size.setting
    by_seed = [prepare(attack, size, seed) for seed in range(size.seeds)]
    spread = float(np.mean([one.spread for one in by_seed]))
    best = linear.best_lam(s, spread)
    lams = [best * m for m in size.multiples if best * m <= LARGEST]
    ran: dict[str, np.ndarray] = {
        name: np.full((len(lams), size.seeds), np.nan) for name in (PFEDME, DITTO, LPPROJ)
    }
    formula_losses: dict[str, np.ndarray] = {name: ran[PFEDME].copy() for name in (PFEDME, LPPROJ)}
    draws: dict[str, list[float]] = {PFEDME: [], LPPROJ: []}  # at the largest λ, all plays
    run_settings = settings(attack, size) | {"eval_every": 1}
    with regression.progress(f"{attack} (lp-proj-figure1)", len(lams) * size.seeds) as step:
        for j, one in enumerate(by_seed):
            for i, lam in enumerate(lams):
                methods = {
                    PFEDME: regression.pfedme(s, lam),
                    LPPROJ: regression.lpproj(s, lam, size.dim),
                }
                if j < size.ditto_seeds:
                    methods[DITTO] = regression.ditto(s, lam)
                for name, method in methods.items():
                    result = play(method, one.federation, j, size.plays + 1, **run_settings)
                    ran[name][i, j] = tested(result).mean()
                    if i == len(lams) - 1 and name in draws:
                        draws[name] += tested(result).tolist()
                formula_losses[PFEDME][i, j] = linear.pfedme_loss(s, lam, one.spread)
                formula_losses[LPPROJ][i, j] = linear.lpproj_loss(s, lam, size.dim, one.spread_seen)
                step()
    mean_spread_seen = float(np.mean([one.spread_seen for one in by_seed]))
    return {
        "lams": lams,
        "ran": ran,
        "said": formula_losses,
        "draws": draws,
        "local": Mean.of([one.alone for one in by_seed]),
        "alone": np.array([one.alone for one in by_seed]),
        "spread": spread,
        "spread_seen": mean_spread_seen,
        "best": best,
        "threshold": linear.lpproj_wins_from(s, spread),
        "size": size,
    }


# -- the page -------------------------------------------------------------------------------------


def write(folder: Path, size: Figure1Size | None = None) -> list[Path]:
    """Run everything and write the page."""
    began = time.perf_counter()
    size = size or Figure1Size()
    outcomes = {attack: measure(attack, size) for attack in ATTACKS}
    return theory_page(
        "lp-proj-figure1",
        facts={"size": size, "largest_multiple": size.multiples[-1], "largest": LARGEST},
        verdicts={},
        more_claims=claims(outcomes, size),
        tables={
            f"{attack}: test loss of benign clients, mean over {size.seeds} seeds ± 95 % interval; "
            f"Local {f['local'].text(4)}": rows(f)
            for attack, f in outcomes.items()
        },
        figures={attack: figures(f) for attack, f in outcomes.items()},
        panels=[
            *(whole(a, f) for a, f in outcomes.items()),
            *(near(a, f) for a, f in outcomes.items()),
        ],
        seconds=time.perf_counter() - began,
    ).write(folder)


# -- what came out --------------------------------------------------------------------------------
def excess(f: dict[str, Any], name: str) -> list[Mean]:
    """Test loss minus Local's on the same data, for each λ."""
    return [Mean.of(row) for row in f["ran"][name] - f["alone"]]


def error(f: dict[str, Any], name: str) -> list[Mean]:
    """What runs and formula differ by, both as a difference from Local."""
    alone = linear.local_loss(f["size"].setting)
    return [Mean.of(row) for row in (f["ran"][name] - f["alone"]) - (f["said"][name] - alone)]


def gap(f: dict[str, Any]) -> list[Mean]:
    """lp-proj minus pFedMe on the same data under the same draws, for each λ."""
    return [Mean.of(row) for row in f["ran"][LPPROJ] - f["ran"][PFEDME]]


def rows(f: dict[str, Any]) -> list[dict[str, Any]]:
    """The table of one attack."""
    out = []
    for i, lam in enumerate(f["lams"]):
        row: dict[str, Any] = {"λ": f"{lam:.3g}", "λ/λ*": f"{lam / f['best']:g}"}
        for name in (PFEDME, LPPROJ):
            row[f"{name}, formula"] = f"{f['said'][name][i].mean():.5g}"
            row[f"{name}, runs - formula"] = error(f, name)[i].text(2)
        row["lp-proj - pFedMe, runs"] = gap(f)[i].text(2)
        out.append(row)
    return out


def figures(f: dict[str, Any]) -> dict[str, Any]:
    """The plain data behind the table."""
    return {
        "lams": f["lams"],
        "best_lam": f["best"],
        "threshold": f["threshold"],
        "spread": f["spread"],
        "spread_of_subspace": f["spread_seen"],
        "local": f["alone"].tolist(),
        "runs": {n: [_known(row) for row in v.tolist()] for n, v in f["ran"].items()},
        "formulas": {n: v.tolist() for n, v in f["said"].items()},
    }


def _known(row: list[float]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in row]


def claims(outcomes: dict[str, dict[str, Any]], size: Figure1Size) -> list[Claim]:
    """The paper's statements about its Figure 1, one after the other."""
    printed = linear.attacked_spread(size.setting, size.around, size.malicious, size.tau**2)
    best = linear.best_lam(size.setting, printed)
    threshold = linear.lpproj_wins_from(size.setting, printed)
    paper = size == replace(
        Figure1Size(), multiples=size.multiples, seeds=size.seeds, plays=size.plays
    )
    out = []
    if paper:
        out.append(
            Claim(
                "λ₁* ≈ 4.9e-4",
                f"its formula gives {best:.3g} for these settings; 2 λ₁* / (1 - λ₁*/b) is "
                f"{threshold:.3g}",
                "differs",
                "the number printed is that of the threshold",
            )
        )
    return [
        *out,
        _same(outcomes),
        _crossing(outcomes),
        _negligible(outcomes),
        _order(outcomes),
        *_fit(outcomes),
    ]


def _same(outcomes: dict[str, dict[str, Any]]) -> Claim:
    """Proposition 16 (i)."""
    apart = max(
        float(np.nanmax(np.abs(f["ran"][DITTO] / f["ran"][PFEDME] - 1))) for f in outcomes.values()
    )
    return judged(
        "pFedMe and Ditto have the same loss for every λ (Proposition 16 (i))",
        f"under all three attacks their runs differ by at most {apart:.1e} of the loss",
        apart < 1e-9,
    )


def _crossing(outcomes: dict[str, dict[str, Any]]) -> Claim:
    """Proposition 16 (ii): signs of the measured gaps, where the interval decides them."""
    right, wrong, open_ = 0, 0, 0
    for f in outcomes.values():
        for lam, g in zip(f["lams"], gap(f), strict=True):
            if g.holds_zero:
                open_ += 1
            elif (g.value < 0) == (lam > f["threshold"]):
                right += 1
            else:
                wrong += 1
    where = ", ".join(f"{f['threshold']:.3g} ({a})" for a, f in outcomes.items())
    return judged(
        "lp-proj is no worse than pFedMe and Ditto if and only if λ ≥ 2 λ* / (1 - λ*/b) "
        "(Proposition 16 (ii))",
        f"threshold {where}; of {right + wrong + open_} measured differences {right} have the "
        f"sign it says, {wrong} the other, {open_} are too close to tell",
        not wrong,
    )


def _negligible(outcomes: dict[str, dict[str, Any]]) -> Claim:
    s = next(iter(outcomes.values()))["size"]
    alone = linear.local_loss(s.setting)
    parts = []
    worst = 0.0
    for attack, f in outcomes.items():
        most = linear.lpproj_loss(
            s.setting, f["best"], s.dim, f["spread_seen"]
        ) - linear.pfedme_loss(s.setting, f["best"], f["spread"])
        runs = gap(f)[int(np.argmin(np.abs(np.array(f["lams"]) - f["best"])))]
        worst = max(worst, most / alone)
        parts.append(f"{most:.1e} by the formula, {runs.text(2)} in runs ({attack})")
    return judged(
        "below the threshold the gap between lp-proj and pFedMe / Ditto is negligible",
        f"at λ*, where pFedMe gains most: {'; '.join(parts)}; Local's loss is {alone:.3g}",
        worst < 0.01,
        f"the gap is {100 * worst:.1f} % of Local's loss",
    )


def _order(outcomes: dict[str, dict[str, Any]]) -> Claim:
    """L^loc <= L^l2 <= L^Me above the threshold (after Theorem 30)."""
    signs = {1: 0, -1: 0, 0: 0}
    worst = 0.0
    for f in outcomes.values():
        for i, lam in enumerate(f["lams"]):
            if lam > f["threshold"]:
                for over in (
                    excess(f, LPPROJ)[i],
                    Mean.of(f["ran"][PFEDME][i] - f["ran"][LPPROJ][i]),
                ):
                    signs[0 if over.holds_zero else int(np.sign(over.value))] += 1
        worst = max(worst, float(f["ran"][PFEDME][-1].mean() / f["ran"][LPPROJ][-1].mean()))
    return judged(
        "above the threshold Local ≤ lp-proj ≤ pFedMe",
        f"of {sum(signs.values())} measured differences {signs[1]} have this order, {signs[-1]} "
        f"the other, {signs[0]} are too close to tell; at the largest λ pFedMe's loss is up to "
        f"{worst:.1f} times lp-proj's, and Local, which hears nobody, has the least loss of all",
        not signs[-1],
    )


def _fit(outcomes: dict[str, dict[str, Any]]) -> list[Claim]:
    """Formulas against runs, attack by attack; and same-value against gaussian."""
    out = []
    for attack, f in outcomes.items():
        inside = [m.holds_zero for name in (PFEDME, LPPROJ) for m in error(f, name)]
        share = sum(inside) / len(inside)
        out.append(
            Claim(
                f"{attack}: the losses of {'(39)' if attack != 'sign-flip' else 'B.3.3'}",
                f"runs and formula agree within the 95 % interval in {sum(inside)} of "
                f"{len(inside)} places (the places share their draws)",
                "agrees" if share >= 0.8 else "same order",
            )
        )
    if {"same-value", "gaussian"} <= set(outcomes):
        means, spreads = {}, {}
        for attack in ("same-value", "gaussian"):
            draws = np.array(outcomes[attack]["draws"][PFEDME])
            means[attack] = outcomes[attack]["ran"][PFEDME][-1].mean()
            spreads[attack] = draws.std() / draws.mean()
        out.append(
            Claim(
                "Gaussian attacks give the same losses as same-value attacks (B.3.4)",
                f"in the mean: {means['gaussian']:.4g} and {means['same-value']:.4g} (pFedMe, "
                f"largest λ); but a single round under same-value has a standard deviation of "
                f"{100 * spreads['same-value']:.0f} % of the mean, under gaussian "
                f"{100 * spreads['gaussian']:.0f} %",
                "agrees",
            )
        )
    return out


# -- the page -------------------------------------------------------------------------------------
def whole(attack: str, f: dict[str, Any]) -> Panel:
    """Test loss over all λ."""
    s = f["size"].setting
    lams = np.geomspace(f["lams"][0], f["lams"][-1], 60)
    lines = [_formula(f, name, lams.tolist(), 0.0, 1.0) for name in (PFEDME, LPPROJ)]
    for style, name in enumerate((PFEDME, LPPROJ)):
        means = [Mean.of(row) for row in f["ran"][name]]
        lines.append(_points(name, f["lams"], means, style, 1.0))
    ends = [f["lams"][0], f["lams"][-1]]
    lines.append(Line("Local, formula", ends, [linear.local_loss(s)] * 2, style=2, formula=True))
    marks = [(f["threshold"], "threshold")]
    return Panel(attack, "λ", "test loss, benign clients", lines, log="xy", vertical=marks)


def near(attack: str, f: dict[str, Any]) -> Panel:
    """Around the threshold, against Local."""
    end = 2.2 * f["threshold"]
    lams = [lam for lam in f["lams"] if lam <= end]
    scale = 1e4
    alone = linear.local_loss(f["size"].setting)
    grid = np.linspace(lams[0], lams[-1], 40).tolist()
    lines = [_formula(f, name, grid, alone, scale) for name in (PFEDME, LPPROJ)]
    for style, name in enumerate((PFEDME, LPPROJ)):
        lines.append(_points(name, lams, excess(f, name)[: len(lams)], style, scale))
    marks = [(f["best"], "λ*"), (f["threshold"], "threshold")]
    return Panel(
        f"{attack}, near the threshold", "λ", "(loss - Local's) × 10⁴", lines, vertical=marks
    )


def _formula(f: dict[str, Any], name: str, lams: list[float], minus: float, scale: float) -> Line:
    size = f["size"]
    s = size.setting
    if name == PFEDME:
        y = [linear.pfedme_loss(s, lam, f["spread"]) for lam in lams]
    else:
        y = [linear.lpproj_loss(s, lam, size.dim, f["spread_seen"]) for lam in lams]
    style = (PFEDME, LPPROJ).index(name)
    label = f"{'pFedMe = Ditto' if name == PFEDME else name}, formula"
    return Line(label, lams, [scale * (v - minus) for v in y], style=style, formula=True)


def _points(name: str, lams: list[float], means: list[Mean], style: int, scale: float) -> Line:
    return Line(
        f"{name}, runs",
        lams,
        [scale * m.value for m in means],
        [scale * (m.value - m.half) for m in means],
        [scale * (m.value + m.half) for m in means],
        style=style,
        points=True,
    )
