"""Constants and the bound of Theorem 2 of the FedDeper paper.

Personal models lie around the global minimiser: the mean of ||v_{i,j}^k - x*||² over clients i,
local steps j and rounds k is O(ξ⁰) + O(ε), with ξ⁰ the mean of ||v_{i,j}⁰ - x⁰||² and ε that of
||∇f(x^k)||² over rounds. The theorem states orders; the bound here is that of its proof, corrected
where docs/fidelity.md says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


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
