"""Constants, schedules and bounds of the convergence theorems of lp-proj, p = 2.

From Section 4.1 and Appendix A of its paper (Han, Li, Lin and Zhang, JMLR 2024). `StronglyConvex`
has Theorems 9 and 14, `Smooth` has Theorems 13 and 15. The theorems state orders; the bounds here
are those of their proofs, with all constants. η̃ = η β R is the step of the global update, eq. (7).
docs/fidelity.md lists where the proofs had to be corrected.

Constant over rounds (9, 13): a step that depends on how many rounds T there are. Schedules over
rounds (14, 15): texts of the setting `schedule` for lr (η_t), nu (ν_t) and batch (D_t), with the
theorem's own constants or with larger steps of the same form.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Scheduled:
    """Settings of a run: those of round 0, and how they go on."""

    lr: float  # η_0
    nu: float  # ν_0
    batch: int  # D_0
    schedule: str = "constant"

    @property
    def method(self) -> dict[str, Any]:
        """Fields of lp-proj."""
        return {"lr": self.lr, "nu": self.nu}

    @property
    def run(self) -> dict[str, Any]:
        """Settings of a run."""
        return {"batch": self.batch, "schedule": self.schedule}


def _over_rounds(rate: float, lr: float, nu: float) -> str:
    """η_t, ν_t and D_t over those of round 0: (1 + rate t) to these powers; D_t as 1 / ν_t."""
    return f"lr=inverse:{rate!r}:{lr!r} + nu=inverse:{rate!r}:{nu!r} + batch=grow:{rate!r}:{nu!r}"


@dataclass(frozen=True)
class Setting:
    """What both kinds of theorems need to know of a problem and of a run."""

    lam: float  # λ
    s: float  # singular values of P are in [1 - s, 1 + s]
    clients: int  # N
    heard: int  # S
    alternations: int  # R
    beta: float  # β >= 1
    noise: float  # γ_f²: variance of a stochastic gradient
    diversity: float  # σ²_F of Lemma 5 or 12
    start: float  # Δ_0 = ||w_0 - w*||² or Δ_F = F(w_0) - min F

    @property
    def L_F(self) -> float:
        return self.lam

    @property
    def sampling(self) -> float:
        """(N/S - 1) / (N - 1): 0 without client sampling."""
        return (self.clients / self.heard - 1) / max(self.clients - 1, 1)

    def local(self, step: float) -> float:
        """η of a global step η̃."""
        return step / (self.beta * self.alternations)


@dataclass(frozen=True)
class StronglyConvex(Setting):
    """Theorems 9 and 14."""

    mu: float  # μ: every sample's loss is strongly convex with it

    @property
    def mu_F(self) -> float:
        """Proposition 3."""
        return self.lam * self.mu / ((1 + self.s) ** 2 * self.lam + self.mu)

    @property
    def kappa_F(self) -> float:
        return self.L_F / self.mu_F

    def approximation(self, batch: float | Tensor, nu: float | Tensor) -> Any:
        """δ_1² of Lemma 4."""
        return 2 * (1 + self.s) ** 2 / self.mu**2 * (self.noise / batch + nu)

    # -- Theorem 9: constant steps ---------------------------------------------------------------
    @property
    def most(self) -> float:
        """η̂_1, the largest η̃ of Theorem 9."""
        return 1 / (18 * self.L_F * (1 + 10 * self.kappa_F / self.beta))

    def constants(self, batch: float | Tensor, nu: float | Tensor) -> tuple[Any, Any, Any]:
        """C_1, C_2, C_3 of its proof."""
        error = self.lam**2 * self.approximation(batch, nu)
        return (
            16 * error / self.mu_F,
            6 * self.diversity * self.sampling,
            32 * self.kappa_F * self.L_F * (14 * self.diversity + 10 * error),
        )

    def step(self, rounds: int, batch: int, nu: float, most: float | None = None) -> float:
        """η̃ for T rounds, at most η̂_1 or `most`.

        The proof's has C_2 in the logarithm, which is 0 without client sampling. There it is the
        step with which the first term of the bound falls as 1/T², as the third does.
        """
        _, C2, _ = self.constants(batch, nu)
        T, mu_F = rounds, self.mu_F
        goal = mu_F**2 * self.start * T / (2 * C2) if C2 else float(T) ** 2
        wanted = 2 * max(math.log(max(goal, 1.0)), 1.0) / (mu_F * T)
        return min(wanted, self.most if most is None else most)

    def bound9(self, rounds: int, step: float, batch: int, nu: float) -> float:
        """The right-hand side of (17) for E F(w̄_T) - F(w*); the T in its exponent is missing."""
        C1, C2, C3 = self.constants(batch, nu)
        begun = self.mu_F * math.exp(-step * self.mu_F * rounds / 2) * self.start
        return begun + (step / self.beta) ** 2 * C3 + step * C2 + C1

    # -- Theorem 14: schedules -------------------------------------------------------------------
    @property
    def zeta(self) -> float:
        """ζ of Theorem 14."""
        return 72 * self.kappa_F * (1 + 7 * self.kappa_F / self.beta)

    def scheduled(self, first_batch: int, zeta: float | None = None) -> Scheduled:
        """η_t, ν_t and D_t; D is the constant with D_0 = `first_batch`.

        Without client sampling (S = N), ν_t and D_t go with the square of β (ζ + t).
        """
        zeta = self.zeta if zeta is None else zeta
        lr = self.local(8 / (self.mu_F * zeta))
        if self.sampling:
            nu, power = 8 / (self.mu_F * zeta), 1.0
        else:
            nu, power = 8 / (self.mu_F * (self.beta * zeta) ** 2), 2.0
        return Scheduled(lr, nu, first_batch, _over_rounds(1 / zeta, 1.0, power))

    def bound14(self, rounds: int, plan: Scheduled, zeta: float | None = None) -> Tensor:
        """Bounds of E ||w_t - w*||² for t = 0 ... T: the recursion before (32), from Δ_0."""
        zeta = self.zeta if zeta is None else zeta
        t = torch.arange(rounds, dtype=torch.float64)
        step = 8 / (self.mu_F * (zeta + t))
        growth = (1 + t / zeta) ** (1 if self.sampling else 2)
        delta = self.approximation(plan.batch * growth, plan.nu / growth)
        drift = self.kappa_F * self.L_F * (step**3 / self.beta**2)
        added = (
            step * delta * 10 * self.lam**2 / self.mu_F  # C_1
            + step**2 * 6 * self.diversity * self.sampling  # C_2
            + drift * (280 * self.diversity + 200 * self.lam**2 * delta)  # C_3 and C_4
        )
        bound = [self.start]
        for share, more in zip((1 - self.mu_F * step / 2).tolist(), added.tolist(), strict=True):
            bound.append(share * bound[-1] + more)
        return torch.tensor(bound, dtype=torch.float64)


@dataclass(frozen=True)
class Smooth(Setting):
    """Theorems 13 and 15; they ask for λ >= max(√(10 L² + 1), 4 L) and s < 1/30."""

    L: float  # every sample's loss is smooth with it

    @staticmethod
    def least_lam(L: float) -> float:
        """The smallest λ that the theorems allow."""
        return max(math.sqrt(10 * L**2 + 1), 4 * L)

    @property
    def slowness(self) -> float:
        """90 λ² L_F = 1 / η̂_2."""
        return 90 * self.lam**2 * self.L_F

    def approximation(self, batch: float | Tensor, nu: float | Tensor) -> Any:
        """δ_2² of Lemma 11."""
        room = (1 - self.s) ** 4 * self.lam - (1 + self.s) ** 2 * self.L
        return 2 * (1 + self.s) ** 6 * (self.noise / batch + nu) / room**2

    # -- Theorem 13: constant steps --------------------------------------------------------------
    def step(self, rounds: int, batch: int, nu: float) -> float:
        """η̃ of the proof of Theorem 13 for T rounds."""
        error = self.lam**2 * self.approximation(batch, nu)
        C4 = 4 * self.L_F**2 * (21 * self.diversity + 10 * error)
        C5 = 5 * self.L_F * self.diversity * self.sampling
        wanted = [(self.beta**2 * self.start / (rounds * C4)) ** (1 / 3)]
        if C5:
            wanted.append((self.start / (rounds * C5)) ** 0.5)
        return min(*wanted, 1 / self.slowness)

    def bound13(self, rounds: int, step: float, batch: int, nu: float) -> float:
        """Four times the right-hand side of (20), for E ||∇F(w_t*)||²."""
        error = self.lam**2 * self.approximation(batch, nu)
        C4 = 4 * self.L_F**2 * (21 * self.diversity + 10 * error)
        C5 = 5 * self.L_F * self.diversity * self.sampling
        begun = self.start / (step * rounds)
        return 4 * (begun + (step / self.beta) ** 2 * C4 + step * C5 + 2 * error)

    # -- Theorem 15: schedules -------------------------------------------------------------------
    def scheduled(self, first_batch: int, first_step: float | None = None) -> Scheduled:
        """η_t, ν_t and D_t; D is the constant with D_0 = `first_batch`.

        `first_step` is another η̃_0 than the theorem's.
        """
        if self.sampling:
            step, nu, lr_power, nu_power = 1.0, 1.0, 1 / 2, 1 / 2
        else:
            step, nu, lr_power, nu_power = self.beta ** (2 / 3), self.beta ** (-2 / 3), 1 / 3, 2 / 3
        first = step / self.slowness if first_step is None else first_step
        plan = _over_rounds(1.0, lr_power, nu_power)
        return Scheduled(self.local(first), nu / self.slowness, first_batch, plan)

    def bound15(self, rounds: int, plan: Scheduled) -> Tensor:
        """Bounds of E ||∇F(w_t*)||² for T = 1 ... rounds: (33)."""
        t = torch.arange(rounds, dtype=torch.float64)
        powers = (1 / 2, 1 / 2) if self.sampling else (1 / 3, 2 / 3)
        step = plan.lr * self.beta * self.alternations * (t + 1) ** -powers[0]
        growth = (t + 1) ** powers[1]
        delta = self.approximation(plan.batch * growth, plan.nu / growth)
        drift = (step**3 / self.beta**2) * self.L_F**2
        added = (
            drift * (40 * self.lam**2 * delta + 84 * self.diversity)  # C_5 and C_6
            + step**2 * 5 * self.L_F * self.diversity * self.sampling  # C_7
            + step * delta * 2 * self.lam**2  # C_8
        )
        return 4 * (self.start + added.cumsum(0)) / step.cumsum(0)
