"""A federated quadratic problem in closed form.

n rows of H, A and B count only through a QR factor of them: with [H 0 b; A B y] = Q R, client m's
function is f_m(θ, w) = ½ ‖T_m θ + W_m w - t_m‖² exactly, where [T W t] = R has d_θ + d_w + 1 rows
at most. Everything below is a function of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from idiolect.data.federation import Federation
from idiolect.data.splits import SPLITS

from .task import QuadraticTask


def stacked_rows(
    H: np.ndarray, b: np.ndarray, A: np.ndarray, B: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """([T W t], Hᵀ H) of one client: at most d_θ + d_w + 1 rows with the same function."""
    above = _factor(np.column_stack([H, b]))  # each half by itself: less work
    below = _factor(np.column_stack([A, B, y]))
    middle = np.zeros((len(above), B.shape[1]))
    stacked = np.block([[above[:, :-1], middle, above[:, -1:]], [below]])
    return _factor(stacked), H.T @ H


def _factor(matrix: np.ndarray) -> np.ndarray:
    """R of a QR factorisation: Rᵀ R is the matrix's own."""
    return np.asarray(np.linalg.qr(matrix, mode="r"))


@dataclass(frozen=True)
class Constants:
    """Smoothness and strong convexity, the largest (of mu: the least) over all clients."""

    example1: float  # L = 2 max(‖HᵀH‖, ‖Aᵀ(I - BB⁺)A‖), for which Example 1 proves cocoercivity
    F: float  # of every F_m: the largest ‖∇F_m‖, at most `example1`
    mean_F: float  # of F, the mean of them: ‖∇F‖
    mu_F: float  # F is strongly monotone with this constant
    f: float  # L_f: of f_m in (θ, w) together
    w: float  # L_w: of f_m in w
    mu_w: float  # f_m is strongly convex in w with this constant


@dataclass(frozen=True)
class Problem:
    """M clients' f_m(θ, w) = ½ ‖T_m θ + W_m w - t_m‖²."""

    T: Tensor  # [M, r, d_theta]
    W: Tensor  # [M, r, d_w]
    t: Tensor  # [M, r]
    phi: Tensor  # [M, d_theta, d_theta]: H_mᵀ H_m, the curvature of f_m's first term

    @classmethod
    def of(cls, clients: Sequence[tuple[np.ndarray, np.ndarray]]) -> Problem:
        """From what `stacked_rows` gives for each client."""
        rows = torch.from_numpy(np.stack([rows for rows, _ in clients]))
        phi = torch.from_numpy(np.stack([phi for _, phi in clients]))
        d = phi.shape[-1]
        return cls(rows[..., :d], rows[..., d:-1], rows[..., -1], phi)

    def at(self, positions: Sequence[int] | Tensor) -> Problem:
        """The problem of some of the clients alone, such as the honest ones."""
        chosen = torch.as_tensor(positions)
        return Problem(self.T[chosen], self.W[chosen], self.t[chosen], self.phi[chosen])

    # -- as a method sees it ---------------------------------------------------------------------
    def task(self) -> QuadraticTask:
        """The model θ, w with names "theta.weight" and "w.weight"; x0 is 0.

        FFGG's random starts are w ~ N(0, I).
        """
        return QuadraticTask.of(self.T.shape[-1], self.W.shape[-1])

    def federation(self) -> Federation:
        """A client's training samples are its rows [T W], times √r so that their mean loss is f_m.

        With `batching="full"` the loss of a client is f_m, in every digit. Its validation and test
        data are the same rows: the loss that a result shows is the mean of the f_m at the personal
        models.
        """
        M, r = self.t.shape
        bounds = r * torch.arange(M + 1)
        return Federation(
            inputs=r**0.5 * torch.cat([self.T, self.W], dim=-1).flatten(0, 1),
            targets=r**0.5 * self.t.flatten(),
            offsets=dict.fromkeys(SPLITS, bounds),
            ids=tuple(range(M)),
            classes=0,
            name="quadratic",
        )

    # -- functions of θ --------------------------------------------------------------------------
    def loss(self, theta: Tensor, w: Tensor) -> Tensor:  # theta[d], w[M, d_w] or w[d_w] -> [M]
        """f_m(θ, w_m)."""
        return 0.5 * self._residual(theta, w).square().sum(-1)

    def grad(self, theta: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """(∇_θ f_m[M, d_theta], ∇_w f_m[M, d_w])."""
        residual = self._residual(theta, w).unsqueeze(-1)
        return (self.T.mT @ residual).squeeze(-1), (self.W.mT @ residual).squeeze(-1)

    def _residual(self, theta: Tensor, w: Tensor) -> Tensor:
        return self.T @ theta + (self.W @ w.unsqueeze(-1)).squeeze(-1) - self.t

    def best_w(self, theta: Tensor) -> Tensor:  # -> w[M, d_w]
        """w*_m(θ) = B⁺ (y - A θ); of several the one nearest to 0."""
        return (self._inverse @ (self.t - self.T @ theta).unsqueeze(-1)).squeeze(-1)

    def operators(self, theta: Tensor) -> Tensor:  # -> [M, d_theta]
        """F_m(θ) = ∇_θ f_m(θ, w*_m(θ))."""
        return self.slopes @ theta - self._at_zero

    def operator(self, theta: Tensor) -> Tensor:  # theta[..., d_theta] -> [..., d_theta]
        """F(θ), the mean of the F_m."""
        return theta @ self._mean_slope - self._mean_at_zero  # the slope is symmetric

    def norm(self, theta: Tensor) -> float:
        """‖F(θ)‖, the paper's measure of convergence."""
        return float(self.operator(theta).norm())

    # -- closed forms ----------------------------------------------------------------------------
    @cached_property
    def _inverse(self) -> Tensor:  # [M, d_w, r]
        return torch.linalg.pinv(self.W)

    @cached_property
    def _projected(self) -> Tensor:  # [M, r, d_theta]
        """(I - W W⁺) T: what of θ's effect no w can undo."""
        return self.T - self.W @ (self._inverse @ self.T)

    @cached_property
    def slopes(self) -> Tensor:  # [M, d_theta, d_theta]
        """∇F_m = H_mᵀ H_m + A_mᵀ (I - B_m B_m⁺) A_m."""
        return self._projected.mT @ self._projected

    @cached_property
    def _at_zero(self) -> Tensor:  # [M, d_theta]
        return (self._projected.mT @ self.t.unsqueeze(-1)).squeeze(-1)

    @cached_property
    def _mean_slope(self) -> Tensor:
        return self.slopes.mean(0)

    @cached_property
    def _mean_at_zero(self) -> Tensor:
        return self._at_zero.mean(0)

    def minimiser(self) -> tuple[Tensor, Tensor]:
        """(θ*, w*[M, d_w]) of the personalised objective, the mean of min_w f_m(θ, w)."""
        theta = torch.linalg.lstsq(self._mean_slope, self._mean_at_zero).solution
        return theta, self.best_w(theta)

    def joint_minimiser(self) -> tuple[Tensor, Tensor]:
        """(θ, w[d_w]) with one w for all: where FedAvg and SCAFFOLD go."""
        rows = torch.cat([self.T, self.W], dim=-1)
        hessian = (rows.mT @ rows).mean(0)
        slope = (rows.mT @ self.t.unsqueeze(-1)).squeeze(-1).mean(0)
        x = torch.linalg.lstsq(hessian, slope).solution
        return x[: self.T.shape[-1]], x[self.T.shape[-1] :]

    def constants(self) -> Constants:
        """What step sizes are chosen by."""
        rows = torch.cat([self.T, self.W], dim=-1)
        coupled = self.slopes - self.phi  # Aᵀ (I - BB⁺) A
        first, second = torch.linalg.eigvalsh(self.phi), torch.linalg.eigvalsh(coupled)
        mean = torch.linalg.eigvalsh(self._mean_slope)
        w = torch.linalg.svdvals(self.W).square()
        return Constants(
            example1=2 * float(torch.maximum(first[:, -1], second[:, -1]).max()),
            F=float(torch.linalg.eigvalsh(self.slopes)[:, -1].max()),
            mean_F=float(mean[-1]),
            mu_F=float(mean[0]),
            f=float(torch.linalg.svdvals(rows)[:, 0].square().max()),
            w=float(w[:, 0].max()),
            mu_w=float(w[:, -1].min()) if w.shape[-1] == self.W.shape[-1] else 0.0,
        )
