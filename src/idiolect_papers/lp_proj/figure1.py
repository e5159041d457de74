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

from idiolect.data.federation import Federation
from idiolect.data.sets.regression import Linear

from ..closed_forms import linear_regression as linear
from ..page import Claim, Page
from ..panels import Line, Panel
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
class Size:
    """The sizes of the experiment; those of the paper as defaults."""

    setting: Linear = Linear()  # n = 200, N = 100, d = 100, b = 1, σ = 1
    dim: int = 10
    malicious: int = 20
    tau: float = 100.0
    around: float = 0.1  # Σ₁
    multiples: tuple[float, ...] = (0.25, 1, 2, 3, 4, 12, 32, 90, 256, 720, 2048)  # of the best λ
    seeds: int = 10
    plays: int = 16  # of the paper's round per seed
    ditto_seeds: int = 2

    def drawn(self, seed: int) -> Linear:
        """The setting of a seed: Σ₁ is as given, in expectation over the true parameters."""
        N = self.setting.clients
        benign = N - self.malicious
        share = (1 - 1 / N) ** 2 + (benign - 1) / N**2  # of E Σ₁ in the variance of a coefficient
        return replace(self.setting, heterogeneity=self.around / share, seed=seed)

    def with_dim(self, dim: int) -> Size:
        """The same with another d_sub."""
        return replace(self, dim=dim)


@dataclass
class Seed:
    """A federation, who is malicious in it, and what the formulas need to know of it."""

    federation: Federation
    malicious: Tensor  # bool[N]
    alone: float  # Local's test loss on the benign clients
    spread: float  # Σ' of the whole space
    spread_seen: float  # Σ' of the subspace


def prepare(attack: str, size: Size, seed: int) -> Seed:
    """The federation of a seed with its malicious clients, and Local's loss on the others."""
    s = size.drawn(seed)
    federation, w = s.draw()
    alone = play(regression.local(s), federation, seed, 1, **settings(attack, size))
    malicious = malicious_of(alone)
    P = regression.subspace(size.dim, s.features, seed)
    spread = ATTACKS[attack]
    return Seed(
        federation,
        malicious,
        alone.summary()["loss"]["mean"],
        spread(s, w, malicious, size.tau),
        spread(s, w, malicious, size.tau, P),
    )


def settings(attack: str, size: Size) -> dict[str, Any]:
    return {"attack": f"{attack}(std={size.tau:g})", "malicious": float(size.malicious)}


def measure(attack: str, size: Size) -> dict[str, Any]:
    """Losses of runs and formulas: [λ, seed] for each method."""
    s = size.setting
    by_seed = [prepare(attack, size, seed) for seed in range(size.seeds)]
    spread = float(np.mean([one.spread for one in by_seed]))
    best = linear.best_lam(s, spread)
    lams = [best * m for m in size.multiples if best * m <= LARGEST]
    ran: dict[str, np.ndarray] = {
        name: np.full((len(lams), size.seeds), np.nan) for name in (PFEDME, DITTO, LPPROJ)
    }
    said: dict[str, np.ndarray] = {name: ran[PFEDME].copy() for name in (PFEDME, LPPROJ)}
    draws: dict[str, list[float]] = {PFEDME: [], LPPROJ: []}  # at the largest λ, all plays
    given = settings(attack, size) | {"eval_every": 1}
    with regression.progress(f"{attack} (lp-proj-figure1)", len(lams) * size.seeds) as step:
        for j, one in enumerate(by_seed):
            for i, lam in enumerate(lams):
                made = {
                    PFEDME: regression.pfedme(s, lam),
                    LPPROJ: regression.lpproj(s, lam, size.dim),
                }
                if j < size.ditto_seeds:
                    made[DITTO] = regression.ditto(s, lam)
                for name, method in made.items():
                    result = play(method, one.federation, j, size.plays + 1, **given)
                    ran[name][i, j] = tested(result).mean()
                    if i == len(lams) - 1 and name in draws:
                        draws[name] += tested(result).tolist()
                said[PFEDME][i, j] = linear.pfedme_loss(s, lam, one.spread)
                said[LPPROJ][i, j] = linear.lpproj_loss(s, lam, size.dim, one.spread_seen)
                step()
    seen = float(np.mean([one.spread_seen for one in by_seed]))
    return {
        "lams": lams,
        "ran": ran,
        "said": said,
        "draws": draws,
        "local": Mean.of([one.alone for one in by_seed]),
        "alone": np.array([one.alone for one in by_seed]),
        "spread": spread,
        "spread_seen": seen,
        "best": best,
        "threshold": linear.lpproj_wins_from(s, spread),
        "size": size,
    }


# -- the page -------------------------------------------------------------------------------------


def write(folder: Path, size: Size | None = None) -> list[Path]:
    """Run everything and write the page."""
    began = time.perf_counter()
    size = size or Size()
    found = {attack: measure(attack, size) for attack in ATTACKS}
    page = Page(
        name="lp-proj-figure1",
        title="lp-proj, Figure 1: test loss against λ under attack",
        settings=words(size),
        claims=claims(found, size),
        tables={
            f"{attack}: test loss of benign clients, mean over {size.seeds} seeds ± 95 % interval; "
            f"Local {f['local'].text(4)}": rows(f)
            for attack, f in found.items()
        },
        figures={attack: figures(f) for attack, f in found.items()},
        panels=[*(whole(a, f) for a, f in found.items()), *(near(a, f) for a, f in found.items())],
        seconds=time.perf_counter() - began,
        order=20,
    )
    return page.write(folder)


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


def claims(found: dict[str, dict[str, Any]], size: Size) -> list[Claim]:
    """The paper's statements about its Figure 1, one after the other."""
    printed = linear.attacked_spread(size.setting, size.around, size.malicious, size.tau**2)
    best = linear.best_lam(size.setting, printed)
    threshold = linear.lpproj_wins_from(size.setting, printed)
    paper = size == replace(Size(), multiples=size.multiples, seeds=size.seeds, plays=size.plays)
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
    return [*out, _same(found), _crossing(found), _negligible(found), _order(found), *_fit(found)]


def _same(found: dict[str, dict[str, Any]]) -> Claim:
    """Proposition 16 (i)."""
    apart = max(
        float(np.nanmax(np.abs(f["ran"][DITTO] / f["ran"][PFEDME] - 1))) for f in found.values()
    )
    return Claim(
        "pFedMe and Ditto have the same loss for every λ (Proposition 16 (i))",
        f"under all three attacks their runs differ by at most {apart:.1e} of the loss",
        "agrees" if apart < 1e-9 else "differs",
        "" if apart < 1e-9 else "not found",
    )


def _crossing(found: dict[str, dict[str, Any]]) -> Claim:
    """Proposition 16 (ii): signs of the measured gaps, where the interval decides them."""
    right, wrong, open_ = 0, 0, 0
    for f in found.values():
        for lam, g in zip(f["lams"], gap(f), strict=True):
            if g.holds_zero:
                open_ += 1
            elif (g.value < 0) == (lam > f["threshold"]):
                right += 1
            else:
                wrong += 1
    where = ", ".join(f"{f['threshold']:.3g} ({a})" for a, f in found.items())
    return Claim(
        "lp-proj is no worse than pFedMe and Ditto if and only if λ ≥ 2 λ* / (1 - λ*/b) "
        "(Proposition 16 (ii))",
        f"threshold {where}; of {right + wrong + open_} measured differences {right} have the "
        f"sign it says, {wrong} the other, {open_} are too close to tell",
        "differs" if wrong else "agrees",
        "not found" if wrong else "",
    )


def _negligible(found: dict[str, dict[str, Any]]) -> Claim:
    s = next(iter(found.values()))["size"]
    alone = linear.local_loss(s.setting)
    parts = []
    worst = 0.0
    for attack, f in found.items():
        most = linear.lpproj_loss(
            s.setting, f["best"], s.dim, f["spread_seen"]
        ) - linear.pfedme_loss(s.setting, f["best"], f["spread"])
        runs = gap(f)[int(np.argmin(np.abs(np.array(f["lams"]) - f["best"])))]
        worst = max(worst, most / alone)
        parts.append(f"{most:.1e} by the formula, {runs.text(2)} in runs ({attack})")
    return Claim(
        "below the threshold the gap between lp-proj and pFedMe / Ditto is negligible",
        f"at λ*, where pFedMe gains most: {'; '.join(parts)}; Local's loss is {alone:.3g}",
        "agrees" if worst < 0.01 else "differs",
        "" if worst < 0.01 else f"the gap is {100 * worst:.1f} % of Local's loss",
    )


def _order(found: dict[str, dict[str, Any]]) -> Claim:
    """L^loc <= L^l2 <= L^Me above the threshold (after Theorem 30)."""
    signs = {1: 0, -1: 0, 0: 0}
    worst = 0.0
    for f in found.values():
        for i, lam in enumerate(f["lams"]):
            if lam > f["threshold"]:
                for over in (
                    excess(f, LPPROJ)[i],
                    Mean.of(f["ran"][PFEDME][i] - f["ran"][LPPROJ][i]),
                ):
                    signs[0 if over.holds_zero else int(np.sign(over.value))] += 1
        worst = max(worst, float(f["ran"][PFEDME][-1].mean() / f["ran"][LPPROJ][-1].mean()))
    return Claim(
        "above the threshold Local ≤ lp-proj ≤ pFedMe",
        f"of {sum(signs.values())} measured differences {signs[1]} have this order, {signs[-1]} "
        f"the other, {signs[0]} are too close to tell; at the largest λ pFedMe's loss is up to "
        f"{worst:.1f} times lp-proj's, and Local, which hears nobody, has the least loss of all",
        "differs" if signs[-1] else "agrees",
        "not found" if signs[-1] else "",
    )


def _fit(found: dict[str, dict[str, Any]]) -> list[Claim]:
    """Formulas against runs, attack by attack; and same-value against gaussian."""
    out = []
    for attack, f in found.items():
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
    if {"same-value", "gaussian"} <= set(found):
        means, spreads = {}, {}
        for attack in ("same-value", "gaussian"):
            draws = np.array(found[attack]["draws"][PFEDME])
            means[attack] = found[attack]["ran"][PFEDME][-1].mean()
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
def words(size: Size) -> str:
    s = size.setting
    return f"""\
Federated linear regression (Section 4.2 and Appendix B): n = {s.samples}, N = {s.clients},
N_a = {size.malicious}, d = {s.features}, d_sub = {size.dim}, b = {s.b:g}, σ = {s.noise:g},
Σ₁ = {size.around:g}, τ = {size.tau:g}. The paper prints no range of λ and no true parameters: here
λ goes from {size.multiples[0]:g} to {size.multiples[-1]:g} times the best λ of the attack (at most
{LARGEST:g}), and w_k ~ N(0, v I) with the v that makes Σ₁ what it is in expectation; P has
orthonormal rows, drawn anew for each seed. It shows the same-value attack only; sign-flipping and
Gaussian messages have the same τ here.

Runs: `il.run` of `pfedme`, `ditto` and `lp-proj` (p = 2) with all clients heard, all data in every
gradient, float64, and step sizes with which one round is the paper's round of infinitely many local
steps. {size.seeds} seeds draw data, P and malicious clients; each plays the paper's round
{size.plays} times under attacks drawn anew, and the mean over these is the seed's figure. Ditto is
run with {size.ditto_seeds} of the seeds. Formulas are evaluated at each seed's own w_k. "Runs -
formula" compares differences from Local's loss on the same data, which takes the noise of the test
data out. The lower panels show the part around the threshold, as a difference from Local."""


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
