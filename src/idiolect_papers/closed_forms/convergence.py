"""Constants, schedules and bounds of convergence theorems, and the iterates they speak of.

lp-proj with p = 2 (Han, Li, Lin and Zhang, JMLR 2024, Section 4.1 and Appendix A): `StronglyConvex`
has Theorems 9 and 14, `Smooth` has Theorems 13 and 15. η̃ = η β R is the step of the global update,
eq. (7). Constant over rounds (9, 13): a step that depends on the number of rounds T. Schedules over
rounds (14, 15): texts of the setting `schedule` for lr (η_t), nu (ν_t) and batch (D_t), with the
theorem's own constants or with larger steps of the same form.

FedDeper: `Theorem2`. Personal models lie around the global minimiser: the mean of
||v_{i,j}^k - x*||² over clients i, local steps j and rounds k is O(ξ⁰) + O(ε), with ξ⁰ the mean of
||v_{i,j}⁰ - x⁰||² and ε that of ||∇f(x^k)||² over rounds.

The theorems state orders; the bounds here are those of their proofs, with all constants, corrected
where docs/fidelity.md says so. In place of the last iterate theorems speak of weighted averages and
of iterates drawn at random: w[T, m] of the rounds 0 ... T - 1, weights [T] that add up to 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from idiolect import streams


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
class TheoremSetting:
    """What both kinds of theorems need to know of a problem and of a run."""

    lam: float  # λ
    s: float  # singular values of P are in [1 - s, 1 + s]
    clients: int  # N
    clients_per_round: int  # S
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
        return (self.clients / self.clients_per_round - 1) / max(self.clients - 1, 1)

    def local(self, step: float) -> float:
        """η of a global step η̃."""
        return step / (self.beta * self.alternations)


@dataclass(frozen=True)
class StronglyConvex(TheoremSetting):
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
class Smooth(TheoremSetting):
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
    def constants(self, batch: int, nu: float) -> tuple[float, float, float]:
        """λ² δ_2², C_4 and C_5 of its proof."""
        error = self.lam**2 * self.approximation(batch, nu)
        C4 = 4 * self.L_F**2 * (21 * self.diversity + 10 * error)
        return error, C4, 5 * self.L_F * self.diversity * self.sampling

    def step(self, rounds: int, batch: int, nu: float) -> float:
        """η̃ of the proof of Theorem 13 for T rounds."""
        _, C4, C5 = self.constants(batch, nu)
        wanted = [(self.beta**2 * self.start / (rounds * C4)) ** (1 / 3)]
        if C5:
            wanted.append((self.start / (rounds * C5)) ** 0.5)
        return min(*wanted, 1 / self.slowness)

    def bound13(self, rounds: int, step: float, batch: int, nu: float) -> float:
        """Four times the right-hand side of (20), for E ||∇F(w_t*)||²."""
        error, C4, C5 = self.constants(batch, nu)
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


# -- FedDeper, Theorem 2 --------------------------------------------------------------------------


@dataclass(frozen=True)
class Theorem2:
    """What the bound depends on."""

    clients: int  # n
    heard: int  # m
    steps: int  # τ
    lr: float  # η
    beta: float = 1.0  # every f_i is β-smooth
    mu: float = 1.0  # f is μ-strongly convex: the proof needs it
    B2: float = 1.0  # Assumption 3: mean ||∇f_i||² <= B² ||∇f||² + G²
    G2: float = 0.0
    noise: float = 0.0  # ς²: variance of a stochastic gradient

    @property
    def p(self) -> float:
        return self.heard / self.clients

    @property
    def _unheard(self) -> float:
        return 2 * (1 / self.heard - 1 / self.clients)

    @property
    def most(self) -> float:
        """The largest ητβ that Theorem 1 allows; ϱ is at most ηβ."""
        p = self.p
        B2_heard = self.B2 * self._unheard + 1  # B̃²
        l1 = 15 * (1 - p) ** 2 / (49 * p**2)
        l2 = 1 + 25 / (3136 * p) + 75 * (1 - p) ** 2 / (3136 * p**2)
        l3 = 5 / 7 + 5 / (49 * p)
        root = math.sqrt(l1 + l2 * self.B2 + l3 * B2_heard)
        return min(1 / (144 * B2_heard), 1 / (84 * math.sqrt(2) * root))

    def bound(self, first: float, slope: float, rounds: int) -> float:
        """Of the mean of ||v_{i,j}^k - x*||² over K rounds, from ξ⁰ and ε.

        2/K sum_k ξ^k + 2/μ² ε, where the proof bounds the mean of the ξ^k. Two corrections: ξ⁰ is
        divided by K, as telescoping gives it; and ||x - x*||² <= ||∇f(x)||² / μ² by strong
        convexity (the proof has 1/β² "by smoothness", which is the inequality the other way).
        """
        p, e = self.p, self.lr * self.steps  # ητ
        c_p = 20 * (1 / p - 1 / 48)
        q = 5 + 75 * p + 15 * (1 - p) ** 2 / p
        x = (e * self.beta) ** 2
        Q = 6 * q * x * (1 + 4 * x) + 34 * p
        G2_heard = self.G2 * self._unheard  # G̃²
        B2_heard = self.B2 * self._unheard + 1
        per_step = self.noise / self.steps
        added = (
            (2 * c_p * q * x + 6 * c_p * q * x**2) * e**2 * per_step
            + (12 * c_p * (1 - p) ** 2 / p + 4 * c_p * (1 + 7 * p) * B2_heard) * e**2 * slope
            + (c_p * Q + 25 / 12) * self.B2 * e**2 * slope
            + (33 * c_p * p / 4 + (1 + 7 * p) * c_p / self.heard + 25 / 24) * e**2 * per_step
            + ((c_p * Q + 25 / 12) * self.G2 + 4 * c_p * (1 + 7 * p) * G2_heard) * e**2
        )
        mean = 48 / p * (first / rounds + added)
        return 2 * mean + 2 / self.mu**2 * slope


# -- iterates -------------------------------------------------------------------------------------


def geometric_weights(rounds: int, rate: float) -> Tensor:  # -> [T]
    """α_t / A_T with α_t = (1 - rate)^-(t + 1), 0 <= rate < 1 (lp-proj, Theorem 9).

    As (1 - rate)^(T - 1 - t) / sum: α_t itself overflows.

    >>> geometric_weights(3, 0.5).tolist() == [1 / 7, 2 / 7, 4 / 7]
    True
    """
    powers = (1 - rate) ** torch.arange(rounds - 1, -1, -1, dtype=torch.float64)
    return powers / powers.sum()


def step_weights(steps: Tensor) -> Tensor:  # [T] -> [T]
    """α_t = η_t / sum η (lp-proj, Theorem 15); 1 / T for constant steps (Theorem 13)."""
    return steps / steps.sum()


def averaged(w: Tensor, weights: Tensor) -> Tensor:  # [T, m], [T] -> [m]
    """w̄_T = sum_t α_t w_t."""
    return weights.to(w) @ w


def draw_rounds(weights: Tensor, count: int, seed: int) -> Tensor:  # -> int64[count]
    """`count` independent t* with P(t* = t) = α_t.

    >>> draw_rounds(torch.tensor([0.0, 1.0, 0.0]), 3, seed=0).tolist()
    [1, 1, 1]
    """
    uniform = torch.from_numpy(streams.uniform(streams.keys(seed, "t*"), count)[0])
    ends = weights.double().cumsum(0)
    return torch.searchsorted(ends / ends[-1], uniform, right=True).clamp(max=len(weights) - 1)
