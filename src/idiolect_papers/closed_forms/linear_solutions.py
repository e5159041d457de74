"""The models that each method ends with, as functions of the data, for any features and any P.

From Appendix B.1 of the lp-proj paper. Every shared model is a mean of what the clients would find
alone, weighted by matrices; every personal model solves one linear system. For lp-proj-2 the paper
says that general features allow no concise solution. They do: with H_k = Xi_k^T Xi_k / n and the
Woodbury identity the envelope is F_k(w) = λ/2 (w - P ŵ_k)^T A_k (w - P ŵ_k) + constant,
A_k = (I + λ P H_k^-1 P^T)^-1, and the rest follows.

Shapes: H[N, d, d], ŵ[..., N, d] (leading axes: draws of the noise), P[m, d], shared models
[..., m], personal models [..., N, d].

In the example the first coordinate is tied, (b ŵ_k + λ w) / (b + λ); the others are the client's.

>>> H = 2.0 * torch.eye(3).expand(2, 3, 3)
>>> local_models = torch.tensor([[0.0, 0.0, 0.0], [6.0, 6.0, 6.0]])
>>> w, x = lpproj(H, local_models, lam=1.0, P=torch.eye(3)[:1])
>>> w.tolist(), x.tolist()
([3.0], [[1.0, 0.0, 0.0], [5.0, 6.0, 6.0]])
"""

from __future__ import annotations

import torch
from torch import Tensor


def curvature(xi: Tensor) -> Tensor:  # xi[N, n, d] -> H[N, d, d]
    """H_k = Xi_k^T Xi_k / n; b I for the features of the paper."""
    return xi.mT @ xi / xi.shape[-2]


def local(xi: Tensor, y: Tensor) -> Tensor:  # xi[N, n, d], y[..., N, n] -> ŵ[..., N, d]
    """Least squares at every client: ŵ_k = (Xi_k^T Xi_k)^-1 Xi_k^T y_k.

    >>> local(torch.tensor([[[1.0], [2.0]]]), torch.tensor([[2.0, 4.0]])).tolist()
    [[2.0]]
    """
    return torch.linalg.solve(xi.mT @ xi, xi.mT @ y.unsqueeze(-1)).squeeze(-1)


def weighted_mean(A: Tensor, rows: Tensor) -> Tensor:  # A[N, m, m], rows[..., N, m] -> [..., m]
    """The w with sum_k A_k (w - row_k) = 0."""
    return _apply(torch.linalg.inv(A.sum(-3)), _apply(A, rows).sum(-2))


def fedavg(H: Tensor, local_models: Tensor) -> Tensor:
    """w minimises the mean of the clients' losses; the mean of the ŵ_k if all H_k are equal."""
    return weighted_mean(H, local_models)


def pfedme(H: Tensor, local_models: Tensor, lam: float) -> tuple[Tensor, Tensor]:
    """(w, x): lp-proj-2 with P = I."""
    return lpproj(H, local_models, lam, torch.eye(H.shape[-1], dtype=H.dtype))


def ditto(H: Tensor, local_models: Tensor, lam: float) -> tuple[Tensor, Tensor]:
    """(w, x): FedAvg's model, and personal models tied to it."""
    w = fedavg(H, local_models)
    return w, tied(H, local_models, lam, torch.eye(H.shape[-1], dtype=H.dtype), w.unsqueeze(-2))


def lpproj(H: Tensor, local_models: Tensor, lam: float, P: Tensor) -> tuple[Tensor, Tensor]:
    """(w, x): the minimiser of the bi-level objective (1) with p = 2, and personal models."""
    w = weighted_mean(envelope(H, lam, P), local_models @ P.T)
    return w, tied(H, local_models, lam, P, w.unsqueeze(-2))


def envelope(H: Tensor, lam: float, P: Tensor) -> Tensor:  # -> A[N, m, m]
    """A_k, with which grad F_k(w) = λ (w - P x_k(w)) = λ A_k (w - P ŵ_k).

    b / (b + λ) I for the paper's features and P.
    """
    return torch.linalg.inv(torch.eye(len(P), dtype=P.dtype) + lam * P @ torch.linalg.solve(H, P.T))


def tied(
    H: Tensor, local_models: Tensor, lam: float, P: Tensor, w: Tensor
) -> Tensor:  # w[..., N or 1, m] -> x[..., N, d]
    """x_k(w) = argmin f_k(x) + λ/2 ||w - P x||^2 = (H_k + λ P^T P)^-1 (H_k ŵ_k + λ P^T w)."""
    return _apply(torch.linalg.inv(H + lam * P.T @ P), _apply(H, local_models) + lam * w @ P)


def fedavg_after_many_rounds(H: Tensor, local_models: Tensor, lr: float, steps: int) -> Tensor:
    """Where FedAvg with `steps` full-batch steps per round converges to.

    The minimiser for one step or equal H_k, else a point beside it.
    """
    return weighted_mean(_gone(lr * H, steps), local_models)


def lpproj_after_many_rounds(
    H: Tensor, local_models: Tensor, lam: float, P: Tensor, lr: float, alternations: int
) -> tuple[Tensor, Tensor]:
    """(w, x) that Algorithm 1 converges to, with R `alternations` of step size `lr` (η).

    With (3) solved exactly and all clients heard in every round. An alternation is
    w <- w - η λ A_k (w - P ŵ_k): R of them go the share I - (I - η λ A_k)^R of the way to P ŵ_k.
    For R = 1, and for equal A_k, w is that of `lpproj`. As R grows w tends to the plain mean of the
    P ŵ_k (the paper's one round of infinitely many steps). The personal model is tied to the
    client's own copy of w before its last step: to w for R = 1, and it tends to ŵ_k as R grows.
    """
    A = lr * lam * envelope(H, lam, P)
    target = local_models @ P.T
    w = weighted_mean(_gone(A, alternations), target)
    copy = w.unsqueeze(-2) + _apply(_gone(A, alternations - 1), target - w.unsqueeze(-2))
    return w, tied(H, local_models, lam, P, copy)


def _gone(A: Tensor, steps: int) -> Tensor:
    """I - (I - A_k)^steps."""
    one = torch.eye(A.shape[-1], dtype=A.dtype)
    return one - torch.linalg.matrix_power(one - A, steps)


def _apply(A: Tensor, rows: Tensor) -> Tensor:  # A[..., m, m], rows[..., m]: a matrix for each row
    return (A @ rows.unsqueeze(-1)).squeeze(-1)
