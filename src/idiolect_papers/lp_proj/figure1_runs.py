"""Runs and formulas behind Figure 1 of the lp-proj paper: losses under attack, by λ and seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from idiolect.data.federation import Federation
from idiolect.data.sets.regression import Linear

from ..closed_forms.linear_regression import attacks, losses
from . import regression
from .regression import Mean, malicious_of, play, tested

ATTACKS: dict[str, Callable[..., float]] = {
    "same-value": attacks.same_value,
    "sign-flip": attacks.sign_flip,
    "gaussian": attacks.gaussian,
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
    best = losses.best_lam(s, spread)
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
                said[PFEDME][i, j] = losses.pfedme(s, lam, one.spread)
                said[LPPROJ][i, j] = losses.lpproj(s, lam, size.dim, one.spread_seen)
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
        "threshold": losses.lpproj_wins_from(s, spread),
        "size": size,
    }
